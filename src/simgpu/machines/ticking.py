"""Steps a box or a fleet at regular times. The clock is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_STEPS_AHEAD = 10  # per second, when fast-forwarding


class Clock(Protocol):
    """A steady clock, which waits use, and the wall clock, which may be set at any time; both in seconds."""

    def steady(self) -> float:
        """Return seconds of a monotonic clock."""

    def wall(self) -> float:
        """Return seconds since 1970."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the task for these seconds."""


class Stepped(Protocol):
    """A simulation that runs in steps."""

    def step(self, now: float, *, clock: float) -> None:
        """Simulate up to `now`, in seconds since the start; `clock` is in seconds since 1970."""


def fast_forward(model: Stepped, seconds: float, *, wall: float) -> None:
    """Simulate that many seconds at once, which end at the time `wall`, in steps of a tenth of a second."""
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
    """Step every `interval` seconds until cancelled; a late step covers all the time since the last.

    `after` is called after each step, `ready` after the first. `since` are the seconds simulated already.
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
