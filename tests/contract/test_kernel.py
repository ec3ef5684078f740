"""The compiled step: the same bytes as without it, whatever runs on the cards."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.sim import activity, cards, engine, kernel

CATALOG = models.load()
COUNT = 300  # more than a tile of the library

LOADS = st.fixed_dictionaries(
    {"usage": st.tuples(st.floats(0, 1), st.floats(0, 1))},
    optional={name: st.tuples(st.floats(0, 1), st.floats(0, 1)) for name in activity.UNITS},
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), LOADS, st.integers(1, COUNT)),
        st.tuples(st.just("step"), st.floats(0.001, 30), st.integers(1, 6)),
        st.tuples(st.just("limit"), st.floats(0, 1), st.integers(1, COUNT)),
        st.tuples(st.just("inlet"), st.floats(*cards.INLETS), st.integers(1, COUNT)),
        st.tuples(st.just("resume"), st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, COUNT)),
    ),
    min_size=3,
    max_size=10,
)


def saved(made: engine.Engine, key: str, shares: list[float]) -> dict[str, float]:
    """Return a state that may have been saved: a share of the range of each quantity."""
    ranges = made.groups()[key]._ranges
    return {
        name: lowest + share * (highest - lowest)
        for (name, (lowest, highest)), share in zip(ranges.items(), itertools.cycle(shares), strict=False)
    }


def play(key: str, events: list[tuple[str, Any, int]], *, compiled: bool) -> bytes:
    """Return everything about some cards after some events."""
    model = CATALOG.models[key]
    made = engine.Engine(seed=7, compiled=compiled)
    ids = made.add_cards(model, COUNT)
    for kind, value, number in [*events, ("step", 1.0, 3), ("step", 0.05, 4)]:
        if kind == "work":
            values = {name: activity.Value(min(ends), max(ends), period=0.7) for name, ends in value.items()}
            made.add_workload(activity.Profile("w", (activity.Activity(values),), repeat=0), ids[:number])
        elif kind == "limit":
            for card in ids[number - 1 :: 7]:
                made.set_limit(card, model.power_w.min + value * (model.power_w.max - model.power_w.min))
        elif kind == "inlet":
            for card in ids[number - 1 :: 5]:
                made.set_inlet(card, value)
        elif kind == "resume":
            for card in ids[number - 1 :: 3]:
                assert made.resume(card, saved(made, key, value), seconds=0.0) == []
        else:
            for _ in range(number):
                made.step(made.now + value)
    return made.snapshot()


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(sorted(CATALOG.models)), EVENTS)
def test_any_cards_and_workloads_give_the_same_bytes_compiled_and_in_numpy(
    key: str, events: list[tuple[str, Any, int]]
) -> None:
    assert cards.load_kernel() is not None, "native/ is not built"
    assert play(key, events, compiled=True) == play(key, events, compiled=False)


def test_a_library_that_was_built_for_other_tables_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel.load((*cards.COLUMNS, "another"), cards.STEPPED) is None
    kernel.load.cache_clear()
    monkeypatch.setattr(kernel, "VERSION", "0")
    assert kernel.load(cards.COLUMNS, cards.STEPPED) is None
    kernel.load.cache_clear()
