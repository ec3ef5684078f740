"""Time-slicing of a node's devices, as NVIDIA's device plugin is configured for it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from simgpu.topology import checking
from simgpu.vocabulary import MAX_REPLICAS

_SEPARATOR = "::"


class Replicated(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A resource whose devices are shared: each is offered `replicas` times, as `rename` if that is set."""

    name: str
    replicas: Annotated[int, msgspec.Meta(ge=2, le=MAX_REPLICAS)]
    rename: str = ""
    devices: str = "all"  # the only value that NVIDIA's plugin supports


class TimeSlicing(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which resources are shared; `rename_by_default` appends `.shared` to their names."""

    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False
    resources: tuple[Replicated, ...] = ()

    def of(self, resource: str) -> Replicated | None:
        """Return how a resource is shared; None if it is not."""
        return next((item for item in self.resources if item.name == resource), None)

    def replicas(self, resource: str) -> int:
        """Return how many times each device of a resource is offered."""
        found = self.of(resource)
        return found.replicas if found else 1

    def name(self, resource: str) -> str:
        """Return the name under which a resource is offered."""
        found = self.of(resource)
        if found is None:
            return resource
        return found.rename or (f"{resource}.shared" if self.rename_by_default else resource)


class Sharing(msgspec.Struct, frozen=True, rename="camel"):
    """How devices are shared; time-slicing is the only way."""

    time_slicing: TimeSlicing = TimeSlicing()


NONE = TimeSlicing()


def parse(document: Any, *, field: str) -> TimeSlicing:
    """Return the time-slicing of a `sharing` section; raises `InputError` with the field that is wrong."""
    return checking.converted(document or {}, Sharing, field=field).time_slicing


def replica(device: str, number: int) -> str:
    """Return the id of one replica of a device."""
    return f"{device}{_SEPARATOR}{number}"


def device(name: str) -> str:
    """Return the device of a replica's id, or of its own."""
    return name.partition(_SEPARATOR)[0]
