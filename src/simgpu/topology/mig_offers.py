"""What pods can request of a node whose cards are divided: which GPUs and MIG instances are which resource.

The strategies are those of NVIDIA's device plugin. `none` knows only whole cards. `single` offers instances as if they
were GPUs, if all cards are divided into instances of one profile, and nothing otherwise. `mixed` offers cards that are
not divided as GPUs, and instances by their profile.
"""

from __future__ import annotations

import msgspec

from simgpu.catalog import models, placing
from simgpu.topology import mig_layouts
from simgpu.topology.devices import Device
from simgpu.topology.mig_layouts import CardLayout
from simgpu.topology.pools import NodeGpus
from simgpu.vocabulary import GPU_RESOURCE, MIG_NONE, MIG_SINGLE


class OfferedDevice(msgspec.Struct, frozen=True, gc=False):
    """A GPU of a node, by index, or one of its MIG instances, by number, with its profile."""

    gpu: int
    part: int | None = None
    profile: models.MigProfile | None = None


NumberedInstance = tuple[int, int, models.MigProfile]  # first slice, number, profile
Offers = dict[str, tuple[OfferedDevice, ...]]  # by resource

_MAX_KEPT = 64
_offered: dict[tuple[int, str], tuple[NodeGpus, Offers]] = {}  # of pools, which many nodes share


def offered(spec: NodeGpus, strategy: str) -> Offers:
    """Return what a node offers, by resource, in the order of cards and of slices on a card; not to be changed."""
    key = id(spec), strategy
    known = _offered.get(key)
    if known is None or known[0] is not spec:
        if len(_offered) >= _MAX_KEPT:
            _offered.clear()
        known = _offered[key] = spec, _of(spec, strategy)
    return known[1]


def _of(spec: NodeGpus, strategy: str) -> Offers:
    if strategy == MIG_NONE or not spec.divided:
        return {GPU_RESOURCE: tuple(OfferedDevice(index) for index in range(len(spec.gpus)))} if spec.gpus else {}
    if strategy == MIG_SINGLE:
        return {GPU_RESOURCE: tuple(_instances(spec))} if single_profile(spec) is not None else {}
    found: dict[str, list[OfferedDevice]] = {}
    for index, gpu in enumerate(spec.gpus):
        if not gpu.layout.enabled:
            found.setdefault(GPU_RESOURCE, []).append(OfferedDevice(index))
    for item in _instances(spec):
        if item.profile is not None:
            found.setdefault(mig_layouts.resource_name(item.profile.name), []).append(item)
    return {name: tuple(items) for name, items in found.items()}


def other_names(spec: NodeGpus, strategy: str) -> set[str]:
    """Return the names of resources, besides that of GPUs, under which a node offers GPUs and MIG instances."""
    if not spec.slicing.resources and not spec.divided:
        return set()
    names = offered(spec, strategy) if spec.divided else (GPU_RESOURCE,)
    return {spec.slicing.name(name) for name in names} - {GPU_RESOURCE}


def single_profile(spec: NodeGpus) -> models.MigProfile | None:
    """Return the profile of all instances of a node; None if they differ, or if a card is whole or has none."""
    profiles = {profile.name: profile for gpu in spec.gpus for profile in gpu.layout.instances}
    complete = all(gpu.layout.instances for gpu in spec.gpus)
    return next(iter(profiles.values())) if complete and len(profiles) == 1 else None


def numbered_on(device: Device) -> list[NumberedInstance]:
    """Return the MIG devices that a card has, by its layout or because claims hold them, in the order of slices."""
    found = [(place.start, place.number, profile) for place, profile in device.mig_devices()]
    return sorted(found, key=lambda item: item[0])


def numbered(layout: CardLayout, model: models.Model) -> list[NumberedInstance]:
    """Return first slice, number and profile of each instance of a card, in the order of slices."""
    pairs = zip(layout.starts, layout.instances, strict=True)
    return [(start, placing.placed(profile, model, start).number, profile) for start, profile in pairs]


def _instances(spec: NodeGpus) -> list[OfferedDevice]:
    return [
        OfferedDevice(index, number, profile)
        for index, gpu in enumerate(spec.gpus)
        for _, number, profile in numbered(gpu.layout, gpu.model)
    ]
