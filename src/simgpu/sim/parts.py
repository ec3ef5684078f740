"""Tiles and MIG instances: the parts of a card, and their readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import errors
from simgpu.sim.cards import Rows
from simgpu.sim.group import Group

Values = npt.NDArray[np.float64]

_MAX_MEMORY_MIB = 1e9


class Part(msgspec.Struct, frozen=True):
    """A tile or MIG instance of a card: its share of the card's compute, and its memory."""

    card: int
    name: str
    share: float
    memory_mib: float


class PartState(msgspec.Struct, frozen=True):
    """Readings of a part of a card; `share` is its share of the card's compute, `usage` is in percent."""

    share: float
    usage: float
    memory_mib: float
    memory_total_mib: float
    power_w: float


class Parts:
    """All parts, by id and by card."""

    def __init__(self) -> None:
        self.known: dict[int, Part] = {}
        self._of: dict[int, list[int]] = {}

    def check(self, card: int, wanted: Sequence[tuple[str, float, float]]) -> None:
        """Raise InputError if a card cannot be divided like this, in addition to its existing parts."""
        for name, share, memory in wanted:
            if not (0 < share <= 1 and 0 < memory <= _MAX_MEMORY_MIB):
                raise errors.InputError("parts", f"{name}: share and memory must be above 0, and the share at most 1")
        held = self.of(card).values()
        if sum(part.share for part in held) + sum(share for _, share, _ in wanted) > 1 + 1e-6:
            raise errors.InputError("parts", "their shares add up to more than the card")

    def add(self, number: int, part: Part) -> None:
        """Add a part of a card."""
        self.known[number] = part
        self._of.setdefault(part.card, []).append(number)

    def of(self, card: int) -> dict[int, Part]:
        """Return the parts of a card by id."""
        return {number: self.known[number] for number in self._of.get(card, ())}

    def forget(self, card: int) -> list[int]:
        """Remove the parts of a card and return their ids."""
        gone = self._of.pop(card, [])
        for number in gone:
            del self.known[number]
        return gone

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove parts."""
        for number in numbers:
            self._of[self.known.pop(number).card].remove(number)

    def states(self, ids: Sequence[int], rows: Rows, group: Group, *, start: float, now: float) -> dict[str, Values]:
        """Return the readings of parts from `start` to `now`, as columns named like the fields of `PartState`.

        Demand on a whole card counts on all of its parts if they cover the card, as tiles do.
        """
        known, numbers = [self.known[number] for number in ids], np.asarray(ids, dtype=np.int64)
        share, room = np.array([part.share for part in known]), np.array([part.memory_mib for part in known])
        of_whole = room * [self._memory_share(part.card) for part in known]
        demand, idle = group.demands, group.cards.constants.idle
        usage = np.zeros(len(known))
        if now > start:
            usage = np.minimum(1.0, demand.of_parts(demand.usage(start, now), numbers, rows, of_whole > 0))
        memory = np.minimum(room, demand.of_parts(demand.memory(slice(None)), numbers, rows, of_whole))
        busy = group.cards["busy"][rows].astype(float)
        working = np.maximum(0.0, group.cards["power_average"][rows] - idle)
        doing = np.divide(working * usage, busy, out=np.zeros(len(known)), where=busy > 0)
        return {
            "share": share, "usage": 100 * usage, "memory_mib": memory, "memory_total_mib": room,
            "power_w": share * (idle + doing),
        }  # fmt: skip

    def _memory_share(self, card: int) -> float:
        """Return 1 / the memory in MiB of all parts of a card; 0 if the parts do not cover the card."""
        parts = self.of(card).values()
        return 1 / sum(part.memory_mib for part in parts) if sum(part.share for part in parts) > 1 - 1e-6 else 0.0

    def restore(self, kept: Mapping[int, Any]) -> None:
        """Restore a snapshot of `known`."""
        for number, part in kept.items():
            self.add(number, msgspec.convert(part, Part))
