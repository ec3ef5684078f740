"""How long to wait after a failure: longer each time, up to a limit, and never quite the same."""

from __future__ import annotations

import random

import msgspec

_MOST_DOUBLINGS = 30


class Backoff(msgspec.Struct, frozen=True):
    """Doubling pauses with jitter, so that what failed together does not return together."""

    first_seconds: float = 0.05
    longest_seconds: float = 60.0

    def pause(self, failures: int) -> float:
        """Seconds to wait after this many failures in a row before the present one."""
        doubled = self.first_seconds * 2.0 ** min(failures, _MOST_DOUBLINGS)
        return min(doubled, self.longest_seconds) * random.uniform(0.75, 1.0)
