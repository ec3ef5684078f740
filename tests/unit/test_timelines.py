"""Timelines of pods: what they may look like, and what is wrong with others."""

from __future__ import annotations

from typing import Any

import pytest

from simgpu import errors
from simgpu.machines.users import Range
from simgpu.pods import timelines
from simgpu.vocabulary import MAX_TIMELINE_SECONDS, MAX_TIMELINE_STEPS


def step(time: Any = "1h", utilization: Any = 80) -> dict[str, Any]:
    return {"time": time, "utilization": utilization}


@pytest.mark.parametrize(
    ("time", "seconds"), [("1h", 3600), ("1h30m", 5400), ("500ms", 0.5), ("90s", 90), (2, 2), (0.5, 0.5)]
)
def test_a_step_has_a_time_as_in_go_or_in_seconds(time: Any, seconds: float) -> None:
    assert timelines.read([step(time)], field="f").steps[0].seconds == pytest.approx(seconds)


def test_a_bare_list_runs_once_and_zero_repeats_are_for_ever() -> None:
    once = timelines.read([step(), step(utilization="10-30")], field="f")
    assert (once.repeat, once.span) == (1, Range(0, 80))
    assert timelines.read({"steps": [step(), step(utilization="10-30")]}, field="f") == once
    for_ever = timelines.read({"steps": [step(), step(utilization="10-30")], "repeat": 0}, field="f")
    assert (for_ever.repeat, for_ever.span) == (0, Range(10, 80))


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("80", 'must be JSON such as {"steps"'),
        ([], "length >= 1"),
        ([step()] * (MAX_TIMELINE_STEPS + 1), f"length <= {MAX_TIMELINE_STEPS}"),
        ({"steps": [step()], "repeat": -1}, ">= 0"),
        ({"steps": [step()], "repeats": 1}, "unknown field `repeats`"),
        ([step("soon")], "steps[0].time: 'soon': must be a time such as 30s"),
        ([step(), step(0)], "steps[1].time: 0 s: must be from 0.1 s to 366 days"),
        ([step(MAX_TIMELINE_SECONDS + 1)], "to 366 days"),
        ([step(utilization=101)], "steps[0].utilization: '101': at most 100"),
        ([step(utilization="30-10")], "the lower end is above the upper end"),
        ([step(utilization=0.5)], "utilization"),
    ],
)
def test_a_timeline_that_makes_no_sense_is_an_error_with_what_is_allowed(document: Any, problem: str) -> None:
    with pytest.raises(errors.InputError) as caught:
        timelines.read(document, field="f")
    assert str(caught.value).startswith("f: ")
    assert problem in str(caught.value)
