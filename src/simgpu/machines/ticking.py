"""The ticker: steps a box or a fleet at regular times. The clock is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_STEPS_AHEAD = 10  # in a second that nobody watches


class Clock(Protocol):
    """Waits go by the steady clock, in seconds. The wall clock is shared with others, and may be set at any time."""

    def steady(self) -> float:
        """Seconds of a clock that only grows."""

    def wall(self) -> float:
        """Seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class Stepped(Protocol):
    """What moves on in steps."""

    def step(self, now: float, *, clock: float) -> None:
        """Move on to `now`, in seconds since it began; `clock` is the time of day."""


def go_ahead(model: Stepped, seconds: float, *, wall: float) -> None:
    """Let that many seconds pass before anybody looks, up to a time of day, in steps of a tenth of a second."""
    for step in range(1, round(seconds * _STEPS_AHEAD) + 1):
        model.step(step / _STEPS_AHEAD, clock=wall - seconds + step / _STEPS_AHEAD)


async def tick(
    model: Stepped,
    interval: float,
    clock: Clock,
    *,
    ready: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
    since: float = 0.0,
) -> None:
    """Step every `interval` seconds until cancelled; a step that comes late is as long as it was late.

    `after` is called after each step, `ready` after the first. `since` is how many seconds have passed already.
    """
    start = clock.steady() - since
    due = clock.steady()
    model.step(since + 1e-3, clock=clock.wall())
    after()
    ready()
    while True:
        due = max(due + interval, clock.steady())
        await clock.sleep(due - clock.steady())
        model.step(clock.steady() - start + 1e-3, clock=clock.wall())
        after()
