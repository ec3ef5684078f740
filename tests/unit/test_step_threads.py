"""Jobs on several threads."""

from __future__ import annotations

import pytest

from simgpu.app.step_threads import StepThreads
from simgpu.catalog import models
from simgpu.sim import activity, cards, engine

H200 = models.load().models["h200"]


@pytest.mark.parametrize("count", [1, 3])
def test_all_jobs_are_done_when_it_returns(count: int) -> None:
    done: list[int] = []
    StepThreads(count)([lambda number=number: done.append(number) for number in range(20)])  # type: ignore[misc]
    assert sorted(done) == list(range(20))


def test_a_job_that_fails_is_reported() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        StepThreads(2)([lambda: None, fail])


@pytest.mark.parametrize("compiled", [True, False])
def test_cards_give_the_same_bytes_on_any_number_of_threads(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(parallel: cards.Parallel) -> bytes:
        made = engine.Engine(seed=2, compiled=compiled, parallel=parallel)
        ids = made.add_cards(H200, 1000)
        load = activity.Activity({"usage": activity.Value(0.2, 1.0, period=0.5), "sm": activity.constant(0.8)})
        made.add_workload(activity.Profile("w", (load,), repeat=0), ids[:900])
        for _ in range(5):
            made.step(made.now + 0.5)
        return made.snapshot()

    whole = play(cards.in_turn)
    monkeypatch.setattr(cards, "_PIECE", 77)
    assert play(StepThreads(3)) == whole
