"""Whatever runs on a card: readings stay in range, counters never fall, energy is the integral of power."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.sim import activity, cards, engine

CATALOG = models.load()
RANGES = {
    "usage": (0, 100), "memory_usage": (0, 100), "busy": (0, 1), "clock": (0, 1), "cap": (0, 1), "throughput": (0, 1),
}  # fmt: skip


def shares() -> st.SearchStrategy[activity.Value]:
    return st.tuples(st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.3, 1.0, 7.0])).map(
        lambda drawn: activity.Value(min(drawn[:2]), max(drawn[:2]), period=drawn[2])
    )


def values() -> st.SearchStrategy[dict[str, activity.Value]]:
    absolute = st.floats(0, 1e6).map(lambda top: activity.Value(0, top, "increase", share=False))
    return st.fixed_dictionaries(
        {"usage": shares()},
        optional={
            **{name: shares() for name in activity.UNITS},
            "memory": st.one_of(shares(), absolute),
            "hangs": st.just(activity.Value(0, 2, period=3.0)),
            "corrected": st.just(activity.Value(0, 5, period=1.0)),
        },
    )


def profiles() -> st.SearchStrategy[activity.Profile]:
    pulses = st.one_of(st.none(), st.builds(activity.Pulse, st.floats(0, 1), st.floats(0.01, 5)))
    activities = st.builds(activity.Activity, values(), st.floats(0.1, 20), st.booleans(), pulses)
    limits = st.dictionaries(st.sampled_from(activity.LIMITS), st.floats(0, 1000), max_size=2)
    return st.builds(
        activity.Profile,
        st.just("w"),
        st.lists(activities, min_size=1, max_size=3).map(tuple),
        st.integers(0, 3),
        limits,
    )


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), profiles(), st.sets(st.integers(1, 3), min_size=1)),
        st.tuples(st.just("step"), st.floats(0.001, 30), st.integers(1, 5)),
        st.tuples(st.just("limit"), st.floats(0, 1), st.integers(1, 3)),
        st.tuples(st.just("inlet"), st.floats(-10, 80), st.integers(1, 3)),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(CATALOG.models)), EVENTS)
def test_any_sequence_of_workloads_keeps_everything_in_order(
    key: str, events: list[tuple[str, object, object]]
) -> None:
    model = CATALOG.models[key]
    made = engine.Engine(seed=5)
    ids = made.add_cards(model, 3)
    group = made.groups()[key]
    integral = np.zeros(3)
    step = group.step

    def integrating(dt: float, *, ticks: int, windows: int) -> None:
        nonlocal integral
        step(dt, ticks=ticks, windows=windows)
        integral = integral + group["power"].astype(float) * dt

    group.step = integrating  # type: ignore[method-assign]
    for kind, first, second in events:
        if kind == "work":
            made.add_workload(first, sorted(second))  # type: ignore[arg-type, call-overload]
        elif kind == "limit":
            power = model.power_w
            made.set_limit(second, power.min + (power.max - power.min) * first)  # type: ignore[arg-type, operator]
        elif kind == "inlet":
            made.set_inlet(second, first)  # type: ignore[arg-type]
        else:
            for _ in range(second):  # type: ignore[call-overload]
                before = {name: group[name].copy() for name in cards.COUNTERS}
                made.step(made.now + first)  # type: ignore[operator]
                _check(model, group, before)
    np.testing.assert_allclose(made.read("energy", ids), integral, rtol=1e-5)
    assert [group.resume(row, group.keep(row)) for row in range(3)] == [[], [], []]


def _check(model: models.Model, group: cards.Cards, before: dict[str, np.ndarray]) -> None:
    for name, values_before in before.items():
        assert (group[name] >= values_before).all(), name
    for name, (low, high) in RANGES.items():
        assert (group[name] >= low - 1e-6).all(), name
        assert (group[name] <= high + 1e-3).all(), name
    assert np.isfinite(group["power"]).all()
    assert (group["power"] <= model.power_w.max * model.relations.regulator.peak + 1).all()
    assert (group["power"] > 0).all()
    assert (group["sm_clock"] >= model.clocks_mhz.sm_min - model.clocks_mhz.sm_step).all()
    assert (group["sm_clock"] <= model.clocks_mhz.sm_max).all()
    assert (group["memory_used"] <= model.memory_mib.total - model.memory_mib.reserved).all()
    assert (group["die_temperature"] > -40).all()
    assert (group["die_temperature"] < 200).all()
