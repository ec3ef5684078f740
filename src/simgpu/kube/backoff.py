"""Exponential back-off with jitter."""

from __future__ import annotations

import random

import msgspec

_MAX_DOUBLINGS = 30


class Backoff(msgspec.Struct, frozen=True):
    """Doubling pauses; the jitter spreads retries of requests that failed together."""

    first_seconds: float = 0.05  # after the first failure
    max_seconds: float = 60.0  # upper bound of a pause

    def pause(self, failures: int) -> float:
        """Return seconds to wait after a failure that `failures` others in a row preceded."""
        doubled = self.first_seconds * 2.0 ** min(failures, _MAX_DOUBLINGS)
        return min(doubled, self.max_seconds) * random.uniform(0.75, 1.0)
