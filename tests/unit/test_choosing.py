"""Which lines are shown, in which order, and where the cursor is."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.dashboard.answers import PodSummary
from simgpu.top import choosing
from simgpu.top.choosing import Choice, ChosenGpu, ChosenNode
from simgpu.top.fleet_state import COLUMNS, FleetState, NodeOrder
from simgpu.top.picture import FleetPicture


@pytest.fixture
def picture() -> FleetPicture:
    state = FleetState()
    state.order = NodeOrder(["a", "b", "c"], ["one", "two", "two"], [2, 1, 2])
    state.columns = {name: np.array([10, 20, 90, 0, 5], np.uint8) for name in COLUMNS}
    state.faults = np.array([0, 0, 0, 3, 0], np.uint8)
    found = (("x", "a", 1, 50.0), ("y", "", 8, 0.0), ("z", "c", 2, 90.0))
    pods = [
        PodSummary("n", name, node, "Running" if node else "Pending", "", gpus, [], use, 0.0)
        for name, node, gpus, use in found
    ]
    return FleetPicture("here", state=state, pods=pods)


def test_the_busiest_are_first_and_every_column_sorts_both_ways(picture: FleetPicture) -> None:
    choice = Choice()
    orders = {}
    for _ in choosing.SORTS["nodes"]:
        orders[choice.sort["nodes"]] = choosing.nodes(picture.state, choice).tolist()
        choice.backwards["nodes"] = True
        assert choosing.nodes(picture.state, choice).tolist() != orders[choice.sort["nodes"]]
        choice.next_sort()
    assert orders["utilization"] == orders["power"] == orders["temperature"] == [1, 0, 2]
    assert orders["faults"] == [2, 0, 1]
    assert orders["gpus"] == [0, 2, 1]
    assert orders["name"] == [0, 1, 2]
    assert choosing.gpus(picture.state, choice).tolist() == [2, 1, 0, 4, 3]
    assert [pod.name for pod in choosing.pods(picture.pods, choice)] == ["y", "z", "x"]  # the pending one
    choice.sort["pods"] = "name"
    assert [pod.name for pod in choosing.pods(picture.pods, choice)] == ["x", "y", "z"]


def test_a_filter_finds_names_and_pools_and_enter_what_the_cursor_is_on(picture: FleetPicture) -> None:
    choice = Choice(filters={"nodes": "TWO", "gpus": "c", "pods": "z"})
    assert choosing.nodes(picture.state, choice).tolist() == [1, 2]
    choice.move(1)
    assert choosing.chosen(picture, choice) == ChosenNode("c")
    choice.look_at("gpus")
    assert choosing.chosen(picture, choice) == ChosenGpu("c", 1)
    choice.look_at("pods")
    assert choosing.chosen(picture, choice) == ChosenNode("c")
    choice.filters["pods"] = "y"  # waits, so that it is on no node
    assert choosing.chosen(picture, choice) is None
    choice.filters["pods"] = "nothing"
    assert choosing.chosen(picture, choice) is None


def test_the_cursor_stays_in_the_list_and_on_the_screen() -> None:
    choice = Choice()
    choice.move(1 << 40)
    assert choice.window(1000, 10) == (990, 999)
    choice.move(-5)
    assert choice.window(1000, 10) == (990, 994)
    choice.move(-20)
    assert choice.window(1000, 10) == (974, 974)
    assert choice.window(3, 10) == (0, 2)
    assert choice.window(0, 10) == (0, 0)
