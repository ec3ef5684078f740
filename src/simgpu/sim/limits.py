"""Which workloads are terminated: by limits of their card, which include its memory, and by limits of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from simgpu.catalog import ceilings
from simgpu.sim import activity, demands, packing
from simgpu.sim.group import Group
from simgpu.sim.parts import Part

_MEMORY = demands.AT[activity.MEMORY]
_SLACK = 0.5  # MiB by which memory may be exceeded
_SETTLING = 2.0  # seconds in which a reading may follow the start or end of a workload, before one ends
_ORDER: Final = (*activity.CHANNELS, *activity.READINGS)


class _Room(NamedTuple):
    """Rows that exceed a limit together: how much each demands, and how much there is."""

    name: str
    rows: demands.Rows
    wanted: demands.Doubles
    room: float


def crossing(group: Group, parts: Mapping[int, Part]) -> dict[int, str]:
    """Return the workloads whose demand crosses a limit of their card or part, and its name; earlier ones come first.

    Memory always has a limit; other quantities have where the model states one.
    """
    admitted, ended = group.demands.admitted, dict[int, str]()
    for name, rows, wanted, room in chain(_memory_rooms(group, parts), _stated_rooms(group)):
        held = 0.0
        for at in np.argsort(admitted[rows], kind="stable"):
            number = int(admitted[rows[at]])
            if number in ended:
                continue
            if held + wanted[at] > room:
                ended[number] = name
            else:
                held += float(wanted[at])
    return ended


def _memory_rooms(group: Group, parts: Mapping[int, Part]) -> Iterator[_Room]:
    """Yield overcommitted cards and all parts in use."""
    demand, whole = group.demands, group.model.memory_mib.usable + _SLACK
    wanted = demand.values[_MEMORY]
    for row in np.flatnonzero(demand.summed(wanted, group.cards.count) > whole):
        rows = np.flatnonzero(demand.live & (demand.card == row))
        yield _Room(activity.MEMORY, rows, wanted[rows], whole)
    for part in sorted(set(demand.part[demand.live & (demand.part > 0)].tolist())):
        rows = np.flatnonzero(demand.live & (demand.part == part))
        yield _Room(activity.MEMORY, rows, wanted[rows], parts[part].memory_mib + _SLACK)


def _stated_rooms(group: Group) -> Iterator[_Room]:
    """Yield the cards, or parts, on which demands are above limits that the model states."""
    demand = group.demands
    for ceiling in group.model.terminate:
        if ceiling.quantity not in ceilings.DEMANDS or ceiling.above is None:
            continue
        room = ceiling.above * (1 + 1e-6)  # of sums in single precision
        wanted = _demanded(demand, ceiling.quantity, of=ceiling.of)
        for row in np.flatnonzero(demand.summed(wanted, group.cards.count) > room):
            rows = np.flatnonzero(demand.live & (demand.card == row))
            if ceiling.of == "card":
                yield _Room(ceiling.shown, rows, wanted[rows], room)
                continue
            whole = 1 / group.model.tiles if ceiling.quantity == activity.MEMORY else 1.0  # on each part
            for part in sorted(set(demand.part[rows].tolist())):
                there = rows[(demand.part[rows] == part) | (demand.part[rows] == 0)]
                yield _Room(ceiling.shown, there, np.where(demand.part[there] == 0, whole, 1.0) * wanted[there], room)


def _demanded(demand: demands.Demands, name: str, *, of: str) -> demands.Doubles:
    """Return how much of a quantity of its card, or part, each row demands."""
    if name == activity.MEMORY:
        return demand.memory(slice(None)).astype(float)
    usage = demand.values[demands.AT[activity.USAGE]] * (demand.share if of == "card" else 1.0)
    return np.asarray(usage if name == activity.USAGE else usage * demand.values[demands.AT[name]], float)


class ReadingLimits:
    """The limits that a model states for readings of its cards.

    The newest workload on a card past one ends. The next one ends if the reading has not begun to return in the seconds
    after.
    """

    def __init__(self, stated: Sequence[ceilings.Ceiling]) -> None:
        self._stated = tuple(item for item in stated if item.quantity in activity.READINGS)
        self._last: list[tuple[demands.Doubles, demands.Doubles]] = [
            (np.zeros(0), np.zeros(0)) for _ in self._stated
        ]  # by card: until when it settles, and how far it was past the limit

    def __bool__(self) -> bool:
        return bool(self._stated)

    def past(self, group: Group, now: float, started: Callable[[int], float]) -> dict[int, str]:
        """Return the workloads to end, and the name of the limit.

        `started` returns when a workload did: readings of a card at rest are below limits of one at work.
        """
        ended: dict[int, str] = {}
        demand, count = group.demands, group.cards.count
        newest = np.zeros(count, np.int64)
        np.maximum.at(newest, demand.card[demand.live], demand.admitted[demand.live])
        for at, ceiling in enumerate(self._stated):
            until, worst = (np.pad(item, (0, count - len(item))) for item in self._last[at])
            excess = _excess(ceiling, group.cards[activity.READINGS[ceiling.quantity]])
            worst[excess <= 0] = 0.0
            chosen = np.flatnonzero((excess > 0) & (newest > 0) & (now >= until) & (excess >= worst))
            if ceiling.below is not None and len(chosen):
                chosen = chosen[[now - started(number) >= _SETTLING for number in newest[chosen].tolist()]]
            until[chosen], worst[chosen] = now + _SETTLING, excess[chosen]
            self._last[at] = (until, worst)
            for number in newest[chosen].tolist():
                ended.setdefault(number, ceiling.shown)
        return ended

    def snapshot(self) -> list[list[Any]]:
        """Return the state as plain data, for `restore`."""
        return [[packing.pack(item) for item in pair] for pair in self._last]

    def restore(self, kept: Sequence[Sequence[Any]]) -> None:
        """Restore a snapshot."""
        for at, (until, worst) in enumerate(kept):
            self._last[at] = (packing.unpack(until, np.float64), packing.unpack(worst, np.float64))


def _excess(ceiling: ceilings.Ceiling, readings: Any) -> demands.Doubles:
    """Return how far readings are past a limit; 0 or less if they are not."""
    above = np.inf if ceiling.above is None else ceiling.above
    below = -np.inf if ceiling.below is None else ceiling.below
    return np.maximum(np.asarray(readings, float) - above, below - np.asarray(readings, float))


class WorkloadLimits:
    """The limits of one workload, checked together: of what it demands, and of the readings of its cards."""

    def __init__(self, profile: activity.Profile) -> None:
        self._names = {name: profile.limit_names.get(name, name) for name in profile.limits}
        self.runtime = profile.limits.get(activity.RUNTIME, math.inf)
        self.highest = np.full(len(_ORDER), np.inf)
        for name, limit in profile.limits.items():
            if name != activity.RUNTIME:
                self.highest[_ORDER.index(name)] = limit

    def reached(self, group: Group, rows: list[int], *, runtime: float) -> str | None:
        """Return the first limit that it has reached, or None."""
        over = _values(group, np.array(rows)).max(axis=1) > self.highest
        if runtime < self.runtime and not over.any():
            return None
        past = {activity.RUNTIME: runtime >= self.runtime, **dict(zip(_ORDER, over.tolist(), strict=True))}
        return next(shown for name, shown in self._names.items() if past[name])


class LimitedWorkload(msgspec.Struct, frozen=True):
    """A workload on cards of one model, and its limits."""

    number: int
    rows: list[int]
    started: float
    own: WorkloadLimits


class LimitWatch:
    """The workloads with limits on cards of one model, checked together."""

    def __init__(self, watched: Sequence[LimitedWorkload]) -> None:
        self._numbers = np.array([item.number for item in watched])
        self._rows = np.fromiter(chain.from_iterable(item.rows for item in watched), dtype=np.intp)
        self._starts = np.cumsum([0, *(len(item.rows) for item in watched[:-1])])
        self._started = np.array([item.started for item in watched])
        self._runtime = np.array([item.own.runtime for item in watched])
        self._highest = np.array([item.own.highest for item in watched]).T
        if not np.isfinite(self._highest[len(activity.CHANNELS) :]).any():
            self._highest = self._highest[: len(activity.CHANNELS)]  # no readings are limited

    def past(self, group: Group, now: float) -> list[int]:
        """Return the workloads that have reached a limit."""
        values = _values(group, self._rows, readings=len(self._highest) == len(_ORDER))
        highest = np.maximum.reduceat(values, self._starts, axis=1)
        over = (highest > self._highest).any(axis=0) | (now - self._started >= self._runtime)
        found: list[int] = self._numbers[over].tolist()
        return found


def _values(group: Group, rows: demands.Rows, *, readings: bool = True) -> Any:
    """Return the demands of rows by channel, memory including yielding memory; then the readings of their cards."""
    demand = group.demands
    values: demands.Floats = demand.values[:, rows]
    values[_MEMORY] = demand.memory(rows)
    if not readings:
        return values
    cards = demand.card[rows]
    return np.concatenate([values, [group.cards[column][cards] for column in activity.READINGS.values()]])
