"""The current demands of workloads on cards: one row per workload and card that it runs on.

Values are drawn, pulsed and summed per card here, vectorised over all rows. When activities begin and end is left to
`workloads`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simgpu.sim import activity, cards, packing, places
from simgpu.sim.activity import CHANNELS, EVENTS, MAX_DEMAND, MEMORY, UNITS, USAGE, YIELDING

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Summing = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

AT: Final = {name: index for index, name in enumerate(CHANNELS)}
_UNIT_COLUMNS = dict(zip(UNITS, ("sm", "tensor", "memory", "pcie", "nvlink"), strict=True))
_TOLERANCE = 1e-9  # seconds, of comparisons with deadlines

_PER_ROW: Final = {
    "live": np.bool_, "card": np.int64, "part": np.int64, "admitted": np.int64, "share": np.float32,
    "context": np.float32, "duty": np.float64, "period": np.float64, "started": np.float64,
}  # fmt: skip
_PER_CHANNEL: Final = {
    "values": np.float32, "low": np.float32, "high": np.float32, "adds": np.bool_, "every": np.float32,
    "due": np.float64,
}  # fmt: skip


class Demands:
    """Rows of workloads on the cards of one model. Rows are freed and reused."""

    live: npt.NDArray[np.bool_]
    card: npt.NDArray[np.int64]
    part: npt.NDArray[np.int64]
    admitted: npt.NDArray[np.int64]
    share: Floats
    context: Floats
    duty: Doubles
    period: Doubles
    started: Doubles
    values: Floats
    low: Floats
    high: Floats
    adds: npt.NDArray[np.bool_]
    every: Floats
    due: Doubles

    def __init__(self) -> None:
        for name, kind in _PER_ROW.items():
            setattr(self, name, np.zeros(0, kind))
        for name, kind in _PER_CHANNEL.items():
            setattr(self, name, np.zeros((len(CHANNELS), 0), kind))
        self.changed = True
        self._free: list[int] = []
        self._active: Rows | slice | None = None
        self._single = False
        self.weighted: Floats = np.zeros(0, np.float32)
        self.total: npt.NDArray[Any] = np.zeros(0)
        self._varying: set[str] = set()

    # Rows.

    def add(self, card: npt.NDArray[np.int64], part: npt.NDArray[np.int64], share: Floats, *, admitted: int) -> Rows:
        """Add rows for a workload on some cards and return them; demands are set by its first activity."""
        if len(self._free) < len(card):
            self._grow(len(card) - len(self._free))
        rows = np.array([self._free.pop() for _ in range(len(card))], dtype=np.intp)
        self.live[rows], self.card[rows], self.part[rows], self.share[rows] = True, card, part, share
        self.admitted[rows] = admitted
        self._active = None
        self.changed = True
        return rows

    def remove(self, rows: Rows) -> None:
        """Free rows."""
        self.live[rows] = False
        self.due[:, rows] = np.inf
        self.duty[rows] = 1
        self._free.extend(int(row) for row in rows[::-1])
        self._active = None
        self.changed = True

    def _grow(self, needed: int) -> None:
        have = len(self.live)
        more = max(needed, have // 2, 16)
        for name in (*_PER_ROW, *_PER_CHANNEL):
            array = getattr(self, name)
            setattr(self, name, np.pad(array, (*((0, 0),) * (array.ndim - 1), (0, more))))
        self.due[:, have:] = np.inf
        self.duty[have:] = 1
        self._free.extend(range(have + more - 1, have - 1, -1))

    # Time.

    def begin(
        self, rows: Rows, doing: activity.Activity, scale: Scale, *, now: float, rng: np.random.Generator
    ) -> None:
        """Start an activity on rows."""
        leaked = self.values[AT[MEMORY], rows].copy()
        self.values[:, rows] = 0
        self.due[:, rows] = np.inf
        self.duty[rows], self.period[rows] = (doing.pulse.duty, doing.pulse.period) if doing.pulse else (1.0, 0.0)
        self.started[rows] = now
        self.context[rows] = doing.context or (USAGE in doing.values and doing.values[USAGE].high > 0)
        for name, value in doing.values.items():
            channel, factor = AT[name], scale.of(name, share=value.share)
            low, high = (min(end * factor, MAX_DEMAND[name]) for end in (value.low, value.high))
            adds = value.function == "increase"
            if name not in EVENTS:
                drawn = low + (high - low) * rng.random(len(rows))
                grown = drawn + leaked if adds and name == MEMORY else drawn
                self.values[channel, rows] = np.minimum(grown, MAX_DEMAND[name])
            if value.varies or (name in EVENTS and high > 0):
                self.low[channel, rows], self.high[channel, rows] = low, high
                self.adds[channel, rows] = adds or name in EVENTS
                self.every[channel, rows] = value.period
                self.due[channel, rows] = now + value.period
                self._varying.add(name)
        if doing.context and not {MEMORY, YIELDING} & doing.values.keys():
            self.values[AT[YIELDING], rows] = scale.context
        self.changed = True

    def set_usage(self, rows: Rows, usage: float) -> None:
        """Set the usage of rows (0 to 1) until their next activity begins."""
        self.values[AT[USAGE], rows] = usage
        self.changed = True

    def draw(self, now: float, rng: np.random.Generator, *, events: bool) -> list[tuple[str, Rows, Doubles, Floats]]:
        """Draw the values, or events, that are due. Return events: quantity, rows, counts and periods in seconds."""
        came: list[tuple[str, Rows, Doubles, Floats]] = []
        for name, channel in AT.items():
            if name not in self._varying or (name in EVENTS) is not events:
                continue
            rows = np.flatnonzero(self.due[channel] <= now + _TOLERANCE)
            if not len(rows):
                continue
            every, due = self.every[channel, rows], self.due[channel, rows]
            turns = np.floor((now + _TOLERANCE - due) / every) + 1
            low = self.low[channel, rows]
            drawn = low + (self.high[channel, rows] - low) * rng.random(len(rows))
            if events:
                drawn = np.rint(drawn)
            self.due[channel, rows] = due + turns * every
            adds = self.adds[channel, rows]
            grown = np.where(adds, self.values[channel, rows] + drawn * turns, drawn)
            self.values[channel, rows] = np.minimum(grown, MAX_DEMAND[name])
            self.changed = True
            if name in EVENTS:
                came.append((name, rows, drawn * turns, every))
        return came

    def usage(self, start: float, stop: float) -> Floats:
        """Return, per row, the share of the time from `start` to `stop` in which it keeps its card busy."""
        usage: Floats = self.values[AT[USAGE]]
        pulsed = np.flatnonzero(self.duty < 1)
        if not len(pulsed):
            return usage
        duty, period, begun = self.duty[pulsed], self.period[pulsed], self.started[pulsed]

        def on_until(moment: float) -> Doubles:
            turns, rest = np.divmod(np.maximum(moment - begun, 0) + _TOLERANCE, period)
            return np.asarray(turns * duty * period + np.minimum(rest, duty * period))

        self.changed = True
        result: Floats = usage.copy()
        result[pulsed] *= np.clip((on_until(stop) - on_until(start)) / (stop - start), 0, 1)
        return result

    def next_edge(self, now: float) -> float:
        """Return when the next pulse begins or ends; infinity if none."""
        pulsed = np.flatnonzero(self.duty < 1)
        if not len(pulsed):
            return math.inf
        period, on = self.period[pulsed], self.duty[pulsed] * self.period[pulsed]
        turns = np.floor((now - self.started[pulsed] + _TOLERANCE) / period)
        begun = self.started[pulsed] + turns * period
        return float(np.where(now + _TOLERANCE < begun + on, begun + on, begun + period).min())

    @property
    def row_bytes(self) -> int:
        """Bytes of memory per row."""
        arrays = [getattr(self, name) for name in (*_PER_ROW, *_PER_CHANNEL)]
        return sum(array.itemsize * (len(CHANNELS) if array.ndim == 2 else 1) for array in arrays)

    def part_of(self, index: int) -> float:
        """Return a row's share of the demand on its card, as of the last sum."""
        row = int(self.card[index])
        if index >= len(self.weighted) or row >= len(self.total) or self.total[row] <= 0:
            return 0.0
        return float(self.weighted[index] / self.total[row])

    def of_parts(
        self, values: npt.NDArray[Any], parts: npt.NDArray[np.int64], cards_of: Rows, of_whole: npt.NDArray[Any]
    ) -> Doubles:
        """Sum a quantity per part; demands on whole cards count with the share `of_whole` of each part."""
        live = np.flatnonzero(self.live)
        values, whole = values[live], self.part[live] == 0
        at = places.slots(parts)
        own = np.bincount(places.slots(self.part[live]), weights=values, minlength=int(at.max()) + 1)
        on_card = np.bincount(self.card[live][whole], weights=values[whole], minlength=int(cards_of.max()) + 1)
        return np.asarray(own[at] + on_card[cards_of] * of_whole)

    def memory(self, rows: Rows | slice | int) -> npt.NDArray[np.float32]:
        """Return the memory of rows in MiB, yielding memory included."""
        return np.asarray(self.values[AT[MEMORY], rows] + self.values[AT[YIELDING], rows])

    # Sums.

    def summing(self, cards_count: int) -> Summing:
        """Return a function that sums a quantity of the rows per card."""
        if self._active is None:
            active = np.flatnonzero(self.live)
            self._active = slice(None) if len(active) == len(self.live) else active
            self._single = bool(np.bincount(self.card[active]).max(initial=0) <= 1)
        chosen = self._active
        at = self.card[chosen]

        def summed(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if self._single:
                result = np.zeros(cards_count, np.float32)
                result[at] = weights[chosen]
                return result
            return np.bincount(at, weights[chosen], cards_count)

        return summed

    def add_up(self, group: cards.Cards, usage: Floats) -> None:
        """Sum demands per card, clamp them to the card's capacity, and write them to the cards."""
        summed = self.summing(group.count)
        weighted = self.weighted = usage * self.share
        self.total = summed(weighted)
        busy = np.minimum(self.total, 1)
        group["busy"][:] = busy
        group["context"][:] = summed(self.context) > 0
        per_busy = 1 / np.maximum(busy, np.float32(1e-9))
        for name, column in _UNIT_COLUMNS.items():
            values = self.values[AT[name]]
            if values.any():
                np.minimum(summed(weighted * values) * per_busy, 1, out=group[column], casting="unsafe")
            else:
                group[column][:] = 0
        group["nvlink"][:] *= group["linked"]
        memory = group.model.memory_mib
        used = summed(self.values[AT[MEMORY]] + self.values[AT[YIELDING]])
        np.clip(used, 0, memory.usable, out=group["memory_used"], casting="unsafe")
        self.changed = False

    # Keeping.

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain data, for `restore`."""
        arrays = {name: packing.pack(getattr(self, name)) for name in (*_PER_ROW, *_PER_CHANNEL)}
        return {"arrays": arrays, "free": list(self._free)}

    def restore(self, kept: dict[str, Any]) -> None:
        """Restore a snapshot."""
        for name, kind in {**_PER_ROW, **_PER_CHANNEL}.items():
            setattr(self, name, packing.unpack(kept["arrays"][name], kind))
        self._free = list(kept["free"])
        self._varying = {name for name, at in AT.items() if np.isfinite(self.due[at]).any()}
        self._active = None
        self.changed = True


class Scale:
    """Converts values of a profile to values of the rows: shares of the card, MiB, event counts."""

    def __init__(self, group: cards.Cards, *, rate: float, memory_mib: float) -> None:
        self._highest = group.highest
        self._rate = rate
        self._memory = memory_mib
        self.context = min(float(group.model.relations.memory.context), memory_mib)

    def of(self, name: str, *, share: bool) -> float:
        """Return the factor for a quantity. Bandwidths scale with `rate`: the speed relative to the reference card."""
        if name in (MEMORY, YIELDING):
            return self._memory if share else 1.0
        if share or name == USAGE or name in EVENTS:
            return 1.0
        highest = self._highest.get(name, 0.0)
        return self._rate / highest if highest >= 1 else 0.0
