"""Work that must be finished, and waiting for conditions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from simgpu.kube import errors

T = TypeVar("T")


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Finish the work, ignoring cancellation meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


async def insistent(work: Coroutine[Any, Any, None], warn: Callable[[], None]) -> bool:
    """Finish the work although it is cancelled meanwhile, which leads to a warning; a second time cancels it.

    Return whether it was finished.
    """
    task = asyncio.ensure_future(work)
    warned = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                break
            if warned:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return False
            warned = True
            warn()
    task.result()
    return True


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float, poll_seconds: float = 0.2) -> bool:
    """Wait for a condition. False if it is not met in time; errors of the API meanwhile count as not yet."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while True:
        started = clock()
        with contextlib.suppress(*errors.TRANSIENT):
            if await condition():
                return True
        if clock() >= deadline:
            return False
        # A look at thousands of objects takes CPU time that others need.
        await asyncio.sleep(min(max(poll_seconds, 4 * (clock() - started)), max(0.01, deadline - clock())))
