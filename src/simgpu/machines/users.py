"""Users of a device: containers of pods, with the share and utilisation of each."""

from __future__ import annotations

from typing import Annotated

import msgspec

from simgpu.catalog.facts import Count, Number, Percent, Share
from simgpu.sim import activity


class PodRef(msgspec.Struct, frozen=True, gc=False):
    """A pod by name, and one of its containers."""

    name: str
    namespace: str = ""
    container: str = ""
    uid: str = ""


class Range(msgspec.Struct, frozen=True, gc=False):
    """Utilisation in percent, both ends included."""

    low: Percent
    high: Percent


NONE = Range(0, 0)
ALL = Range(100, 100)
ANY = Range(0, 100)


class CpuSource(msgspec.Struct, frozen=True, gc=False):
    """A container whose CPU time drives the utilisation of its devices.

    `pod` is the uid by which the kubelet knows its pod, `container` its id, `cores` the processors that count as 100 %.
    """

    pod: str
    container: str
    cores: Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]


class Plan(msgspec.Struct, frozen=True):
    """What a container does on each of its devices since `started`, in seconds since 1970."""

    profile: activity.Profile
    started: Number = 0.0

    def __hash__(self) -> int:
        return hash((self.profile.name, self.started))  # the profile itself holds mappings


class User(msgspec.Struct, frozen=True, gc=False):
    """A container that has a device or part of its time.

    `share` is the part of the device's memory that it takes, from 0 to 1, and `memory_mib` the same in MiB. One that
    `reserves` the device holds it for others. A `cpu` source or a `plan` sets the utilisation; `utilization` is then
    the range in which it is. With `full_load` its requests set it: that many a second are 100 %. With a `part` it has
    that MIG instance of the device, by number, and `share` and utilisation are those of the instance.
    """

    pod: PodRef
    utilization: Range = NONE
    memory_mib: Count = 0
    share: Share = 1.0
    reserves: bool = False
    cpu: CpuSource | None = None
    plan: Plan | None = None
    full_load: Annotated[float, msgspec.Meta(ge=0.0, le=1e15)] = 0.0
    part: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The container: its pod's uid, and its name."""
        return self.pod.uid, self.pod.container
