"""Maps ids of cards to groups and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simgpu.sim import packing

Ids = npt.NDArray[np.int64]

_SLOTS = 32  # bits of an id that are a slot here; the others count how often the slot was reused
_MASK = (1 << _SLOTS) - 1


class Places:
    """Ids are never reused, but slots are. Id 0 is not used; group -1 means that there is no card."""

    def __init__(self) -> None:
        self._groups: npt.NDArray[np.int32] = np.full(1, -1, np.int32)
        self._rows: npt.NDArray[np.int32] = np.zeros(1, np.int32)
        self._turns: npt.NDArray[np.int32] = np.zeros(1, np.int32)
        self._free: list[int] = []
        self._cards: dict[int, Ids] = {}

    @property
    def card_bytes(self) -> int:
        """Bytes of memory per card."""
        return self._groups.itemsize + self._rows.itemsize + self._turns.itemsize + np.dtype(np.int64).itemsize

    def add(self, group: int, rows: npt.NDArray[np.intp]) -> list[int]:
        """Return ids for new rows."""
        if len(self._free) < len(rows):
            self._grow(len(rows) - len(self._free))
        slots = np.array([self._free.pop() for _ in range(len(rows))], dtype=np.intp)
        self._groups[slots] = group
        self._rows[slots] = rows
        ids = slots + (self._turns[slots].astype(np.int64) << _SLOTS)
        if group >= 0 and len(rows):
            known = self._cards.get(group, np.zeros(0, np.int64))
            if (short := int(rows.max()) + 1 - len(known)) > 0:
                known = np.pad(known, (0, max(short, len(known) // 2)))
            known[rows] = ids
            self._cards[group] = known
        found: list[int] = ids.tolist()
        return found

    def _grow(self, needed: int) -> None:
        have = len(self._rows)
        more = max(needed, have // 2, 16)
        self._groups = np.pad(self._groups, (0, more), constant_values=-1)
        self._rows, self._turns = np.pad(self._rows, (0, more)), np.pad(self._turns, (0, more))
        self._free[:0] = range(have + more - 1, have - 1, -1)  # freed slots are used first

    def remove(self, ids: Sequence[int]) -> None:
        """Remove cards, or parts of cards."""
        for number in ids:
            slot = number & _MASK
            self._groups[slot] = -1
            self._turns[slot] += 1
            self._free.append(slot)

    def forget(self, group: int) -> None:
        """Remove a group that has no cards any more."""
        self._cards.pop(group, None)

    def find(self, card: int) -> tuple[int, int]:
        """Return group and row of a card."""
        slot = card & _MASK
        if not 0 < slot < len(self._rows) or card >> _SLOTS != self._turns[slot]:
            return -1, 0
        return int(self._groups[slot]), int(self._rows[slot])

    def find_all(self, ids: Sequence[int] | Ids) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]:
        """Return the group and row of each card or part by id; group -1 for those that do not exist."""
        wanted = np.asarray(ids, dtype=np.int64)
        slots = wanted & _MASK
        slots = np.where(slots < len(self._rows), slots, 0)
        known = self._turns[slots] == wanted >> _SLOTS
        return np.where(known, self._groups[slots], np.int32(-1)), self._rows[slots].astype(np.intp)

    def card(self, group: int, row: int) -> int:
        """Return the id of the card in a row."""
        return int(self._cards[group][row])

    def cards(self, group: int, rows: npt.NDArray[np.int64]) -> Ids:
        """Return the ids of the cards in rows."""
        return self._cards[group][rows]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain data, for `restore`."""
        arrays = {"groups": self._groups, "rows": self._rows, "turns": self._turns}
        return {
            **{name: packing.pack(array) for name, array in arrays.items()},
            "free": self._free,
            "cards": {group: packing.pack(known) for group, known in self._cards.items()},
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self._groups, self._rows, self._turns = (
            packing.unpack(kept[name], np.int32) for name in ("groups", "rows", "turns")
        )
        self._free = list(kept["free"])
        self._cards = {group: packing.unpack(known, np.int64) for group, known in kept["cards"].items()}


def slots(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the slots of ids: small numbers, unique among existing ids."""
    return ids & _MASK
