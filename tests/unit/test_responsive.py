"""Settings that keep the event loop responsive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from simgpu.app import responsive


class Cycle:
    """An object that only a collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collections() -> Iterator[responsive.Collections]:
    made = responsive.Collections()
    gc.callbacks.append(made)
    yield made
    gc.callbacks.remove(made)
    gc.unfreeze()


@pytest.mark.usefixtures("collections")
def test_full_collections_leave_out_survivors() -> None:
    gc.collect()
    assert gc.get_freeze_count() > 1000
    later = Cycle()
    gone = weakref.ref(later)
    gc.collect()  # which it survives
    del later
    gc.collect()
    assert gone() is not None


@pytest.mark.usefixtures("collections")
def test_cycles_are_freed_before_they_are_as_many_as_all_other_objects() -> None:
    gc.collect()
    kept = gc.get_freeze_count()
    alive = 0
    cycles: list[weakref.ref[Cycle]] = []
    for _turn in range(12):
        made = [Cycle() for _ in range(kept // 4)]
        cycles += [weakref.ref(item) for item in made]
        gc.collect()
        del made
        alive = max(alive, sum(cycle() is not None for cycle in cycles))
    assert kept // 4 < alive < 2 * kept


def test_everything_can_be_collected_at_once(collections: responsive.Collections) -> None:
    gc.collect()
    cycle = Cycle()
    gone = weakref.ref(cycle)
    gc.collect()
    del cycle
    collections.collect()
    assert gone() is None
    assert gc.get_freeze_count() > 1000
