"""Which card is which row of which group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from simgpu.sim import packing


class Places:
    """Ids are positions here, and are never used again. Id 0 is nobody; group -1 means that there is no card."""

    def __init__(self) -> None:
        self._groups: npt.NDArray[np.int32] = np.full(1, -1, np.int32)
        self._rows: npt.NDArray[np.int32] = np.zeros(1, np.int32)
        self._used = 1
        self._cards: dict[int, npt.NDArray[np.int32]] = {}

    @property
    def card_bytes(self) -> int:
        """Bytes held for each card."""
        return self._groups.itemsize + 2 * self._rows.itemsize

    def add(self, group: int, rows: npt.NDArray[np.intp]) -> range:
        """Ids for new rows."""
        ids = range(self._used, self._used + len(rows))
        if ids.stop > len(self._rows):
            more = max(ids.stop - len(self._rows), len(self._rows) // 2, 16)
            self._groups = np.pad(self._groups, (0, more), constant_values=-1)
            self._rows = np.pad(self._rows, (0, more))
        self._groups[ids.start : ids.stop] = group
        self._rows[ids.start : ids.stop] = rows
        self._used = ids.stop
        if group >= 0 and len(rows):
            known = self._cards.get(group, np.zeros(0, np.int32))
            if (short := int(rows.max()) + 1 - len(known)) > 0:
                known = np.pad(known, (0, max(short, len(known) // 2)))
            known[rows] = ids
            self._cards[group] = known
        return ids

    def remove(self, card: int) -> None:
        """The card is gone."""
        self._groups[card] = -1

    def find(self, card: int) -> tuple[int, int]:
        """Group and row of a card."""
        return (int(self._groups[card]), int(self._rows[card])) if 0 < card < self._used else (-1, 0)

    def find_all(
        self, ids: Sequence[int] | npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.intp]]:
        """Groups and rows of many."""
        wanted = np.asarray(ids, dtype=np.intp)
        known = (wanted > 0) & (wanted < self._used)
        wanted = np.where(known, wanted, 0)
        return self._groups[wanted], self._rows[wanted].astype(np.intp)

    def card(self, group: int, row: int) -> int:
        """The card in a row."""
        return int(self._cards[group][row])

    def snapshot(self) -> dict[str, Any]:
        """Everything, to go on from later."""
        cards_of = {group: packing.pack(known) for group, known in self._cards.items()}
        return {
            "groups": packing.pack(self._groups),
            "rows": packing.pack(self._rows),
            "used": self._used,
            "cards": cards_of,
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self._groups, self._rows = (packing.unpack(kept[name], np.int32) for name in ("groups", "rows"))
        self._used = kept["used"]
        self._cards = {group: packing.unpack(known, np.int32) for group, known in kept["cards"].items()}
