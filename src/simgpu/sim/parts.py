"""Tiles and MIG instances: the parts of a card, and their readings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import errors
from simgpu.sim import demands, places
from simgpu.sim.cards import Rows
from simgpu.sim.group import Group

Values = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

_MAX_MEMORY_MIB = 1e9
_UNITS = {"sm": "sm", "tensor": "tensor", "traffic": "bandwidth"}  # fields of PartState, and what is asked of each


class Part(msgspec.Struct, frozen=True):
    """A tile or MIG instance of a card: its share of the card's compute, and its memory."""

    card: int
    name: str
    share: float
    memory_mib: float


class PartState(msgspec.Struct, frozen=True):
    """Readings of a part of a card; `share` is its share of the card's compute, `usage` is in percent.

    `sm`, `tensor` and `traffic` are how busy its own workloads keep its multiprocessors, tensor pipes and part of the
    memory interface, from 0 to 1, at the card's clock.
    """

    share: float
    usage: float
    memory_mib: float
    memory_total_mib: float
    power_w: float
    sm: float = 0.0
    tensor: float = 0.0
    traffic: float = 0.0


class Parts:
    """All parts, by id and by card. Columns by slot serve readings of many: there may be tens of thousands."""

    def __init__(self) -> None:
        self.known: dict[int, Part] = {}
        self._of: dict[int, list[int]] = {}
        self._cards = np.zeros(0, np.int64)
        self._shares, self._rooms, self._of_whole = (np.zeros(0) for _ in range(3))
        self._changed: set[int] = set()  # cards whose parts' columns are out of date

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
        self._changed.add(part.card)

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
            card = self.known.pop(number).card
            self._of[card].remove(number)
            self._changed.add(card)

    def cards(self, ids: Ids) -> Ids:
        """Return the card of each part."""
        self._update()
        return self._cards[places.slots(ids)]

    def states(self, ids: Ids, rows: Rows, group: Group, *, start: float, now: float) -> dict[str, Values]:
        """Return the readings of parts from `start` to `now`, as columns named like the fields of `PartState`.

        Demand on a whole card counts on all of its parts if they cover the card, as tiles do.
        """
        self._update()
        slots = places.slots(ids)
        share, room = self._shares[slots], self._rooms[slots]
        of_whole = room * self._of_whole[slots]
        demand, idle = group.demands, group.cards.constants.idle
        usage, asked = np.zeros(len(ids)), dict.fromkeys(_UNITS, np.zeros(len(ids)))
        if now > start:
            busy_rows = demand.usage(start, now)
            usage = np.minimum(1.0, demand.of_parts(busy_rows, ids, rows, of_whole > 0))
            for name, unit in _UNITS.items():
                work = busy_rows * np.minimum(demand.values[demands.AT[unit]], 1)
                asked[name] = np.minimum(1.0, demand.of_parts(work, ids, rows, of_whole > 0))
        memory = np.minimum(room, demand.of_parts(demand.memory(slice(None)), ids, rows, of_whole))
        busy = group.cards["busy"][rows].astype(float)
        working = np.maximum(0.0, group.cards["power_average"][rows] - idle)
        doing = np.divide(working * usage, busy, out=np.zeros(len(ids)), where=busy > 0)
        return {
            "share": share, "usage": 100 * usage, "memory_mib": memory, "memory_total_mib": room,
            "power_w": share * (idle + doing), **_served(asked, usage, group, rows),
        }  # fmt: skip

    def _update(self) -> None:
        """Bring the columns up to date."""
        for card in self._changed:
            parts = self.of(card)
            if not parts:
                continue
            slots = places.slots(np.array(list(parts), np.int64))
            if (short := int(slots.max()) + 1 - len(self._cards)) > 0:
                more = max(short, len(self._cards) // 2, 16)
                self._cards = np.pad(self._cards, (0, more))
                self._shares, self._rooms, self._of_whole = (
                    np.pad(column, (0, more)) for column in (self._shares, self._rooms, self._of_whole)
                )
            self._cards[slots] = card
            self._shares[slots] = [part.share for part in parts.values()]
            self._rooms[slots] = [part.memory_mib for part in parts.values()]
            self._of_whole[slots] = _memory_share(parts.values())
        self._changed.clear()

    def restore(self, kept: Mapping[int, Any]) -> None:
        """Restore a snapshot of `known`."""
        for number, part in kept.items():
            self.add(number, msgspec.convert(part, Part))


def _served(asked: Mapping[str, Values], usage: Values, group: Group, rows: Rows) -> dict[str, Values]:
    """Return what parts get of the units that they ask for; a lower clock, or much traffic, slows each on its own."""
    slower = 1 / np.maximum(group.cards["clock"][rows].astype(float), 1e-9)
    compute, traffic = np.maximum(asked["sm"], asked["tensor"]), asked["traffic"]
    needed = np.maximum(compute * slower, traffic * np.maximum(slower * group.cards.constants.reach, 1))
    rate = usage / np.maximum(needed, np.maximum(usage, 1e-9))
    return {name: values * rate for name, values in asked.items()}


def _memory_share(parts: Collection[Part]) -> float:
    """Return 1 / the memory in MiB of all parts of a card; 0 if the parts do not cover the card."""
    return 1 / sum(part.memory_mib for part in parts) if sum(part.share for part in parts) > 1 - 1e-6 else 0.0
