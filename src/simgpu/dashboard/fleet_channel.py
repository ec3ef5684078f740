"""Cells of GPUs by one column, for the canvas: a snapshot, and then changes of what each viewer looks at."""

from __future__ import annotations

import collections
import functools
import hashlib
from typing import Any

import msgspec
import numpy as np

from simgpu.dashboard import answers, blocks, encoding
from simgpu.dashboard.blocks import BlockMap
from simgpu.dashboard.channels import HISTORY, StreamMessage, WantedPart
from simgpu.dashboard.frames import Cells, FleetFrame

Columns = dict[str, Cells]  # those that are shown: "cells" by the column, and "faults"


class FleetChange:
    """What is different between two steps: as a whole, and by block, each encoded when the first viewer needs it."""

    tag = ""

    def __init__(self, moment: dict[str, Any], before: Columns, after: Columns, layout: BlockMap) -> None:
        self._moment, self._before, self._after, self._layout = moment, before, after, layout
        self._blocks: dict[int, StreamMessage] = {}

    def messages(self, wanted: WantedPart) -> list[StreamMessage]:
        """Return what a viewer of a part is sent."""
        if wanted.blocks is None:
            return [self._whole]
        return [self._head, *(self._block(number) for number in sorted(wanted.blocks & self._changed))]

    @functools.cached_property
    def _whole(self) -> StreamMessage:
        found = {name: encoding.changes(self._before[name], now) for name, now in self._after.items()}
        return StreamMessage(("change", {**self._moment, **{name: item for name, item in found.items() if item}}))

    @functools.cached_property
    def _head(self) -> StreamMessage:
        return StreamMessage(("change", self._moment))

    @functools.cached_property
    def _by_column(self) -> dict[str, dict[int, Any]]:
        return {name: self._layout.changes(self._before[name], now) for name, now in self._after.items()}

    @functools.cached_property
    def _changed(self) -> frozenset[int]:
        return frozenset(number for found in self._by_column.values() for number in found)

    def _block(self, number: int) -> StreamMessage:
        if (known := self._blocks.get(number)) is None:
            there = ((name, found[number]) for name, found in self._by_column.items() if number in found)
            changed = {name: blocks.packed(change) for name, change in there}
            known = self._blocks[number] = StreamMessage(("block_change", {"block": number, **changed}))
        return known


class FleetSnapshot:
    """All cells of a step, and the layout that they belong to; as a whole, and by block."""

    def __init__(self, layout: LayoutMessage, data: dict[str, Any], curves: dict[str, Any], cells: Columns) -> None:
        self._layout, self._data, self._curves, self._cells = layout, data, curves, cells
        self.tag = layout.tag
        self._blocks: dict[int, StreamMessage] = {}

    def messages(self, wanted: WantedPart) -> list[StreamMessage]:
        """Return what a viewer is sent: everything, or of a layout that it has, only the part that it looks at."""
        if wanted.layout != self.tag:
            return [self._layout.message, self._complete]
        if wanted.blocks is None:
            return [self._whole]
        numbers = sorted(number for number in wanted.blocks if number < self._layout.blocks.count)
        return [self._head, *(self._block(number) for number in numbers)]

    @functools.cached_property
    def _complete(self) -> StreamMessage:
        return StreamMessage(("cells", {**self._data, **self._packed(), "curves": self._curves}))

    @functools.cached_property
    def _whole(self) -> StreamMessage:
        return StreamMessage(("cells", {**self._data, **self._packed()}))

    @functools.cached_property
    def _head(self) -> StreamMessage:
        return StreamMessage(("cells", self._data))

    def _packed(self) -> dict[str, str]:
        return {name: encoding.packed(values) for name, values in self._cells.items()}

    def _block(self, number: int) -> StreamMessage:
        if (known := self._blocks.get(number)) is None:
            cells = ((name, self._layout.blocks.cells(number, values)) for name, values in self._cells.items())
            packed = {name: encoding.packed(values) for name, values in cells}
            known = self._blocks[number] = StreamMessage(("block", {"block": number, **packed}))
        return known


