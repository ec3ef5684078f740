"""The work queue between "something changed" and "bring it in order".

It holds keys, each at most once. A key that is added while it is worked on is worked on again afterwards, never
at the same time. Keys are served in the order in which they came, so one that changes all the time cannot keep
others waiting. A key whose work failed comes back later, each time later than before.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from simgpu import errors
from simgpu.kube.backoff import Backoff

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """Keys waiting to be worked on."""

    def __init__(
        self,
        backoff: Backoff | None = None,
        *,
        waited: Callable[[float], None] = lambda _seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._waited = waited  # told how long each key waited for its turn
        self._clock = clock
        self._ready: dict[K, float] = {}  # in the order of their coming, and since when
        self._working: set[K] = set()
        self._again: dict[K, float] = {}
        self._later: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait, now or for later."""
        return self.depth + len(self._later)

    @property
    def depth(self) -> int:
        """Keys that wait for their turn now."""
        return len(self._ready) + len(self._again)

    def add(self, key: K) -> None:
        """Work on the key as soon as its turn comes."""
        self._later.pop(key, None)
        if key in self._working:
            self._again.setdefault(key, self._clock())
        else:
            self._line_up(key, self._clock())

    def _line_up(self, key: K, since: float) -> None:
        if key not in self._ready:
            self._ready[key] = since
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Work on the key after a delay, or sooner if something asks for that."""
        if seconds <= 0:
            self.add(key)
            return
        if key in self._ready or key in self._again:
            return
        due = asyncio.get_running_loop().time() + seconds
        if due < self._later.get(key, float("inf")):
            self._later[key] = due
            self._sequence += 1
            heapq.heappush(self._heap, (due, self._sequence, key))
            self._wake.set()

    def failures(self, key: K) -> int:
        """How often in a row the key's work failed."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key; it is yours until `done`."""
        while True:
            now = asyncio.get_running_loop().time()
            self._promote(now)
            if self._ready:
                key = next(iter(self._ready))
                self._waited(self._clock() - self._ready.pop(key))
                self._working.add(key)
                if self._ready:
                    self._wake.set()  # there is more: another worker may go on
                return key
            self._wake.clear()
            timeout = self._heap[0][0] - now if self._heap else None
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def done(self, key: K, *, failed: bool = False) -> None:
        """The work on a key is over; a failed one comes back after its back-off."""
        self._working.discard(key)
        if failed:
            count = self._failures.get(key, 0)
            self._failures[key] = count + 1
            self._again.pop(key, None)  # what came meanwhile waits with it
            self.add_after(key, self._backoff.pause(count))
            return
        self._failures.pop(key, None)
        if key in self._again:
            self._line_up(key, self._again.pop(key))

    async def run(self, work: Callable[[K], Awaitable[float | None]], *, workers: int = 1) -> None:
        """Work on keys until cancelled. Seconds that `work` returns ask for the key again after them."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    async def _worker(self, work: Callable[[K], Awaitable[float | None]]) -> None:
        while True:
            key = await self.get()
            try:
                again = await work(key)
            except asyncio.CancelledError:
                if _cancelling():
                    self.done(key)
                    self.add(key)  # unfinished: whoever runs the queue next goes on with it
                    raise
                self.done(key, failed=True)
                _log.warning("%s was cancelled from within", key)
            except Exception as error:  # noqa: BLE001 - whatever it is, the key comes back and the others go on
                self.done(key, failed=True)
                level = logging.WARNING if self.failures(key) > 3 else logging.INFO
                _log.log(level, "%s failed %d times: %s", key, self.failures(key), error, exc_info=_unexpected(error))
            else:
                self.done(key)
                if again is not None:
                    self.add_after(key, again)

    def _promote(self, now: float) -> None:
        """Move keys whose time has come; entries that were overtaken are passed over."""
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._later.get(key) == due:
                self.add(key)
        if len(self._heap) > 2 * len(self._later) + 64:
            self._heap = [entry for entry in self._heap if self._later.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)


def _cancelling() -> bool:
    """Whether it is us who are to stop, and not only something that the work waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _unexpected(error: Exception) -> bool:
    """Our own errors say what happened; for others the place matters."""
    return not isinstance(error, errors.SimgpuError)
