"""Which workloads have to end: those that find no more memory, and those past limits of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from simgpu.sim import activity, demands
from simgpu.sim.group import Group
from simgpu.sim.parts import Part

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


def reached(limits: Mapping[str, float], asked: demands.Demands, rows: list[int], *, runtime: float) -> str | None:
    """The first of a workload's own limits that it is past."""
    for name, limit in limits.items():
        if name == activity.RUNTIME:
            over = runtime >= limit
        elif name == activity.MEMORY:
            over = bool((asked.memory(np.array(rows)) > limit).any())
        else:
            over = bool((asked.values[demands.AT[name], rows] > limit).any())
        if over:
            return name
    return None
