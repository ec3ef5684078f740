"""The ticker: steps at regular times, by a clock that a test moves."""

from __future__ import annotations

import asyncio

import pytest

from simgpu.machines import ticking
from tests.fixtures.clocks import ManualClock


class Model:
    """Keeps the times of its steps, and takes a while for each."""

    def __init__(self, clock: ManualClock, *busy: float) -> None:
        self.steps: list[float] = []
        self.clocks: list[float] = []
        self._clock = clock
        self._busy = list(busy)

    def step(self, now: float, *, clock: float) -> None:
        self.steps.append(round(now, 2))
        self.clocks.append(clock)
        if self._busy:
            self._clock.now += self._busy.pop(0)


async def ticked(model: Model, clock: ManualClock, count: int, *, since: float = 0.0) -> list[str]:
    """Tick so often; what was called in which order."""
    calls: list[str] = []

    def after() -> None:
        calls.append("after")
        if len(model.steps) == count:
            raise EOFError

    with pytest.raises(EOFError):
        await ticking.tick(model, 1.0, clock, ready=lambda: calls.append("ready"), after=after, since=since)
    return calls


async def test_steps_come_at_regular_times_and_the_first_at_once() -> None:
    clock = ManualClock()
    clock.now, clock.skew = 100.0, 1e9
    model = Model(clock)
    assert await ticked(model, clock, 4) == ["after", "ready", "after", "after", "after"]
    assert model.steps == [0.0, 1.0, 2.0, 3.0]
    assert model.clocks == [1e9 + 100, 1e9 + 101, 1e9 + 102, 1e9 + 103]


async def test_a_step_that_comes_late_is_as_long_as_it_was_late() -> None:
    clock = ManualClock()
    model = Model(clock, 0.0, 0.5, 3.0)
    await ticked(model, clock, 6)
    assert model.steps == [0.0, 1.0, 2.0, 5.0, 6.0, 7.0]


async def test_time_that_has_passed_already_counts() -> None:
    clock = ManualClock()
    model = Model(clock)
    await ticked(model, clock, 2, since=60.0)
    assert model.steps == [60.0, 61.0]


def test_going_ahead_is_as_fine_as_being_watched() -> None:
    model = Model(ManualClock())
    ticking.fast_forward(model, 0.5, wall=1000.0)
    assert model.steps == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert model.clocks[-1] == 1000.0


async def test_ticking_ends_when_it_is_cancelled() -> None:
    clock = ManualClock()
    task = asyncio.create_task(ticking.tick(Model(clock), 1.0, clock))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
