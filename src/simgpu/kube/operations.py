"""Pending requests to write an object, and how they are joined into fewer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from simgpu.kube import errors, patches
from simgpu.kube.patches import Patch
from simgpu.kube.resources import Resource

Render = Callable[[], Patch | None]  # makes a body when it is about to be sent; None: there is nothing to write
Failed = Callable[[errors.KubeError], None]


class Target(msgspec.Struct, frozen=True):
    """The object, or sub-resource of it, that is written."""

    resource: Resource[Any]
    name: str
    namespace: str = ""
    subresource: str = ""

    @property
    def object(self) -> Target:
        """The object itself, without a sub-resource."""
        return msgspec.structs.replace(self, subresource="") if self.subresource else self


class Operation(msgspec.Struct):
    """A pending request; `failed` is called if it fails for good. With `render`, its body is made when it is sent."""

    kind: Literal["merge", "apply", "delete"]
    subresource: str
    body: Patch
    failed: list[Failed]
    render: Render | None = None


def add_operation(waiting: list[Operation], operation: Operation) -> None:
    """Add an operation to the pending ones, joining it with the last one if possible.

    A delete drops all before it. A merge is joined with a merge, and an apply replaces an apply, if that was the last
    operation on the same sub-resource.
    """
    if operation.kind == "delete":
        for void in waiting:
            operation.failed += void.failed
        waiting[:] = [operation]
        return
    last = next((item for item in reversed(waiting) if item.subresource == operation.subresource), None)
    if last is None or last.kind != operation.kind:
        waiting.append(operation)
        return
    body = operation.body if operation.kind == "apply" else patches.fold(last.body, operation.body)
    if body is None:
        waiting.append(operation)
        return
    last.body, last.render = body, operation.render
    last.failed += operation.failed
