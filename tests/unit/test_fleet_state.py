"""A fleet from the events of its stream."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from simgpu.dashboard import encoding
from simgpu.dashboard.answers import FleetTotals
from simgpu.top.feeds import FeedError, StreamEvent
from simgpu.top.fleet_state import FleetState

TOTALS = dict.fromkeys(FleetTotals.__struct_fields__, 0)
LAYOUT = {"names": ["a", "b"], "pools": ["p", "q"], "pool_of": [1, 0], "counts": [700, 300]}
CELLS = np.arange(1000, dtype=np.uint8)


def event(name: str, **data: Any) -> StreamEvent:
    return StreamEvent(name, json.dumps(data).encode())


def snapshot(cells: np.ndarray[Any, np.dtype[np.uint8]]) -> StreamEvent:
    packed = encoding.packed(cells)
    return event("cells", cells=packed, faults=encoding.packed(np.zeros(len(cells), np.uint8)), totals=TOTALS)


@pytest.fixture
def state() -> FleetState:
    made = FleetState()
    made.apply("utilization", event("layout", **LAYOUT))
    made.apply("utilization", snapshot(CELLS))
    return made


def test_changes_that_the_server_encodes_arrive(state: FleetState) -> None:
    chance = np.random.default_rng(1)
    before = CELLS
    for share in (0.001, 0.01, 0.5, 1.0):
        after = before.copy()
        places = chance.random(1000) < share
        after[places] = chance.integers(0, 255, int(places.sum()))
        state.apply("utilization", event("change", cells=encoding.changes(before, after), totals=TOTALS))
        assert state.columns["utilization"].tolist() == after.tolist()
        before = after
    assert state.order.means(before).tolist() == [before[:700].mean(), before[700:].mean()]
    assert state.order.gpu(700) == ("b", 0)
    assert state.order.pools == ["q", "p"]


def test_cells_of_another_layout_are_left_out_until_theirs_arrives(state: FleetState) -> None:
    state.apply("power", snapshot(CELLS[:10]))
    assert "power" not in state.known
    state.apply("power", event("layout", names=["c"], pools=["p"], pool_of=[0], counts=[10]))
    state.apply("power", snapshot(CELLS[:10]))
    assert state.columns["power"].tolist() == list(range(10))
    assert state.columns["utilization"].tolist() == [0] * 10


def test_a_stream_that_is_behind_makes_the_others_connect_again_when_the_fleet_grows(state: FleetState) -> None:
    grown = event("layout", names=["a", "b", "c"], pools=["p"], pool_of=[0, 0, 0], counts=[700, 300, 10])
    cells = np.arange(1010, dtype=np.uint8)
    state.apply("utilization", grown)
    state.apply("utilization", snapshot(cells))
    state.apply("power", event("layout", **LAYOUT))  # of before
    state.apply("power", snapshot(CELLS))
    state.apply("power", grown)
    state.apply("power", snapshot(cells))
    with pytest.raises(FeedError, match="a change before the cells"):
        state.apply("utilization", event("change", totals=TOTALS))
    state.apply("utilization", grown)
    state.apply("utilization", snapshot(cells))
    assert state.columns["utilization"].tolist() == state.columns["power"].tolist() == cells.tolist()


@pytest.mark.parametrize(
    "bad",
    [
        StreamEvent("layout", b"{"),
        StreamEvent("cells", b"\xff\xfe"),
        event("layout", names=["a"], pools=["p"], pool_of=[0, 0], counts=[1]),
        event("layout", names=["a"], pools=["p"], pool_of=[0], counts=[0]),
        event("layout", names=["a"], pools=["p"], pool_of=[3], counts=[1]),
        event("layout", names=["a"], pools=["p"], pool_of=[-1], counts=[1]),
        event("layout", names=["a"], pools=["p"], pool_of=[0], counts=[1 << 40]),
        event("cells", cells="no base64!", faults="", totals=TOTALS),
        event("change", cells=["AAAA", "AA=="], totals=TOTALS),
        event("change", totals={**TOTALS, "power_w": 1e300}),
        event("change", cells=[encoding.packed(np.full(9, 255, np.uint8)), ""], totals={"gpus": "many"}),
        event("change", cells=[encoding.packed(np.array([255] * 9 + [9], np.uint8)), "AA=="], totals=TOTALS),
    ],
)
def test_an_event_that_does_not_fit_is_an_error_and_changes_no_cell(bad: StreamEvent, state: FleetState) -> None:
    with pytest.raises(FeedError, match="unreadable event"):
        state.apply("utilization", bad)
    assert state.columns["utilization"].tolist() == CELLS.tolist()
