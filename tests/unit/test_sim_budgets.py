"""What workloads cost: however short their activities and however many there are, a step has its bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.machines.fleet import Fleet
from simgpu.sim import activity, demands, engine, group, limits, workloads
from tests.fixtures.equipment import equipment

H200, T4 = (models.load().models[key] for key in ("h200", "t4"))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A time for each activity that begins."""
    found: list[float] = []
    begin = demands.Demands.begin

    def counted(self: demands.Demands, *args: Any, **more: Any) -> None:
        found.append(more["now"])
        begin(self, *args, **more)

    monkeypatch.setattr(demands.Demands, "begin", counted)
    return found


def profile(*seconds: float, repeat: int = 0) -> activity.Profile:
    """Activities as long as that, one after another, busy and not in turns."""
    used = (activity.constant(float(number % 2 == 0)) for number in range(len(seconds)))
    made = (activity.Activity({"usage": usage}, seconds=long) for usage, long in zip(used, seconds, strict=True))
    return activity.Profile("w", tuple(made), repeat=repeat)


def test_guests_that_change_all_the_time_hold_up_neither_the_step_nor_others(begun: list[float]) -> None:
    made = engine.Engine(seed=1)
    *shared, mine = made.add_cards(H200, 3, spread=0.0)
    for number in range(20 * 64):
        short = [0.01 + number % 64 / 10_000] * 16
        made.add_workload(profile(*short), [shared[number % 2]], owner=f"pod {number % 20}")
    made.add_workload(profile(2.0, 2.0), [mine], owner="quiet")
    busy = []
    for step in range(1, 17):
        begun.clear()
        made.step(step / 2)
        assert len(begun) <= workloads.MAX_CHANGES_IN_ALL + 21 * workloads.GUARANTEED_CHANGES
        busy.append(round(float(made.read("usage", [mine])[0])) > 50)
    assert busy == [step % 8 in range(1, 5) for step in range(1, 17)]


def test_one_guest_changes_activities_only_so_often_in_a_step(begun: list[float]) -> None:
    made = engine.Engine(seed=1)
    (card,) = made.add_cards(H200, spread=0.0)
    for _ in range(64):
        made.add_workload(profile(*[0.01] * 64), [card], owner="pod a")
    for step in range(1, 5):
        begun.clear()
        made.step(step / 2)
        assert 0 < len(begun) <= vocabulary.MAX_CHANGES


def test_limits_that_nobody_is_past_are_looked_at_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[float] = []
    reached = limits.WorkloadLimits.reached

    def counted(self: limits.WorkloadLimits, *args: Any, **more: Any) -> str | None:
        looked.append(more["runtime"])
        return reached(self, *args, **more)

    monkeypatch.setattr(limits.WorkloadLimits, "reached", counted)
    made = engine.Engine(seed=1)
    cards = [*made.add_cards(H200, 2, spread=0.0), *made.add_cards(T4, 1, spread=0.0)]
    for number in range(300):
        busy = activity.Activity({"usage": activity.constant(0.01 if number % 100 else 0.9)}, seconds=100.0)
        bounds = {"usage": 0.5, "runtime": 20.0 + number}
        on = cards[:2] if number % 3 else cards[2:]
        made.add_workload(activity.Profile(f"{number}", (busy,), limits=bounds), on, owner="pod a")
    ended = made.step(1.0)
    assert [(item.name, item.message) for item in ended] == [
        (name, "Limit usage reached, terminated") for name in ("0", "100", "200")
    ]
    assert len(looked) == 3
    assert [(item.name, item.message) for step in (10.0, 21.0) for item in made.step(step)] == [
        ("1", "Limit runtime reached, terminated")
    ]
    assert len(looked) == 4


@pytest.mark.parametrize(
    ("make", "pieces"),
    [
        (lambda _folder: engine.Engine(seed=1), 51),
        (lambda folder: equipment(folder).box.engine, 6),
        (lambda _folder: Fleet(seed=1).engine, 1),
    ],
)
def test_activities_split_a_step_of_many_cards_into_few_pieces_and_keep_their_time(
    begun: list[float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    make: Callable[[Path], engine.Engine],
    pieces: int,
) -> None:
    made, taken, step = make(tmp_path), list[float](), group.Group.step

    def counted(self: group.Group, start: float, now: float, rng: np.random.Generator) -> None:
        taken.append(now - start)
        step(self, start, now, rng)

    monkeypatch.setattr(group.Group, "step", counted)
    slow, quick = made.add_cards(H200, 2, spread=0.0)
    made.add_workload(profile(0.7, 0.7), [slow], owner="pod a")
    begun.clear()
    for at in range(1, 5):
        made.step(at * 0.503)
    assert begun == pytest.approx([0.7, 1.4])
    made.add_workload(profile(*[0.01] * 64), [quick], owner="pod b")
    for at in range(5, 9):
        taken.clear()
        made.step(at * 0.503)
        assert abs(len(taken) - pieces) <= pieces // 6


def test_after_a_gap_a_workload_does_what_it_would_be_doing_by_then(begun: list[float]) -> None:
    made = engine.Engine(seed=1)
    (card,) = made.add_cards(H200, spread=0.0)
    made.add_workload(profile(*[0.01] * 1000, 3.0, 7.0), [card])
    begun.clear()
    made.step(20 * 20 + 12.0)
    assert len(begun) < 1000
    assert begun[-1] == pytest.approx(20 * 20 + 10.0)


@pytest.mark.parametrize("seconds", [0.5, 3000.0])
def test_a_workload_ends_when_its_repeats_are_over_however_time_passes(seconds: float) -> None:
    made = engine.Engine(seed=1)
    (card,) = made.add_cards(H200, spread=0.0)
    made.add_workload(profile(1.0, 0.5, repeat=1000), [card], owner="pod a")
    made.step(1499.0)
    assert made.workloads()
    (ended,) = made.step(1499.0 + max(1.01, seconds))
    assert (ended.exit_code, ended.message) == (0, workloads.FINISHED)


def test_a_limit_that_an_activity_is_past_ends_a_workload_however_short_it_is() -> None:
    made = engine.Engine(seed=1)
    (card,) = made.add_cards(H200, spread=0.0)
    low = activity.Activity({"usage": activity.constant(0.1)}, seconds=0.7)
    high = activity.Activity({"usage": activity.constant(0.9)}, seconds=0.02)
    made.add_workload(activity.Profile("w", (low, high, low), limits={"usage": 0.5}), [card])
    assert [outcome.message for outcome in made.step(1.0)] == ["Limit usage reached, terminated"]
