"""The work queue between events and reconciliation.

It holds keys, deduplicated. A key that is added while it is being processed is processed again afterwards, never
concurrently. Keys are processed in order of arrival, so a key that changes all the time cannot starve others. A key
whose work failed is retried with back-off.

Work that waits for nothing is done in turns of some milliseconds: fewer keys in a turn of the event loop would let a
busy server, whose requests all have their turn each time, starve the queue; more would make others wait.
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

_TURN_SECONDS = 0.005

_log = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """Keys waiting to be processed."""

    def __init__(
        self,
        backoff: Backoff | None = None,
        *,
        waited: Callable[[float], None] = lambda _seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._waited = waited  # called with the seconds that each key waited
        self._clock = clock
        self._ready: dict[K, float] = {}  # in order of arrival, with the time of arrival
        self._working: set[K] = set()
        self._again: dict[K, float] = {}
        self._later: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._failures: dict[K, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Return how many keys wait, delayed ones included."""
        return self.depth + len(self._later)

    @property
    def depth(self) -> int:
        """How many keys wait, without delayed ones."""
        return len(self._ready) + len(self._again)

    def add(self, key: K) -> None:
        """Enqueue a key."""
        self._later.pop(key, None)
        if key in self._working:
            self._again.setdefault(key, self._clock())
        else:
            self._append(key, self._clock())

    def _append(self, key: K, since: float) -> None:
        if key not in self._ready:
            self._ready[key] = since
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Enqueue a key after a delay; another add may make it sooner."""
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
        """Return how many times in a row a key's work failed."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Wait for the next key and return it; nothing else processes it until `done`."""
        while True:
            now = asyncio.get_running_loop().time()
            self._promote(now)
            if self._ready:
                key = next(iter(self._ready))
                self._waited(self._clock() - self._ready.pop(key))
                self._working.add(key)
                if self._ready:
                    self._wake.set()  # wake another worker for the rest
                return key
            self._wake.clear()
            timeout = self._heap[0][0] - now if self._heap else None
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def done(self, key: K, *, failed: bool = False) -> None:
        """Finish a key; a failed one is enqueued again after its back-off."""
        self._working.discard(key)
        if failed:
            count = self._failures.get(key, 0)
            self._failures[key] = count + 1
            self._again.pop(key, None)  # an add meanwhile waits for the back-off too
            self.add_after(key, self._backoff.pause(count))
            return
        self._failures.pop(key, None)
        if key in self._again:
            self._append(key, self._again.pop(key))

    async def run(self, work: Callable[[K], Awaitable[float | None]], *, workers: int = 1) -> None:
        """Process keys until cancelled. If `work` returns seconds, the key is enqueued again after them."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    async def _worker(self, work: Callable[[K], Awaitable[float | None]]) -> None:
        since = self._clock()
        while True:
            if self._clock() - since >= _TURN_SECONDS:
                await asyncio.sleep(0)
                since = self._clock()
            key = await self.get()
            try:
                again = await work(key)
            except asyncio.CancelledError:
                if _cancelling():
                    self.done(key)
                    self.add(key)  # unfinished: left for the next `run`
                    raise
                self.done(key, failed=True)
                _log.warning("%s: its work was cancelled", key)
            except Exception as error:  # noqa: BLE001 - any failure retries the key and must not stop others
                self.done(key, failed=True)
                level = logging.WARNING if self.failures(key) > 3 else logging.INFO
                _log.log(level, "%s failed %d times: %s", key, self.failures(key), error, exc_info=_unexpected(error))
            else:
                self.done(key)
                if again is not None:
                    self.add_after(key, again)

    def _promote(self, now: float) -> None:
        """Enqueue delayed keys that are due; outdated heap entries are skipped."""
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._later.get(key) == due:
                self.add(key)
        if len(self._heap) > 2 * len(self._later) + 64:
            self._heap = [entry for entry in self._heap if self._later.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)


def _cancelling() -> bool:
    """Return whether this task itself is cancelled, and not only something that the work awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _unexpected(error: Exception) -> bool:
    """Return whether to log a traceback: our own errors have a message that is enough."""
    return not isinstance(error, errors.SimgpuError)
