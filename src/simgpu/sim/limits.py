"""Which workloads have to end: those that find no more memory, and those past limits of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from simgpu.sim import activity, demands
from simgpu.sim.group import Group
from simgpu.sim.parts import Part

_MEMORY = demands.AT[activity.MEMORY]
_SLACK = 0.5  # MiB by which memory may be exceeded


def out_of_memory(group: Group, parts: Mapping[int, Part]) -> list[int]:
    """Memory is what a card, or a part of one, runs out of: whoever crosses the end has to go, the others stay."""
    asked = group.demands
    wanted = asked.values[demands.AT[activity.MEMORY]]
    ended: dict[int, None] = {}
    for rows, room in _rooms(group, parts):
        held = 0.0
        for index in rows[np.argsort(asked.admitted[rows], kind="stable")]:
            number = int(asked.admitted[index])
            if number in ended:
                continue
            if held + wanted[index] > room:
                ended[number] = None
            else:
                held += float(wanted[index])
    return list(ended)


def _rooms(group: Group, parts: Mapping[int, Part]) -> Iterator[tuple[demands.Rows, float]]:
    """Cards on which there is too much and parts on which there is anything: the rows on each, and its memory."""
    asked, whole = group.demands, group.model.memory_mib.usable + _SLACK
    for row in np.flatnonzero(asked.summing(group.cards.count)(asked.values[demands.AT[activity.MEMORY]]) > whole):
        yield np.flatnonzero(asked.live & (asked.card == row)), whole
    for part in np.unique(asked.part[asked.live & (asked.part > 0)]).tolist():
        yield np.flatnonzero(asked.live & (asked.part == part)), parts[part].memory_mib + _SLACK


class Own:
    """A workload's limits, looked at all at once: there may be many, and many workloads that have them."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._names = tuple(limits)
        self._runtime = limits.get(activity.RUNTIME, math.inf)
        self._highest = np.full(len(demands.AT), np.inf)
        for name, limit in limits.items():
            if name != activity.RUNTIME:
                self._highest[demands.AT[name]] = limit

    def reached(self, asked: demands.Demands, rows: list[int], *, runtime: float) -> str | None:
        """The first of the limits that it is past."""
        values = asked.values[:, rows].max(axis=1)
        values[_MEMORY] = asked.memory(np.array(rows)).max()  # also what would give way
        over = values > self._highest
        if runtime < self._runtime and not over.any():
            return None
        past = {activity.RUNTIME: runtime >= self._runtime, **dict(zip(demands.AT, over.tolist(), strict=True))}
        return next(name for name in self._names if past[name])
