"""How many views may be written per second: fewer while many pods come and go, which users may be measuring."""

from __future__ import annotations

import math
from collections.abc import Callable

from simgpu.machines.ticking import Clock

MIN_WRITES = 5.0  # per second, however many pods come and go
_WRITES_PER_CHANGE = 2.0  # that make way for it: seven pods a second, with three each, leave the least number
_MEMORY_SECONDS = 2.0


class ViewBudget:
    """`most` writes per second, less some for each change of a pod; the least while others, who go first, are busy."""

    def __init__(self, most: float, clock: Clock, *, others_busy: Callable[[], bool] = lambda: False) -> None:
        self._most = most
        self._clock = clock
        self._others_busy = others_busy
        self._changes = 0.0  # per second, as a decaying mean
        self._at = clock.steady()

    def pod_changed(self) -> None:
        """Count a change of a pod."""
        self._decay()
        self._changes += 1 / _MEMORY_SECONDS

    def per_second(self) -> float:
        """Return how many writes per second are allowed now."""
        self._decay()
        most = MIN_WRITES if self._others_busy() else self._most
        return max(MIN_WRITES, most - self._changes * _WRITES_PER_CHANGE)

    def _decay(self) -> None:
        now = self._clock.steady()
        self._changes *= math.exp((self._at - now) / _MEMORY_SECONDS)
        self._at = now
