"""Errors of cards as NVML's events: the ring of them on a page, which every reader of the card follows on its own.

An error is recorded once: when a counter on the page grows. A writer that takes over a page goes on from its counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.machines.health import HANG_XID, LOST_XID, MEMORY_XID
from simgpu.page import layout
from simgpu.topology.devices import Device

CORRECTED, UNCORRECTED, XID, UNAVAILABLE = 0x1, 0x2, 0x8, 0x4000  # NVML's types of events

MAX_AT_ONCE: Final = 8  # of each counter and write: a storm of errors must not push all others off the ring

COUNTERS: Final = ("ecc_corrected", "ecc_uncorrected", "hangs", "losses")
_TIMES: Final = {"ecc_uncorrected": "uncorrected_last", "hangs": "hangs_last", "losses": "losses_last"}
_TYPES: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "ecc_corrected": ((CORRECTED, 0),),
    "hangs": ((XID, HANG_XID),),
    "ecc_uncorrected": ((UNCORRECTED, 0), (XID, MEMORY_XID)),
    "losses": ((XID, LOST_XID), (UNAVAILABLE, 0)),
}

Read = Callable[[str], npt.NDArray[np.float64]]


class ErrorOrigin(msgspec.Struct, frozen=True, order=True):
    """The instances that an error was on, by number; -1 if it was on none, or on which is not known."""

    gpu_instance: int = -1
    compute_instance: int = -1


NOWHERE: Final = ErrorOrigin()

FindOrigin = Callable[[int, str], ErrorOrigin]  # of the last error of a card, by index, that a counter counts


class CardEvent(msgspec.Struct, frozen=True, order=True):
    """An event of a card: when, in microseconds since 1970, and its type; of an XID error the number and the origin."""

    time_us: int
    type: int
    data: int = 0
    origin: ErrorOrigin = NOWHERE


class CardErrors(msgspec.Struct, frozen=True):
    """Events of a card, and the process that has the most of its memory, as the page lists it; 0 if it lists none."""

    device: Device
    events: Sequence[CardEvent]
    pid: int = 0


def counts(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the counters of pages that events are recorded of, one row for each page."""
    return np.stack([rows[name] for name in COUNTERS], axis=1)


def record(
    rows: npt.NDArray[Any], before: npt.NDArray[np.uint64], read: Read, *, clock: float, origin: FindOrigin
) -> None:
    """Add the events since `before`; `read` returns the time of the last error of a kind, in seconds since 1970.

    Where that is not known, it is `clock`.
    """
    grown = counts(rows) > before
    for place in np.flatnonzero(grown.any(axis=1)).tolist():
        found: list[CardEvent] = []
        for column in np.flatnonzero(grown[place]).tolist():
            name = COUNTERS[column]
            time = float(read(_TIMES[name])[place]) if name in _TIMES else clock
            time_us = int((time if np.isfinite(time) else clock) * 1e6)
            times = 1 if name == "ecc_corrected" else min(int(rows[place][name] - before[place, column]), MAX_AT_ONCE)
            at = origin(place, name)
            found += [
                CardEvent(time_us, kind, data, at if kind == XID else NOWHERE) for kind, data in _TYPES[name]
            ] * times
        for event in sorted(found, key=lambda item: item.time_us):
            _append(rows[place], event)


def _append(row: Any, event: CardEvent) -> None:
    place = int(row["event_count"]) % layout.EVENTS
    row["events"][place] = (event.time_us, event.type, event.data)
    row["event_origins"][place] = (event.origin.gpu_instance + 1, event.origin.compute_instance + 1)
    row["event_count"] += 1


def since(row: Any, number: int) -> Iterator[CardEvent]:
    """Yield the events of a page after the first `number`, as far back as the ring goes."""
    last = int(row["event_count"])
    for at in range(max(number, last - layout.EVENTS), last):
        found, origin = row["events"][at % layout.EVENTS], row["event_origins"][at % layout.EVENTS]
        instances = ErrorOrigin(int(origin["gpu_instance"]) - 1, int(origin["compute_instance"]) - 1)
        yield CardEvent(int(found["time_us"]), int(found["type"]), int(found["data"]), instances)


def main_process(row: Any) -> int:
    """Return the process with the most memory of a card; 0 if its page lists none."""
    listed = row["apps"][: int(row["app_count"])]
    return int(listed[np.argmax(listed["memory"])]["pid"]) if len(listed) else 0
