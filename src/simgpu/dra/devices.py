"""DRA devices of a machine's GPUs, with the attributes and capacities that NVIDIA's driver publishes."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.dra import taints
from simgpu.kube import quantity
from simgpu.machines import health
from simgpu.topology import allocating
from simgpu.topology.devices import Device

MEBIBYTE = 2**20
MEMORY = "memory"
SHARES = "shares"

_MAX_TEXT = 64  # characters of an attribute

Attributes = dict[str, dict[str, Any]]


class CounterUse(msgspec.Struct, frozen=True, rename="camel"):
    """Amounts that a device takes of a counter set."""

    counter_set: str
    counters: dict[str, dict[str, str]]


class CounterSet(msgspec.Struct, frozen=True):
    """Amounts that devices of one GPU share."""

    name: str
    counters: dict[str, dict[str, str]]


class PublishedDevice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A device of a resource slice, as in `resource.k8s.io/v1`."""

    name: str
    attributes: Attributes
    capacity: dict[str, dict[str, Any]]
    consumes_counters: tuple[CounterUse, ...] = ()
    taints: tuple[taints.DeviceTaint, ...] = ()
    allow_multiple_allocations: bool = False


def whole(
    device: Device,
    name: str,
    *,
    driver: str,
    cuda: str,
    options: allocating.DraOptions,
    faults: health.DeviceFaults = health.HEALTHY,
) -> PublishedDevice:
    """Return the device of a whole GPU; `driver` and `cuda` are its node's versions."""
    attributes = {
        **described("gpu", device, driver=driver, cuda=cuda),
        vocabulary.UUID_ATTRIBUTE: _text(device.uuid),
        vocabulary.MODEL_ATTRIBUTE: _text(device.model.product),
    }
    for qualified in vocabulary.QUALIFIED_ATTRIBUTES:
        attributes[qualified] = attributes[qualified.rpartition("/")[2]]
    return PublishedDevice(
        name=name,
        attributes=attributes,
        capacity=_capacity(device.model.memory_mib.total, options),
        taints=taints.of(faults),
        allow_multiple_allocations=options.consumable_shares != "disabled",
    )


def described(kind: str, device: Device, *, driver: str, cuda: str) -> Attributes:
    """Return the attributes that a GPU and its MIG devices have in common; facts that are not known are left out."""
    return {
        **_of_model(kind, device.model, driver, cuda),
        vocabulary.BUS_ATTRIBUTE: {"string": device.pci_short},
        vocabulary.ROOT_ATTRIBUTE: {"string": device.pcie_root},
        vocabulary.NUMA_ATTRIBUTE: {"int": device.numa},
    }


@functools.lru_cache(256)  # the same few, for all nodes of a fleet
def _of_model(kind: str, model: models.Model, driver: str, cuda: str) -> Attributes:
    found = {
        vocabulary.TYPE_ATTRIBUTE: _text(kind),
        vocabulary.PRODUCT_ATTRIBUTE: _text(model.product),
        vocabulary.BRAND_ATTRIBUTE: _text(model.brand or "Nvidia") if model.vendor == "nvidia" else None,
        vocabulary.ARCHITECTURE_ATTRIBUTE: _text(model.architecture),
        vocabulary.CAPABILITY_ATTRIBUTE: _version(model.compute_capability or ""),
        vocabulary.DRIVER_ATTRIBUTE: _version(driver),
        vocabulary.CUDA_ATTRIBUTE: _version(cuda),
        vocabulary.ADDRESSING_ATTRIBUTE: _text(model.addressing_mode or ""),
    }
    return {name: value for name, value in found.items() if value}


def _text(text: str) -> dict[str, str]:
    """Return an attribute; none for an empty text."""
    return {"string": text[:_MAX_TEXT]} if text else {}


def _version(text: str) -> dict[str, str]:
    """Return a version attribute in its semantic form, 580.95.05 as 580.95.5; none if it is not a version."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        return {}
    return {"version": ".".join(str(int(part)) for part in [*parts, "0", "0"][:3])}


def amount(number: int) -> dict[str, str]:
    """Return a capacity or counter of so many."""
    return {"value": quantity.canonical(number)}


def mebibytes(number: int) -> dict[str, str]:
    """Return a capacity or counter of so many MiB."""
    return {"value": quantity.binary(number * MEBIBYTE)}


def _capacity(memory_mib: int, options: allocating.DraOptions) -> dict[str, dict[str, Any]]:
    memory: dict[str, Any] = mebibytes(memory_mib)
    shares = options.consumable_shares
    if shares == "disabled":
        return {MEMORY: memory}
    default = memory["value"] if shares == "memory" else "0"
    memory["requestPolicy"] = {"default": default, "validRange": {"min": "0", "step": "1Mi"}}
    if not isinstance(shares, int):
        return {MEMORY: memory}
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    return {MEMORY: memory, SHARES: {**amount(shares), "requestPolicy": policy}}
