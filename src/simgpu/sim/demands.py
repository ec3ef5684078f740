"""The current demands of workloads on cards: one row per workload and card that it runs on.

Values are drawn, pulsed and summed per card here, vectorised over all rows. When activities begin and end is left to
`workloads`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.sim import activity, cards, noise, packing, places
from simgpu.sim.activity import CHANNELS, EVENTS, MAX_DEMAND, MEMORY, UNITS, USAGE, YIELDING

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Drawn = tuple[Rows, Doubles, Floats]  # rows, counts and periods in seconds

AT: Final = {name: index for index, name in enumerate(CHANNELS)}
_UNIT_COLUMNS = dict(zip(UNITS, ("sm", "tensor", "memory", "pcie", "nvlink"), strict=True))
_TOLERANCE = 1e-9  # seconds, of comparisons with deadlines
_BLOCK = 16384  # rows that are drawn together

_PER_ROW: Final = {
    "live": np.bool_, "card": np.int64, "part": np.int64, "admitted": np.int64, "share": np.float32,
    "context": np.float32, "duty": np.float64, "period": np.float64, "started": np.float64,
}  # fmt: skip
_PER_CHANNEL: Final = {
    "values": np.float32, "low": np.float32, "high": np.float32, "adds": np.bool_, "every": np.float32,
    "due": np.float64,
}  # fmt: skip


_MOST = np.array([[MAX_DEMAND[name]] for name in CHANNELS])
_NO_ROWS, _NO_COUNTS = np.zeros(0, np.intp), np.zeros(0)


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
        self.changed = True  # since the last sum
        self.usage_changed = True  # likewise
        self._free: list[int] = []
        self._layout: _Layout | None = None  # built on demand
        self.weighted: Floats = np.zeros(0, np.float32)
        self.total: Floats = np.zeros(0, np.float32)
        self._exceeds = False  # whether a row alone on its card demanded more than all of its time
        self._next_due = np.full(len(CHANNELS), np.inf)  # at the earliest

    # Rows.

    def add(self, card: npt.NDArray[np.int64], part: npt.NDArray[np.int64], share: Floats, *, admitted: int) -> Rows:
        """Add rows for a workload on some cards and return them; demands are set by its first activity."""
        if len(self._free) < len(card):
            self._grow(len(card) - len(self._free))
        rows = np.array([self._free.pop() for _ in range(len(card))], dtype=np.intp)
        at = _span(rows)
        self.live[at], self.card[at], self.part[at], self.share[at] = True, card, part, share
        self.admitted[at] = admitted
        self._layout = None
        self.changed = True
        return rows

    def remove(self, rows: Rows) -> None:
        """Free rows."""
        at = _span(rows)
        self.live[at] = False
        self.due[:, at] = np.inf
        self.duty[at] = 1
        self._free.extend(rows[::-1].tolist())
        self._layout = None
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
        count, at = len(rows), _span(rows)
        leaked = self.values[AT[MEMORY], at].copy()
        self.due[:, at] = np.inf
        self.duty[at], self.period[at] = (doing.pulse.duty, doing.pulse.period) if doing.pulse else (1.0, 0.0)
        self.started[at] = now
        self.context[at] = doing.context or (USAGE in doing.values and doing.values[USAGE].high > 0)
        values = np.zeros((len(CHANNELS), count))
        chances = iter(rng.random((sum(name not in EVENTS for name in doing.values), count)))
        for name, value in doing.values.items():
            channel, factor, most = AT[name], scale.of(name, share=value.share), MAX_DEMAND[name]
            low, high = min(value.low * factor, most), min(value.high * factor, most)
            adds = value.function == "increase"
            if name not in EVENTS:
                chance = next(chances)
                values[channel] = low if low == high else low + (high - low) * chance
                if adds and name == MEMORY:
                    values[channel] += leaked
            if value.varies or (name in EVENTS and high > 0):
                self.low[channel, at], self.high[channel, at] = low, high
                self.adds[channel, at] = adds or name in EVENTS
                self.every[channel, at] = value.period
                self.due[channel, at] = now + value.period
                self._next_due[channel] = min(self._next_due[channel], now + value.period)
        np.minimum(values, _MOST, out=values)
        self.values[:, at] = values
        if doing.context and not {MEMORY, YIELDING} & doing.values.keys():
            self.values[AT[YIELDING], at] = scale.context
        self.changed = True

    def set_usage(self, rows: Rows, usage: float) -> None:
        """Set the usage of rows (0 to 1) until their next activity begins."""
        self.values[AT[USAGE], rows] = usage
        self.usage_changed = True

    def draw(self, now: float, rng: np.random.Generator, *, events: bool) -> list[tuple[str, Drawn]]:
        """Draw the values, or events, that are due. Return the events of each quantity."""
        came: list[tuple[str, Drawn]] = []
        for name, channel in AT.items():
            if (name in EVENTS) is not events or self._next_due[channel] > now + _TOLERANCE:
                continue
            found = [
                (block.start, due)
                for block in self._blocks()
                if (due := self.due[channel, block] <= now + _TOLERANCE).any()
            ]
            if found:
                key = noise.draw_key(rng)
                drawn = [self._draw_some(name, start, due, key, now=now) for start, due in found]
                if name in EVENTS:
                    rows, counts, every = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
                    came.append((name, (rows, counts, every)))
                self.usage_changed |= name == USAGE
                self.changed |= name != USAGE and name not in EVENTS
            self._next_due[channel] = self.due[channel].min()
        return came

    def _blocks(self) -> list[slice]:
        count = len(self.live)
        return [slice(start, min(start + _BLOCK, count)) for start in range(0, count, _BLOCK)]

    def _draw_some(self, name: str, start: int, due: npt.NDArray[np.bool_], key: np.uint32, *, now: float) -> Drawn:
        """Draw the values of the rows from `start` that are due. Return them with their counts and periods."""
        channel, words = AT[name], np.arange(start, start + len(due), dtype=np.uint32)
        at: Rows | slice = slice(start, start + len(due))
        if name in EVENTS or np.count_nonzero(due) < len(due) // 4:  # many are faster together with those between them
            words, due = words[due], due[due]
            at = words.astype(np.intp)
        before, every = self.due[channel, at], self.every[channel, at]
        low, high = self.low[channel, at], self.high[channel, at]
        with np.errstate(all="ignore"):  # of rows that are not due
            turns = (now + _TOLERANCE) - before
            turns /= every
            np.floor(turns, out=turns)
            turns += 1
            following = before + turns * every
        drawn = noise.uniform(words, key)
        drawn *= high - low
        drawn += low
        np.minimum(drawn, high, out=drawn)
        if name in EVENTS:
            np.rint(drawn, out=drawn)
        counts, value = drawn * turns if name in EVENTS else _NO_COUNTS, drawn
        if (adds := self.adds[channel, at] & due).any():
            grown = self.values[channel, at] + drawn * np.where(adds, turns, 0)
            value = np.where(adds, np.minimum(grown, MAX_DEMAND[name]), drawn)
        if isinstance(at, slice):
            np.copyto(self.due[channel, at], following, where=due)
            np.copyto(self.values[channel, at], value, where=due, casting="same_kind")
            return _NO_ROWS, counts, every
        self.due[channel, at], self.values[channel, at] = following, value
        return at, counts, every

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

        result: Floats = usage.copy()
        result[pulsed] *= np.clip((on_until(stop) - on_until(start)) / (stop - start), 0, 1)
        return result

    @property
    def pulses(self) -> bool:
        """Whether the usage of a row changes with time alone."""
        return bool((self.duty < 1).any())

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

    def summed(self, values: npt.NDArray[Any], cards_count: int) -> Floats:
        """Return the sum of a quantity of the rows per card."""
        result = np.zeros(cards_count, np.float32)
        self._sum(values, result)
        return result

    def _sum(self, values: npt.NDArray[Any], out: Floats) -> None:
        """Write the sums of a quantity to the cards with rows."""
        layout = self._rows()
        out[layout.alone_cards] = values[layout.alone]
        if len(layout.shared):
            out[layout.shared_cards] = layout.add(values[layout.shared])

    def _rows(self) -> _Layout:
        if self._layout is None:
            self._layout = _layout(self.live, self.card)
        return self._layout

    def add_up(self, group: cards.Cards, usage: Floats) -> None:
        """Sum demands per card, clamp them to the card's capacity, and write them to the cards."""
        exceeded = self._exceeds
        self._add_usage(group, usage)
        if self.changed:
            for column in ("context", *_UNIT_COLUMNS.values(), "memory_used"):
                group[column][:] = 0
            self._sum(self.context > 0, group["context"])
            np.minimum(group["context"], 1, out=group["context"])
            self._sum(self.memory(slice(None)), group["memory_used"])
            np.clip(group["memory_used"], 0, group.model.memory_mib.usable, out=group["memory_used"])
        self._add_units(group, alone=self.changed or exceeded or self._exceeds)
        self.changed = self.usage_changed = False

    def _add_usage(self, group: cards.Cards, usage: Floats) -> None:
        self.weighted = usage * self.share
        if self.changed:
            self.total = np.zeros(group.count, np.float32)
        self._sum(self.weighted, self.total)
        np.minimum(self.total, 1, out=group["busy"])
        self._exceeds = bool(self.weighted[self._rows().alone].max(initial=0) > 1)

    def _add_units(self, group: cards.Cards, *, alone: bool) -> None:
        """Write demands on the units while cards are busy: those of rows that share a card, and of others on demand.

        A row that is alone on its card demands the same whenever it is busy; of rows that share one, each counts for
        its share of the time.
        """
        layout = self._rows()
        if not alone and not len(layout.shared):
            return
        busy = np.maximum(group["busy"][layout.shared_cards], np.float32(1e-9))
        for name, column in _UNIT_COLUMNS.items():
            values, demanded = self.values[AT[name]], group[column]
            if not values.any():
                continue
            if alone:
                own = values[layout.alone]
                if self._exceeds:
                    own = own * np.maximum(self.weighted[layout.alone], 1)
                demanded[layout.alone_cards] = np.minimum(own, 1)
            if len(layout.shared):
                sums = layout.add(self.weighted[layout.shared] * values[layout.shared])
                demanded[layout.shared_cards] = np.minimum(sums / busy, 1)
        group["nvlink"][:] *= group["linked"]

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
        self._next_due = self.due.min(axis=1, initial=np.inf)
        self._layout = None
        self.changed = True


