"""How many views may be written while pods come and go."""

from __future__ import annotations

from simgpu.controllers.budgeting import MIN_WRITES, ViewBudget
from tests.fixtures.clocks import ManualClock


def test_views_make_way_for_pods_and_catch_up_afterwards() -> None:
    clock = ManualClock()
    budget = ViewBudget(50.0, clock)
    assert budget.per_second() == 50.0
    for _ in range(1000):  # a hundred a second
        clock.now += 0.01
        budget.pod_changed()
    assert budget.per_second() == MIN_WRITES
    clock.now += 30.0
    assert budget.per_second() > 49.9


def test_a_few_pods_hold_up_no_view() -> None:
    clock = ManualClock()
    budget = ViewBudget(50.0, clock)
    for _ in range(50):  # five a second
        clock.now += 0.2
        budget.pod_changed()
    assert budget.per_second() > 25.0


def test_views_make_way_for_slices() -> None:
    waiting = [1]
    budget = ViewBudget(50.0, ManualClock(), others_busy=lambda: bool(waiting))
    assert budget.per_second() == MIN_WRITES
    waiting.clear()
    assert budget.per_second() == 50.0
