"""Repeats requests to an API server that may be busy, and repeats looks until a condition is met.

Whether programs still run is checked in between, by the control plane.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from simgpu import errors
from simgpu.cluster.progress import Progress
from simgpu.kube import errors as kube_errors
from simgpu.kube import parallel

T = TypeVar("T")
SERVED_SECONDS = 120.0  # that a request is repeated
MAX_PAUSE_SECONDS = 30.0  # between checks of what takes the server long to list
_POLL_SECONDS = 0.05
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.5, 2.0  # between requests that fail
# The requests are idempotent, so that one whose object was changed meanwhile is made again, too.
_RETRIABLE = (*kube_errors.TRANSIENT, kube_errors.Conflict)
_ITEM = "requests"


class Requests:
    """Idempotent requests to an API server, repeated until it serves them."""

    def __init__(
        self, progress: Progress, *, check: Callable[[], None], unserved: Callable[[str], errors.SimgpuError]
    ) -> None:
        """Make none yet; `check` raises if a program has ended, `unserved` makes the error for a reason."""
        self._progress = progress
        self._check = check
        self._unserved = unserved
        self._failing = 0  # requests that are not served now

    async def until_served(self, request: Callable[[], Awaitable[T]]) -> T:
        """Make requests until the API server serves them. The timeout counts from the first failure."""
        clock = asyncio.get_running_loop().time
        started, deadline, failing, pause = clock(), math.inf, False, _RETRY_SECONDS
        try:
            while True:
                try:
                    answer = await request()
                except kube_errors.AlreadyExists:
                    raise
                except _RETRIABLE as error:
                    self._check()
                    deadline = min(deadline, clock() + SERVED_SECONDS)
                    if clock() >= deadline:
                        reason = f"did not serve a request in {clock() - started:.0f} s: {error}"
                        raise self._unserved(reason) from error
                    if not failing:
                        failing = True
                        self._failing += 1
                        if self._failing == 1:
                            self._progress.update(_ITEM, f"not served yet: {error}")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_RETRY_SECONDS)
                else:
                    if failing and self._failing == 1:
                        self._progress.done(_ITEM, "served")
                    return answer
        finally:
            self._failing -= failing

    async def each_served(
        self, items: Iterable[T], request: Callable[[T], Awaitable[object]], *, in_flight: int = parallel.IN_FLIGHT
    ) -> None:
        """Make a request for each item, so many at a time, each until it is served."""
        await parallel.each(
            items, lambda item: self.until_served(functools.partial(request, item)), in_flight=in_flight
        )

    async def met(
        self,
        condition: Callable[[], Awaitable[bool]],
        *,
        seconds: float,
        reached: Callable[[], int],
        max_pause: float = MAX_PAUSE_SECONDS,
    ) -> bool:
        """Wait for a condition, and return whether it was met in time.

        The timeout is `seconds`; it restarts whenever the count that `reached` returns grows. The time of requests that
        fail does not count: they have a timeout of their own.
        """
        clock = asyncio.get_running_loop().time
        before, deadline, took = reached(), clock() + seconds, 0.0

        async def timed() -> bool:
            nonlocal took
            began = clock()
            try:
                return await condition()
            finally:
                took = clock() - began

        while True:
            began = clock()
            if await self.until_served(timed):
                return True
            deadline += clock() - began - took
            self._check()
            if reached() > before:
                before, deadline = reached(), clock() + seconds
            elif clock() > deadline:
                return False
            # Listing thousands of nodes takes CPU time that the component needs.
            await asyncio.sleep(min(max(_POLL_SECONDS, 4 * took), max_pause))
