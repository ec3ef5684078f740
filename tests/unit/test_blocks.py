"""Blocks of nodes: every cell is in one, changes by block are all changes, and each is encoded once."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simgpu.dashboard import blocks, encoding
from simgpu.dashboard.channels import WantedPart
from simgpu.dashboard.fleet_channel import FleetChange, FleetChannel
from simgpu.dashboard.frames import FleetLayout
from tests.fixtures.dashboards import ServedFleet, places


def block_map(counts: list[int], pools: int = 3) -> blocks.BlockMap:
    """Of nodes in some pools, in turn, that are ordered the other way round."""
    layout = SimpleNamespace(
        pools=[f"pool-{number % pools}" for number in range(len(counts))], order=[*reversed(range(len(counts)))]
    )
    return blocks.BlockMap(cast("FleetLayout", layout), range(len(counts)), counts)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_changes_of_all_blocks_are_all_changes(counts: list[int], chance: np.random.Generator) -> None:
    made = block_map(counts)
    before = np.zeros(sum(counts), np.uint8)
    after = np.array([chance.random() < 0.3 for _ in before], np.uint8)
    found = before.copy()
    of_cell = np.repeat(made.of_node, counts)
    for number, change in made.changes(before, after).items():
        gaps, values = blocks.packed(change)
        at = np.flatnonzero(of_cell == number)
        found[at[places(gaps)]] = np.frombuffer(base64.b64decode(values), np.uint8)
        assert (made.cells(number, after) == after[at]).all()
    assert (found == after).all()


def test_a_block_is_of_neighbours_of_a_pool_and_there_are_never_too_many() -> None:
    made = block_map([8] * 5000)
    assert made.count == made.of_node.max() + 1 <= blocks.MAX_BLOCKS
    first = np.flatnonzero(made.of_node == 0)
    assert {int(number) % 3 for number in first} == {0}
    assert np.diff(first).max() == 3  # the next one of the same pool
    assert block_map([1]).count == 1
    assert block_map([]).count == 0


def test_blocks_are_bits_of_a_hexadecimal_number() -> None:
    assert blocks.parse("") is None
    assert blocks.parse("0") == frozenset()
    assert blocks.parse("a01") == frozenset({0, 9, 11})
    assert blocks.parse("f" * 64) == frozenset(range(blocks.MAX_BLOCKS))


def test_a_block_is_encoded_once_for_all_who_look_at_it() -> None:
    served = ServedFleet(20)
    for _ in range(5):
        served.step(1.0)
    channel = FleetChannel("power", pool="", model="")
    keeper = served.dashboard._keeper
    frame = keeper.frame()
    assert frame is not None
    channel.change(frame)
    served.step(1.0)
    frame = keeper.frame()
    assert frame is not None
    change = channel.change(frame)
    assert isinstance(change, FleetChange)
    head, *one = change.messages(WantedPart(frozenset({0, 1, 2})))
    other_head, *other = change.messages(WantedPart(frozenset({1, 2, 3, 200})))
    assert head is other_head
    assert {id(message) for message in one} & {id(message) for message in other}
    assert len({id(message) for message in (*one, *other)}) <= 4
    (whole,) = change.messages(WantedPart())
    assert len(whole.text) < len(head.text) + sum(len(item.text) for item in (*one, *other))
    assert encoding.json_bytes({"block": 1})[:-1] in one[-2].text + one[-1].text
