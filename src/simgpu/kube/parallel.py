"""Many requests at a time, of which the first that fails ends the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from simgpu.errors import SimgpuError
from simgpu.kube import errors

T = TypeVar("T")
IN_FLIGHT = 32


async def each(items: Iterable[T], work: Callable[[T], Awaitable[object]], *, in_flight: int = IN_FLIGHT) -> None:
    """Do work for each item, so many at a time; the first failure cancels the rest and is raised."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    # Not `except*`: what is raised in it becomes a group before Python 3.11.4.
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise first(failures) from None


def first(failures: BaseException) -> BaseException:
    """Return the first error of a group; errors that are not ours come first, then those of the API."""
    while isinstance(failures, BaseExceptionGroup):
        known = failures.subgroup(_unexpected) or failures.subgroup(errors.KubeError)
        failures = (known or failures).exceptions[0]
    return failures


def _unexpected(error: BaseException) -> bool:
    return not isinstance(error, (BaseExceptionGroup, SimgpuError))
