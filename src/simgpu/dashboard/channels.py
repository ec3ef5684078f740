"""What viewers of the same thing get: a snapshot, and then changes, each encoded once for all of them."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from simgpu.dashboard import answers, encoding
from simgpu.dashboard.frames import FleetFrame
from simgpu.web import compressing

HISTORY = 240  # steps of curves that a new viewer gets: two minutes


class WantedPart(msgspec.Struct, frozen=True):
    """What a viewer of the canvas looks at: blocks of nodes, None for all; `layout` is the tag of the one it has."""

    blocks: frozenset[int] | None = None
    layout: str = ""


EVERYTHING = WantedPart()


class StreamMessage:
    """Server-sent events as text; compressed when the first viewer needs them so."""

    tag = ""

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

    def messages(self, wanted: WantedPart) -> Sequence[StreamMessage]:  # noqa: ARG002 - the same for all
        """Return what each viewer is sent."""
        return (self,)


class StreamUpdate(Protocol):
    """What a channel has to send; viewers of the canvas get the part that they look at."""

    @property
    def tag(self) -> str:
        """The tag of the layout that it belongs to, if that may be another one than before; else empty."""

    def messages(self, wanted: WantedPart) -> Sequence[StreamMessage]:
        """Return what a viewer is sent."""


class Channel(Protocol):
    """One thing to look at."""

    def change(self, frame: FleetFrame) -> StreamUpdate | None:
        """Move to a frame; return what is different since the last one, if anything is."""

    def snapshot(self) -> StreamUpdate | None:
        """Return everything, as of the last `change`; None before the first."""


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
