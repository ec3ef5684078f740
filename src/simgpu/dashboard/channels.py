"""What viewers of the same thing get: a snapshot, and then changes, each encoded once for all of them."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np

from simgpu.dashboard import answers, encoding
from simgpu.dashboard.frames import Cells, FleetFrame
from simgpu.web import compressing

HISTORY = 240  # steps of curves that a new viewer gets: two minutes


class StreamMessage:
    """Server-sent events as text; compressed when the first viewer needs them so."""

    def __init__(self, *events: tuple[str, object]) -> None:
        self.text = b"".join(
            b"event: %s\ndata: %s\n\n" % (name.encode(), encoding.json_bytes(data)) for name, data in events
        )
        self._packed: bytes | None = None

    @property
    def packed(self) -> bytes:
        """Compressed blocks, which refer to nothing before them."""
        if self._packed is None:
            self._packed = compressing.part(self.text).blocks
        return self._packed


class Channel(Protocol):
    """One thing to look at."""

    def change(self, frame: FleetFrame) -> StreamMessage | None:
        """Move to a frame; return what is different since the last one, if anything is."""

    def snapshot(self) -> StreamMessage | None:
        """Return everything, as of the last `change`; None before the first."""


class FleetChannel:
    """Cells of all GPUs, or of those of a pool or model, by one column."""

    def __init__(self, show: str, *, pool: str, model: str) -> None:
        self._show, self._pool, self._model = show, pool, model
        self._frame: FleetFrame | None = None
        self._snapshot: StreamMessage | None = None
        self._curves: collections.deque[answers.FleetTotals] = collections.deque(maxlen=HISTORY)

    def change(self, frame: FleetFrame) -> StreamMessage | None:
        """Move to a frame."""
        before, self._frame, self._snapshot = self._frame, frame, None
        if before is None or before.layout is not frame.layout:
            self._places = frame.layout.within(pool=self._pool, model=self._model)
            self._whole = len(self._places) == len(frame.layout.node_of)
            self._cells = {name: self._column(frame, name) for name in (self._show, "fault")}
            self._add_totals(frame)
            return self.snapshot()
        self._add_totals(frame)
        data = self._moment()
        for name, key in ((self._show, "cells"), ("fault", "faults")):
            now = self._column(frame, name)
            if (found := encoding.changes(self._cells[name], now)) is not None:
                data[key] = found
            self._cells[name] = now
        return StreamMessage(("change", data))

    def _column(self, frame: FleetFrame, name: str) -> Cells:
        cells = frame.cells(name)
        return cells if self._whole else cells[self._places]

    def _add_totals(self, frame: FleetFrame) -> None:
        self._curves.append(frame.totals(None if self._whole else self._places))

    def _moment(self) -> dict[str, Any]:
        assert self._frame is not None  # noqa: S101 - a channel has a frame before it has a viewer
        found: dict[str, Any] = {
            "time": round(self._frame.time, 2), "step": self._frame.step, "totals": self._curves[-1],
        }  # fmt: skip
        return {**found, "namespaces": self._frame.namespaces()} if self._show == "owner" else found

    def snapshot(self) -> StreamMessage | None:
        """Return layout and cells."""
        if self._snapshot is None and self._frame is not None:
            cells = {"cells": encoding.packed(self._cells[self._show]), "faults": encoding.packed(self._cells["fault"])}
            curves = [msgspec.structs.astuple(totals) for totals in self._curves]
            data = {
                **self._moment(), "show": self._show, "width": self._cells[self._show].itemsize, **cells,
                "curves": {"names": answers.FleetTotals.__struct_fields__, "rows": curves},
            }  # fmt: skip
            self._snapshot = StreamMessage(("layout", self._layout()), ("cells", data))
        return self._snapshot

    def _layout(self) -> dict[str, Any]:
        assert self._frame is not None  # noqa: S101
        layout = self._frame.layout
        counts = np.bincount(layout.node_of[self._places], minlength=len(layout.names))
        shown = np.flatnonzero(counts).tolist()
        pools = list(dict.fromkeys(layout.pools[number] for number in shown))
        numbers = {pool: number for number, pool in enumerate(pools)}
        whole = all(counts[number] == layout.counts[number] for number in shown)
        devices = layout.machine.devices
        return {
            "names": [layout.names[number] for number in shown],
            "pools": pools,
            "pool_of": [numbers[layout.pools[number]] for number in shown],
            "counts": counts[shown].tolist(),
            "indices": None if whole else [devices[place].index for place in self._places.tolist()],
            "all_pools": layout.gpus_by_pool(),
            "all_models": layout.gpus_by_model(),
        }


class DocumentChannel:
    """A small document, sent whole when it is different. `read` returns it; None if it is gone."""

    def __init__(self, name: str, read: Callable[[FleetFrame], object | None]) -> None:
        self._name, self._read = name, read
        self._document: object | None = None
        self._message: StreamMessage | None = None

    def change(self, frame: FleetFrame) -> StreamMessage | None:
        """Move to a frame."""
        before, self._document = self._document, self._read(frame)
        if self._message is not None and before == self._document:
            return None
        self._message = self._made()
        return self._message

    def snapshot(self) -> StreamMessage | None:
        """Return the document."""
        return self._message

    def _made(self) -> StreamMessage:
        return StreamMessage(("gone", {}) if self._document is None else (self._name, self._document))


class GpuChannel:
    """A GPU with the readings of the last minutes."""

    CURVES = (
        "utilization", "sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "memory_temperature_c",
        "memory_used_mib", "tensor_active", "dram_active",
    )  # fmt: skip

    def __init__(self, read: Callable[[FleetFrame], answers.GpuDetail | None]) -> None:
        self._read = read
        self._detail: answers.GpuDetail | None = None
        self._rows: collections.deque[list[float | None]] = collections.deque(maxlen=HISTORY)
        self._gone: StreamMessage | None = None

    def change(self, frame: FleetFrame) -> StreamMessage | None:
        """Move to a frame."""
        self._detail = self._read(frame)
        if self._detail is None:
            self._gone = StreamMessage(("gone", {}))
            return self._gone
        readings = self._detail.readings
        self._rows.append([round(frame.time, 2), *(readings.get(name) for name in self.CURVES)])
        return StreamMessage(("gpu", self._detail))

    def snapshot(self) -> StreamMessage | None:
        """Return the GPU and its curves."""
        if self._detail is None:
            return self._gone
        curves = {"names": ["time", *self.CURVES], "rows": list(self._rows)}
        return StreamMessage(("curves", curves), ("gpu", self._detail))
