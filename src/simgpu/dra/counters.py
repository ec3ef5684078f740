"""MIG devices. Dynamic: a GPU and every placement of its profiles take from the same counters, so that none overlap.

The scheduler keeps the sums: a device that takes a memory slice, or the engines that others need, excludes them.
Static: the instances that a GPU is divided into, without counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.catalog import models, placing
from simgpu.dra import names, taints
from simgpu.dra.devices import MEMORY, CounterSet, CounterUse, PublishedDevice, amount, described, mebibytes
from simgpu.machines import health
from simgpu.topology.devices import Device, part_id

_COUNTER_NAMES = {
    "multiprocessors": "multiprocessors", "copyEngines": "copy-engines", "decoders": "decoders",
    "encoders": "encoders", "jpegEngines": "jpeg-engines", "ofaEngines": "ofa-engines", MEMORY: MEMORY,
}  # by capacity  # fmt: skip

Amounts = dict[str, dict[str, Any]]


def placements(device: Device, name: str) -> Iterator[tuple[str, models.MigProfile, int]]:
    """Yield name, profile and first memory slice of each MIG device that a GPU with this device name can have."""
    for profile in device.model.mig:
        for start in placing.starts(profile, device.model):
            yield names.of_mig(name, profile, start), profile, start


def counter_set(device: Device, name: str) -> CounterSet:
    """Return the counters of a GPU, by its device name: what its largest profile has, and its memory slices."""
    counters = _counters(_card(device.model), range(placing.card_slices(device.model)))
    return CounterSet(_set_name(name), counters)


def divisible(gpu: PublishedDevice, device: Device) -> PublishedDevice:
    """Return a whole GPU that takes all its counters, with the capacities of MIG devices."""
    amounts = _card(device.model)
    use = CounterUse(_set_name(gpu.name), _counters(amounts, range(placing.card_slices(device.model))))
    capacity = {**amounts, **gpu.capacity}
    return msgspec.structs.replace(gpu, capacity=capacity, consumes_counters=(use,))


def instances(
    device: Device, name: str, *, driver: str, cuda: str, faults: health.DeviceFaults = health.HEALTHY
) -> list[PublishedDevice]:
    """Return all MIG devices of a GPU with this device name, sorted by name."""
    common, model = described("mig", device, driver=driver, cuda=cuda), device.model
    found: list[PublishedDevice] = []
    for title, profile, start in placements(device, name):
        slices = range(start, start + placing.memory_slices(profile, model))
        amounts = _amounts(profile, model)
        attributes = {
            **common,
            vocabulary.PARENT_ATTRIBUTE: {"string": device.uuid},
            vocabulary.PROFILE_ATTRIBUTE: {"string": profile.name},
        }
        use = CounterUse(_set_name(name), _counters(amounts, slices))
        found.append(PublishedDevice(title, attributes, amounts, (use,), taints.of(faults)))
    return sorted(found, key=lambda item: item.name)


def static_instances(
    device: Device, name: str, *, driver: str, cuda: str, faults: health.DeviceFaults = health.HEALTHY
) -> list[PublishedDevice]:
    """Return the MIG instances that a GPU with this device name is divided into, sorted by name."""
    common, model = described("mig", device, driver=driver, cuda=cuda), device.model
    found: list[PublishedDevice] = []
    for place, profile in device.mig_devices():
        attributes = {
            **common,
            vocabulary.UUID_ATTRIBUTE: {"string": part_id(device.uuid, place.number)},
            vocabulary.PARENT_ATTRIBUTE: {"string": device.uuid},
            vocabulary.PROFILE_ATTRIBUTE: {"string": profile.name},
        }
        slices = {f"memorySlice{number}": amount(1) for number in range(place.start, place.start + place.size)}
        title = names.of_mig(name, profile, place.start)
        found.append(PublishedDevice(title, attributes, _amounts(profile, model) | slices, taints=taints.of(faults)))
    return sorted(found, key=lambda item: item.name)


def _set_name(name: str) -> str:
    return names.shortened(name, "-counter-set")


def _card(model: models.Model) -> Amounts:
    """Return the capacities of a whole card: those of its largest profile."""
    largest = max(model.mig, key=lambda profile: (placing.compute_slices(profile), placing.memory_mib(profile, model)))
    return _amounts(largest, model)


def _amounts(profile: models.MigProfile, model: models.Model) -> Amounts:
    engines = placing.engines(profile, model)
    return {
        "multiprocessors": amount(placing.multiprocessors(profile, model)),
        "copyEngines": amount(engines.copy),
        "decoders": amount(engines.decoders),
        "encoders": amount(engines.encoders),
        "jpegEngines": amount(engines.jpeg),
        "ofaEngines": amount(engines.ofa),
        MEMORY: mebibytes(placing.memory_mib(profile, model)),
    }


def _counters(amounts: Amounts, slices: range) -> dict[str, dict[str, str]]:
    return {_COUNTER_NAMES[name]: value for name, value in amounts.items()} | {
        f"memory-slice-{number}": amount(1) for number in slices
    }
