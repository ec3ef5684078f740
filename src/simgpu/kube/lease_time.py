"""A time that never goes back, from one leader to the next, whatever happens to the clocks of their machines.

It is the wall clock's, unless that was set back: then it goes on from where it was. Leaders write it into their lease,
and each begins at no earlier time than the one before it reached.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Final

from simgpu.kube.views import Lease

_MAX_AHEAD: Final = 366 * 86400.0  # seconds; a lease of a later time is not believed


class LeaseTime:
    """Seconds since 1970, or more."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._at, self._since = wall(), steady()

    def now(self) -> float:
        """Return the time."""
        steady = self._steady()
        self._at, self._since = max(self._wall(), self._at + steady - self._since), steady
        return self._at

    def utc_now(self) -> datetime.datetime:
        """Return the time as a date."""
        return datetime.datetime.fromtimestamp(self.now(), datetime.UTC)

    def follow(self, lease: Lease) -> None:
        """Go on from where the holder of a lease was: at its last renewal, and as long afterwards as that was valid."""
        try:
            renewed = datetime.datetime.fromisoformat(lease.spec.renew_time or "").timestamp()
        except (ValueError, OverflowError, OSError):
            return
        valid = (lease.spec.lease_duration_seconds or 0) if lease.spec.holder_identity else 0
        now = self.now()
        if now < renewed + valid < now + _MAX_AHEAD:
            self._at = renewed + valid