class LayoutMessage:
    """Nodes that are shown, in order, with their pools, blocks and numbers of GPUs; `tag` names what it contains."""

    def __init__(self, frame: FleetFrame, *, pool: str, model: str) -> None:
        layout = frame.layout
        self.places = layout.within(pool=pool, model=model)
        self.whole = len(self.places) == len(layout.node_of)
        counts = np.bincount(layout.node_of[self.places], minlength=len(layout.names))
        shown = np.flatnonzero(counts).tolist()
        pools = list(dict.fromkeys(layout.pools[number] for number in shown))
        numbers = {name: number for number, name in enumerate(pools)}
        complete = all(counts[number] == layout.counts[number] for number in shown)
        devices = layout.machine.devices
        self.blocks = BlockMap(layout, shown, counts[shown].tolist())
        found: dict[str, Any] = {
            "names": [layout.names[number] for number in shown],
            "pools": pools,
            "pool_of": [numbers[layout.pools[number]] for number in shown],
            "block_of": self.blocks.of_node.tolist(),
            "counts": counts[shown].tolist(),
            "indices": None if complete else [devices[place].index for place in self.places.tolist()],
            "all_pools": layout.gpus_by_pool(),
            "all_models": layout.gpus_by_model(),
        }
        self.tag = hashlib.blake2b(encoding.json_bytes(found), digest_size=8).hexdigest()
        self.message = StreamMessage(("layout", {"tag": self.tag, **found}))


class FleetChannel:
    """Cells of all GPUs, or of those of a pool or model, by one column."""

    def __init__(self, show: str, *, pool: str, model: str) -> None:
        self._show, self._pool, self._model = show, pool, model
        self._frame: FleetFrame | None = None
        self._snapshot: FleetSnapshot | None = None
        self._curves: collections.deque[answers.FleetTotals] = collections.deque(maxlen=HISTORY)

    def change(self, frame: FleetFrame) -> FleetChange | FleetSnapshot:
        """Move to a frame."""
        before, self._frame, self._snapshot = self._frame, frame, None
        if before is None or before.layout is not frame.layout:
            self._layout = LayoutMessage(frame, pool=self._pool, model=self._model)
            self._cells = self._columns(frame)
            self._add_totals(frame)
            return self._made()
        self._add_totals(frame)
        known, self._cells = self._cells, self._columns(frame)
        return FleetChange(self._moment(frame), known, self._cells, self._layout.blocks)

    def _columns(self, frame: FleetFrame) -> Columns:
        columns = (("cells", frame.cells(self._show)), ("faults", frame.cells("fault")))
        return {key: cells if self._layout.whole else cells[self._layout.places] for key, cells in columns}

    def _add_totals(self, frame: FleetFrame) -> None:
        self._curves.append(frame.totals(None if self._layout.whole else self._layout.places))

    def _moment(self, frame: FleetFrame) -> dict[str, Any]:
        found: dict[str, Any] = {"time": round(frame.time, 2), "step": frame.step, "totals": self._curves[-1]}
        return {**found, "namespaces": frame.namespaces()} if self._show == "owner" else found

    def snapshot(self) -> FleetSnapshot | None:
        """Return layout and cells."""
        return None if self._frame is None else self._made()

    def _made(self) -> FleetSnapshot:
        assert self._frame is not None  # noqa: S101 - a channel has a frame before it has a viewer
        if self._snapshot is None:
            data = {**self._moment(self._frame), "show": self._show, "width": self._cells["cells"].itemsize}
            rows = [msgspec.structs.astuple(totals) for totals in self._curves]
            curves = {"names": answers.FleetTotals.__struct_fields__, "rows": rows}
            self._snapshot = FleetSnapshot(self._layout, data, curves, self._cells)
        return self._snapshot
