"""Which workloads are terminated: those that run out of memory, and those past limits of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np

from simgpu.sim import activity, demands
from simgpu.sim.group import Group
from simgpu.sim.parts import Part

_MEMORY = demands.AT[activity.MEMORY]
_SLACK = 0.5  # MiB by which memory may be exceeded


def out_of_memory(group: Group, parts: Mapping[int, Part]) -> list[int]:
    """Return the workloads that do not fit into the memory of their card or part; earlier ones take precedence."""
    demand = group.demands
    wanted = demand.values[demands.AT[activity.MEMORY]]
    ended: dict[int, None] = {}
    for rows, room in _rooms(group, parts):
        held = 0.0
        for index in rows[np.argsort(demand.admitted[rows], kind="stable")]:
            number = int(demand.admitted[index])
            if number in ended:
                continue
            if held + wanted[index] > room:
                ended[number] = None
            else:
                held += float(wanted[index])
    return list(ended)


def _rooms(group: Group, parts: Mapping[int, Part]) -> Iterator[tuple[demands.Rows, float]]:
    """Yield overcommitted cards and all parts in use: the rows on each, and its memory in MiB."""
    demand, whole = group.demands, group.model.memory_mib.usable + _SLACK
    for row in np.flatnonzero(demand.summed(demand.values[_MEMORY], group.cards.count) > whole):
        yield np.flatnonzero(demand.live & (demand.card == row)), whole
    for part in sorted(set(demand.part[demand.live & (demand.part > 0)].tolist())):
        yield np.flatnonzero(demand.live & (demand.part == part)), parts[part].memory_mib + _SLACK


class WorkloadLimits:
    """The limits of one workload, checked together."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._names = tuple(limits)
        self.runtime = limits.get(activity.RUNTIME, math.inf)
        self.highest = np.full(len(demands.AT), np.inf)
        for name, limit in limits.items():
            if name != activity.RUNTIME:
                self.highest[demands.AT[name]] = limit

    def reached(self, demand: demands.Demands, rows: list[int], *, runtime: float) -> str | None:
        """Return the first limit that it has reached, or None."""
        over = _values(demand, np.array(rows)).max(axis=1) > self.highest
        if runtime < self.runtime and not over.any():
            return None
        past = {activity.RUNTIME: runtime >= self.runtime, **dict(zip(demands.AT, over.tolist(), strict=True))}
        return next(name for name in self._names if past[name])


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

    def past(self, demand: demands.Demands, now: float) -> list[int]:
        """Return the workloads that have reached a limit."""
        highest = np.maximum.reduceat(_values(demand, self._rows), self._starts, axis=1)
        over = (highest > self._highest).any(axis=0) | (now - self._started >= self._runtime)
        found: list[int] = self._numbers[over].tolist()
        return found


def _values(demand: demands.Demands, rows: demands.Rows) -> demands.Floats:
    """Return the demands of rows by channel; memory includes yielding memory."""
    values: demands.Floats = demand.values[:, rows]
    values[_MEMORY] = demand.memory(rows)
    return values
