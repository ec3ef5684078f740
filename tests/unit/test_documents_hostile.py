"""Whatever a document asks of GPUs, it is refused with nothing taken, or it runs and everything stays finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import errors
from simgpu.identities import identity, render
from simgpu.machines import documents
from simgpu.sim import activity
from tests.fixtures import boxes

IDENTITY = identity.load("dcgm")
EXTREME = st.sampled_from(
    [0, 1e-320, 1e-300, 1e-9, 0.5, 1.0, 1e3, 1e9, 1e15, 1e30, 1e300, -1.0, float("inf"), float("nan")]
)
NUMBER = EXTREME | st.floats() | st.floats(0, 1)
METRIC = st.fixed_dictionaries(
    {},
    optional={
        "Func": st.sampled_from(["constant", "random", "random-increase", "increase"]), "Min": NUMBER, "Max": NUMBER,
        "Unit": st.sampled_from(["share", "absolute"]), "Period": st.sampled_from([0.01, 1.0, 86400.0]) | NUMBER,
    },
)  # fmt: skip
STEP = st.fixed_dictionaries(
    {"Load": st.integers(0, 100), "Seconds": st.integers(0, 10**9) | st.just(1)},
    optional={"Metrics": st.dictionaries(st.sampled_from(activity.CHANNELS), METRIC, max_size=3)},
)
DOCUMENT = st.fixed_dictionaries(
    {"Name": st.just("w"), "Profile": st.lists(STEP, min_size=1, max_size=3)},
    optional={
        "Repeat": st.integers(0, 3), "Limits": st.dictionaries(st.sampled_from(activity.LIMITS), NUMBER, max_size=2),
        "Reference": st.fixed_dictionaries({"MaxFrequencyMHz": NUMBER}, optional={"Capability": NUMBER}),
    },
)  # fmt: skip
PHASE = st.fixed_dictionaries(
    {"seconds": NUMBER, "shape": st.sampled_from(["training", "memcopy", "idle"])},
    optional={"duty": NUMBER, "period": NUMBER, "fb_mib": NUMBER},
)
PHASES = st.fixed_dictionaries({"phases": st.lists(PHASE, min_size=1, max_size=3)}, optional={"repeat": st.just(0)})


@settings(deadline=None, max_examples=40)
@given(
    st.lists(DOCUMENT | PHASES, min_size=1, max_size=3),
    st.lists(st.sampled_from([0.01, 0.5, 7.0, 3600.0]), max_size=3, unique=True),
)
def test_whatever_runs_everything_stays_finite(asked: list[dict[str, Any]], steps: list[float]) -> None:
    made, numbers = boxes.mixed(), list[int]()
    page = render.Renderer(made.machine, IDENTITY)
    for document in asked:
        before = set(made.workloads())
        try:
            numbers += made.admit(documents.read(document).profile, [0, 1, 2], owner="pod")
        except errors.InputError:
            assert set(made.workloads()) == set(made.engine.workloads()) == before
    for seconds in (0.5, *steps, 0.5):
        made.step(made.engine.now + seconds, clock=0.0)
        boxes.check_finite(made)
    made.drop([number for number in numbers if number in made.workloads()])
    made.step(made.engine.now + 1, clock=0.0)
    boxes.check_finite(made)
    assert b"NaN" not in page.page()


@pytest.mark.parametrize("reference", [(1e-300, 1e-300), (1e-6, 1e-6), (1e9, 1e9), (float("inf"), 1.0)])
def test_a_card_that_no_other_can_be_compared_with_is_refused_and_nothing_is_taken(
    reference: tuple[float, ...],
) -> None:
    made = boxes.mixed()
    document = {
        "Name": "w",
        "Profile": [{"Load": 50}],
        "Reference": dict(zip(("MaxFrequencyMHz", "Capability"), reference, strict=True)),
    }
    for _ in range(3):
        with pytest.raises(errors.InputError, match="reference"):
            made.admit(documents.read(document).profile, [0, 1])
    made.step(1.0, clock=0.0)
    assert not made.engine.workloads()
    assert made.machine.column("busy").tolist() == [0, 0, 0]


def test_what_grows_for_ages_stays_finite() -> None:
    made = boxes.mixed()
    growing = activity.Value(1e6, 1e6, "increase", period=0.01)
    asked = dict.fromkeys(("usage", "sm", "bandwidth", "yielding", "corrected"), growing)
    made.admit(activity.Profile("w", (activity.Activity(asked, seconds=1e15),)), [0])
    for years in range(5):
        made.step((years + 1) * 1e13, clock=0.0)
        boxes.check_finite(made)


def test_a_workload_that_cannot_run_on_one_model_runs_on_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = boxes.mixed()
    add = made.engine.add_workload

    def failing(profile: activity.Profile, on: Sequence[int], **more: Any) -> int:
        if list(on) == [2]:
            raise ZeroDivisionError
        return add(profile, on, **more)

    monkeypatch.setattr(made.engine, "add_workload", failing)
    with pytest.raises(ZeroDivisionError):
        made.admit(documents.read({"Name": "w", "Profile": [{"Load": 50}]}).profile, [0, 1])
    assert not made.workloads()
    assert not made.engine.workloads()


@pytest.mark.parametrize("name", ["\ud800Values", "Val\udfffues", "Device"])
def test_a_setting_with_half_a_surrogate_pair_is_refused(name: str) -> None:
    document = {"Set": {"Device": "nvidia0", "Setting": "sm_clocks", name: "\ud800"}}
    with pytest.raises(errors.InputError, match="not Unicode"):
        documents.setting(document)
