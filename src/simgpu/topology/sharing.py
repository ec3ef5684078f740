"""Time-slicing of a node's devices, as NVIDIA's device plugin is configured for it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from simgpu import errors

_BETWEEN = "::"


class Replicated(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Each device of a resource is offered several times."""

    name: str
    replicas: Annotated[int, msgspec.Meta(ge=2, le=1000)]
    rename: str = ""
    devices: str = "all"  # a form that the real plugin writes; others are not supported by it either


class TimeSlicing(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which resources are shared, and what they are then called."""

    rename_by_default: bool = False
    fail_requests_greater_than_one: bool = False
    resources: tuple[Replicated, ...] = ()

    def of(self, resource: str) -> Replicated | None:
        """What is said of a resource."""
        return next((item for item in self.resources if item.name == resource), None)

    def replicas(self, resource: str) -> int:
        """How often each of its devices is offered."""
        found = self.of(resource)
        return found.replicas if found else 1

    def name(self, resource: str) -> str:
        """What a resource is offered as."""
        found = self.of(resource)
        if found is None:
            return resource
        return found.rename or (f"{resource}.shared" if self.rename_by_default else resource)


NONE = TimeSlicing()


def parse(document: Any, *, field: str) -> TimeSlicing:
    """`sharing` of a configuration; what is wrong is said with its place."""
    try:
        return msgspec.convert(document, dict[str, TimeSlicing]).get("timeSlicing", NONE) if document else NONE
    except msgspec.ValidationError as error:
        problem = str(error).replace("`$.", "`").replace("`$[...].", "`timeSlicing.")
        raise errors.InputError(field, errors.clipped(problem)) from None


def replica(device: str, number: int) -> str:
    """The id of one of the times that a device is offered."""
    return f"{device}{_BETWEEN}{number}"


def device(name: str) -> str:
    """The device behind an id, whether it is shared or not."""
    return name.partition(_BETWEEN)[0]
