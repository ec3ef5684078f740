"""The fleet as the event stream describes it: nodes in order, and a column of small numbers for each reading."""

from __future__ import annotations

import base64
import collections
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.dashboard.answers import FleetTotals
from simgpu.top.feeds import FeedError, StreamEvent

COLUMNS = ("utilization", "power", "memory", "temperature")  # percent, percent of the limit, percent, °C
HISTORY = 240
_SKIP = 255
_MAX_GPUS = 4_000_000
_MAX_TOTAL = 1e24  # far above any sum, and far below what cannot be rounded

Cells = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.float64]


NOTHING = FleetTotals(**dict.fromkeys(FleetTotals.__struct_fields__, 0))


class GpuCurves(msgspec.Struct):
    """Readings of a GPU in the last minutes: a row for each moment, a name for each column."""

    names: list[str]
    rows: list[list[float | None]]


class _Layout(msgspec.Struct):
    names: list[str]
    pools: list[str]
    pool_of: list[int]
    counts: list[int]


class _Curves(msgspec.Struct):
    names: list[str] = []
    rows: list[list[float]] = []


class _Snapshot(msgspec.Struct):
    cells: str
    faults: str
    totals: FleetTotals
    time: float = 0.0
    curves: _Curves = msgspec.field(default_factory=_Curves)


class _Change(msgspec.Struct):
    totals: FleetTotals
    time: float = 0.0
    cells: tuple[str, str] | None = None
    faults: tuple[str, str] | None = None


class NodeOrder:
    """The nodes: names, pools, and which GPUs are theirs. The numbers of GPUs are their places in all columns."""

    def __init__(self, names: list[str], pools: list[str], counts: list[int]) -> None:
        self.names, self.pools = names, pools
        self.counts = np.array(counts, dtype=np.intp)
        self.firsts = np.cumsum(self.counts) - self.counts
        self.node_of = np.repeat(np.arange(len(names)), self.counts)
        self.gpus = len(self.node_of)
        self.searched = [f"{name} {pool}".lower() for name, pool in zip(names, pools, strict=True)]

    def gpu(self, place: int) -> tuple[str, int]:
        """Return node and index of a GPU."""
        node = int(self.node_of[place])
        return self.names[node], int(place - self.firsts[node])

    def means(self, cells: Cells) -> Numbers:
        """Return the mean of each node's GPUs."""
        return np.add.reduceat(cells.astype(np.float64), self.firsts) / self.counts if self.gpus else np.zeros(0)

    def highest(self, cells: Cells) -> Numbers:
        """Return the highest of each node's GPUs."""
        return np.maximum.reduceat(cells, self.firsts).astype(np.float64) if self.gpus else np.zeros(0)


class FleetState:
    """All that is known of a fleet. `version` grows with every change."""

    def __init__(self) -> None:
        self.order = NodeOrder([], [], [])
        self.columns: dict[str, Cells] = {name: np.zeros(0, np.uint8) for name in COLUMNS}
        self.faults: Cells = np.zeros(0, np.uint8)
        self.totals = NOTHING
        self.history: collections.deque[FleetTotals] = collections.deque(maxlen=HISTORY)
        self.time = 0.0
        self.version = 0
        self.known: set[str] = set()  # columns that were read
        self.away = False

    def apply(self, column: str, event: StreamEvent) -> None:
        """Take an event of the stream of a column; raises `FeedError` for one that does not fit."""
        try:
            self._apply(column, event)
        except (msgspec.MsgspecError, RecursionError, ValueError, LookupError, OverflowError) as error:
            raise FeedError(f"an unreadable event {event.name!r} of the stream: {error}") from None

    def _apply(self, column: str, event: StreamEvent) -> None:
        if event.name == "layout":
            self._read_layout(msgspec.json.decode(event.data, type=_Layout))
        elif event.name == "cells":
            snapshot = msgspec.json.decode(event.data, type=_Snapshot)
            self._read_snapshot(column, snapshot)
        elif event.name == "change":
            self._read_change(column, msgspec.json.decode(event.data, type=_Change))
        elif event.name == "away":
            self.away = True
        else:
            return
        self.version += 1

    def _read_layout(self, found: _Layout) -> None:
        if not all(0 <= number < len(found.pools) for number in found.pool_of):
            raise ValueError("the number of a pool that there is not")
        pools = [found.pools[number] for number in found.pool_of]
        if not len(found.names) == len(pools) == len(found.counts) or not all(count > 0 for count in found.counts):
            raise ValueError("nodes, pools and numbers of GPUs do not fit")
        if sum(found.counts) > _MAX_GPUS:
            raise ValueError(f"more than {_MAX_GPUS} GPUs")
        same = found.names == self.order.names and pools == self.order.pools
        if same and found.counts == self.order.counts.tolist():
            return
        self.order = NodeOrder(found.names, pools, found.counts)
        self.columns = {name: np.zeros(self.order.gpus, np.uint8) for name in COLUMNS}
        self.faults = np.zeros(self.order.gpus, np.uint8)
        self.known.clear()

    def _read_snapshot(self, column: str, found: _Snapshot) -> None:
        cells, faults = _unpacked(found.cells), _unpacked(found.faults)
        if len(cells) != self.order.gpus or len(faults) != self.order.gpus:
            return  # of another layout: its own stream brings the next one
        _check(found.totals)
        self.columns[column], self.faults = cells, faults
        self.known.add(column)
        if column == COLUMNS[0]:
            names = found.curves.names
            rows = (dict(zip(names, row, strict=False)) for row in found.curves.rows)
            self.history = collections.deque((_totals(row) for row in rows), maxlen=HISTORY)
            self._read_moment(found.totals, found.time)

    def _read_change(self, column: str, found: _Change) -> None:
        if column not in self.known:  # the layout came by another stream: reconnecting brings a snapshot of this column
            raise ValueError("a change before the cells that it changes")
        _check(found.totals)
        if found.cells is not None:
            _change(self.columns[column], found.cells)
        if found.faults is not None:
            _change(self.faults, found.faults)
        if column == COLUMNS[0]:
            self.history.append(found.totals)
            self._read_moment(found.totals, found.time)

    def _read_moment(self, totals: FleetTotals, time: float) -> None:
        self.totals, self.time, self.away = totals, time, False

    def complete(self) -> bool:
        """Return whether every column was read."""
        return self.known.issuperset(COLUMNS)


def _totals(row: dict[str, Any]) -> FleetTotals:
    return _check(msgspec.convert(row, FleetTotals, strict=False))


def _check(totals: FleetTotals) -> FleetTotals:
    if not all(0 <= value <= _MAX_TOTAL for value in msgspec.structs.astuple(totals)):
        raise ValueError(f"totals must be from 0 to {_MAX_TOTAL:g}")
    return totals


def _unpacked(text: str) -> Cells:
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint8).copy()


def _change(column: Cells, change: tuple[str, str]) -> None:
    """Write new values at places that are given as gaps between them."""
    gaps, values = _unpacked(change[0]), _unpacked(change[1])
    places = (np.cumsum(gaps.astype(np.int64)) + np.cumsum(gaps != _SKIP) - 1)[gaps != _SKIP]
    if len(places) != len(values) or (len(places) and places[-1] >= len(column)):
        raise ValueError("places and values do not fit")
    column[places] = values
