"""Compute apps, as nvidia-smi calls them: processes that have a card open, with the memory and time of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from simgpu.page import layout


class App(msgspec.Struct, frozen=True):
    """A process and its demands, in any unit, on a card or its instance by place on the page; -1 is the card.

    `compute` is the number of the compute instance.
    """

    pid: int
    usage: float
    memory: float
    instance: int = -1
    compute: int = 0


def fill(row: Any, found: Sequence[App]) -> None:
    """Write processes to a card's page, with what is in use there split in proportion to their demands.

    If there are more than fit, those with the most memory are listed.
    """
    merged = _merged(found)
    sharing = [(_instance(row, item), item) for item in merged]  # those on one instance share what is in use there
    filled = [
        entry
        for number in dict.fromkeys(number for number, _ in sharing)
        for entry in _entries(row, [item for there, item in sharing if there == number])
    ]
    filled.sort(key=lambda entry: (entry[1], entry[0]))
    if len(filled) > layout.APPS:
        largest = sorted(filled, key=lambda entry: entry[-1], reverse=True)[: layout.APPS]
        filled = [entry for entry in filled if entry in largest]
    row["app_count"] = len(filled)
    row["apps"] = 0
    for at, entry in enumerate(filled):
        row["apps"][at] = entry


def _merged(found: Sequence[App]) -> list[App]:
    """Merge entries of one process and instance, and sort by pid; a process without memory has not opened the card."""
    sums: dict[tuple[int, int], tuple[float, float]] = {}
    for item in found:
        usage, memory = sums.get((item.pid, item.instance), (0.0, 0.0))
        sums[item.pid, item.instance] = (usage + item.usage, memory + item.memory)
    return [
        App(pid, usage, memory, instance) for (pid, instance), (usage, memory) in sorted(sums.items()) if memory > 0
    ]


def _instance(row: Any, item: App) -> int:
    """Return the number of the instance that a process is on; -1 for the card."""
    return -1 if item.instance < 0 else int(row["instances"][item.instance]["gpu_instance"])


def _entries(row: Any, found: Sequence[App]) -> list[tuple[int, ...]]:
    place = found[0].instance
    held = row if place < 0 else row["instances"][place]
    usages, memories = [item.usage for item in found], [item.memory for item in found]
    return [
        (item.pid, item.instance, usage, memory_usage, memory)
        for item, usage, memory_usage, memory in zip(
            found,
            split(int(held["usage"]), usages),
            split(int(row["memory_usage"]) if place < 0 else 0, usages),
            split(int(held["memory_used"]), memories),
            strict=True,
        )
    ]


def split(whole: int, weights: Sequence[float]) -> list[int]:
    """Split a whole number in proportion to weights into whole numbers with the same sum; zeros if all weights are."""
    total = sum(weights)
    if total <= 0:
        return [0] * len(weights)
    ends = [round(whole * part / total) for part in accumulate(weights)]
    ends[-1] = whole
    return [stop - start for start, stop in pairwise([0, *ends])]
