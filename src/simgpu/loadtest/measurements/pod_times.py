"""When pods were created, scheduled and running, as a watch saw it.

Times are those at which events were received. A pod is kept only until it runs; of those that ran, numbers are.
"""

from __future__ import annotations

import array
import time
from collections.abc import Callable
from typing import Any

import msgspec

from simgpu.kube.store import Change
from simgpu.loadtest.watched import WatchedPod


class _Pending(msgspec.Struct):
    created: float
    scheduled: float = 0.0


class Started(msgspec.Struct, frozen=True):
    """Times of a pod that runs, in seconds since the epoch."""

    created: float
    scheduled: float
    running: float
    stateless: bool


class PodTimes:
    """A listener of a store of pods. Pods that were scheduled before it began to listen are left out."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.created_total = 0
        self.scheduled_total = 0
        self.scheduled_at = array.array("d")
        self._clock = clock
        self._pending: dict[str, _Pending] = {}
        self._created, self._scheduled, self._running = (array.array("d") for _ in range(3))
        self._stateless = array.array("b")
        self._live = False

    def begin(self) -> None:
        """Count pods that appear from now on; those before were there when it started."""
        self._live = True

    def __len__(self) -> int:
        return len(self._running)

    def __call__(self, change: Change[Any]) -> None:
        """Take note of a change."""
        pod: WatchedPod | None = change.new
        if pod is None:
            if change.old is not None:
                self._pending.pop(change.old.metadata.uid, None)
            return
        if change.old is None:
            if not self._live or pod.node:
                return
            self.created_total += 1
            self._pending[pod.metadata.uid] = _Pending(self._clock())
        pending = self._pending.get(pod.metadata.uid)
        if pending is None:
            return
        now = self._clock()
        if pod.node and not pending.scheduled:
            pending.scheduled = now
            self.scheduled_total += 1
            self.scheduled_at.append(now)
        if pod.phase == "Running" or pod.ended:
            del self._pending[pod.metadata.uid]
            self._append(pending, now, stateless=pod.stateless)

    def _append(self, pending: _Pending, now: float, *, stateless: bool) -> None:
        self._created.append(pending.created)
        self._scheduled.append(pending.scheduled or now)
        self._running.append(now)
        self._stateless.append(stateless)

    def started(self) -> list[Started]:
        """Return the times of all pods that ran."""
        rows = zip(self._created, self._scheduled, self._running, self._stateless, strict=True)
        return [Started(created, scheduled, running, bool(kind)) for created, scheduled, running, kind in rows]

    def latencies(self, last: int) -> list[float]:
        """Return the seconds from creation to running of the last pods that ran."""
        return [end - start for start, end in zip(self._created[-last:], self._running[-last:], strict=True)]

    def points(self, first: int = 0) -> list[tuple[float, float]]:
        """Return when each pod ran and how long that took, from a place in the order on."""
        pairs = zip(self._created[first:], self._running[first:], strict=True)
        return [(end, end - start) for start, end in pairs]
