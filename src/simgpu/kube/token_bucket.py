"""A token bucket: how often something may be done, on average and in a burst."""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """`per_second` tokens, or as many as that returns at the time, and at most `burst` of them."""

    def __init__(self, per_second: float | Callable[[], float], burst: int) -> None:
        self._per_second = per_second
        self._burst = float(max(burst, 1))
        self._tokens = self._burst
        self._at: float | None = None

    def wait(self, now: float) -> float:
        """Return seconds until a token is available."""
        rate = self._per_second() if callable(self._per_second) else self._per_second
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * rate)
        self._at = now
        return 0.0 if self._tokens >= 1.0 - 1e-9 else (1.0 - self._tokens) / rate

    def take(self, now: float) -> None:
        """Take a token."""
        self.wait(now)
        self._tokens -= 1.0

    def give_back(self) -> None:
        """Give a token back that was not needed."""
        self._tokens = min(self._burst, self._tokens + 1.0)
