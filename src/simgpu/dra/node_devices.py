"""All DRA devices of a node: whole GPUs, MIG devices, counters; and which GPU each device's name stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from simgpu.catalog import models, placing
from simgpu.dra import counters, devices, names
from simgpu.dra.devices import CounterSet, PublishedDevice
from simgpu.machines import health
from simgpu.topology import pools
from simgpu.topology.devices import Device
from simgpu.vocabulary import MAX_MEMORY_MIB, MAX_NAME

Faults = Mapping[str, health.DeviceFaults]  # by GPU id; those not listed are healthy


class NodeDevices(msgspec.Struct, frozen=True):
    """The devices of each GPU, in the order of PCI addresses, and the counters of GPUs that can be divided."""

    groups: tuple[tuple[PublishedDevice, ...], ...] = ()
    counters: tuple[CounterSet, ...] = ()


class MigPart(msgspec.Struct, frozen=True, gc=False):
    """A MIG instance of a GPU: its profile, its first memory slice, its number, and its memory."""

    profile: Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
    start: Annotated[int, msgspec.Meta(ge=0, le=7)]
    number: Annotated[int, msgspec.Meta(ge=0, le=14)]
    memory_mib: Annotated[int, msgspec.Meta(ge=1, le=MAX_MEMORY_MIB)]


class DevicePlace(msgspec.Struct, frozen=True, gc=False):
    """What a device's name stands for: a GPU by id, or a MIG instance of it."""

    gpu: str
    part: MigPart | None = None

    def overlaps(self, other: DevicePlace) -> bool:
        """Return whether another device has memory of the same GPU in common with it; a whole GPU has all of it."""
        if self.gpu != other.gpu or self == other:
            return False
        if self.part is None or other.part is None:
            return True
        return not set(placing.slices_of(self.part.number)).isdisjoint(placing.slices_of(other.part.number))


def of_node(gpus: Sequence[Device], spec: pools.NodeGpus, faults: Faults, *, counted: bool = True) -> NodeDevices:
    """Return what a node publishes. The scheduler takes the first device that matches, so their order matters.

    A GPU that is divided already is published as its MIG instances. Unless counters are `counted`, a GPU that claims
    could divide is published whole: devices that overlap could be allocated at the same time.
    """
    titles = names.of_gpus(device.uuid for device in gpus)
    versions = {"driver": spec.driver_version, "cuda": spec.cuda_version}
    groups, sets = [], []
    for device in sorted(gpus, key=lambda device: device.pci_bus_id):
        title, wrong = titles[device.uuid], faults.get(device.uuid, health.HEALTHY)
        gpu = devices.whole(device, title, options=spec.allocation.options, faults=wrong, **versions)
        dynamic = spec.allocation.options.dynamic_mig and bool(device.model.mig)
        if dynamic and counted:
            parts = counters.instances(device, title, faults=wrong, **versions)
            groups.append((counters.divisible(gpu, device), *parts))
            sets.append(counters.counter_set(device, title))
        elif device.mig_mode and not dynamic:
            groups.append(tuple(counters.static_instances(device, title, faults=wrong, **versions)))
        else:
            groups.append((gpu,))
    return NodeDevices(tuple(groups), tuple(sets))


def places(gpus: Sequence[Device], spec: pools.NodeGpus) -> dict[str, DevicePlace]:
    """Return what each device name of a node stands for."""
    titles = names.of_gpus(device.uuid for device in gpus)
    dynamic, found = spec.allocation.options.dynamic_mig, dict[str, DevicePlace]()
    for device in gpus:
        title, parts = titles[device.uuid], list[tuple[str, models.MigProfile, int]]()
        if dynamic or not device.mig_mode:
            found[title] = DevicePlace(device.uuid)
        if dynamic:
            parts = list(counters.placements(device, title))
        elif device.mig_mode:
            pairs = device.mig_devices()
            parts = [(names.of_mig(title, profile, place.start), profile, place.start) for place, profile in pairs]
        for name, profile, start in parts:
            number, memory = placing.placed(profile, device.model, start).number, _memory_mib(profile, device)
            found[name] = DevicePlace(device.uuid, MigPart(profile.name, start, number, memory))
    return found


def _memory_mib(profile: models.MigProfile, device: Device) -> int:
    return min(placing.memory_mib(profile, device.model), device.model.memory_mib.usable)