class _Layout(msgspec.Struct, frozen=True):
    """Rows in use: those that are alone on their card, and those that share one."""

    alone: Rows | slice
    alone_cards: Rows
    shared: Rows
    shared_cards: Rows  # each once
    places: Rows  # of each shared row among these cards

    def add(self, values: npt.NDArray[Any]) -> Doubles:
        """Return sums of values of the shared rows, per shared card."""
        return np.asarray(np.bincount(self.places, values, len(self.shared_cards)), np.float64)


def _span(rows: Rows) -> Rows | slice:
    """Return rows as an index: of a single one, as most workloads have, a slice, which is several times as fast."""
    return slice(rows[0], rows[0] + 1) if len(rows) == 1 else rows


def _layout(live: npt.NDArray[np.bool_], card: npt.NDArray[np.int64]) -> _Layout:
    rows = np.flatnonzero(live)
    crowded = (np.bincount(card[rows]) > 1)[card[rows]]
    alone, shared = rows[~crowded], rows[crowded]
    shared_cards, places_of = np.unique(card[shared], return_inverse=True)
    return _Layout(
        alone=slice(None) if len(alone) == len(live) else alone,
        alone_cards=card[alone],
        shared=shared,
        shared_cards=shared_cards,
        places=places_of,
    )


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
