"""Blocks of neighbouring nodes on the canvas, so that a viewer is sent only what it looks at.

Each block is encoded once for all who look at it, and their number is bounded: the cost does not grow with viewers that
look at different parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simgpu.dashboard import encoding
from simgpu.dashboard.frames import Cells, FleetLayout

MAX_BLOCKS = 256
_LEAST_NODES = 4  # of a block: smaller ones are more names than cells

Change = tuple[str, str]


def parse(text: str) -> frozenset[int] | None:
    """Return the blocks whose bits are set in a hexadecimal number; None, which means all, if it is empty."""
    bits = int(text, 16) if text else 0
    return frozenset(number for number in range(MAX_BLOCKS) if bits >> number & 1) if text else None


class BlockMap:
    """Which block each node is in, and the cells of each block, of nodes that are shown and their cells in order."""

    def __init__(self, layout: FleetLayout, nodes: Sequence[int], counts: Sequence[int]) -> None:
        pools = {pool: number for number, pool in enumerate(dict.fromkeys(layout.pools[node] for node in nodes))}
        by_name = {node: rank for rank, node in enumerate(layout.order)}
        order = sorted(range(len(nodes)), key=lambda at: (pools[layout.pools[nodes[at]]], by_name[nodes[at]]))
        size = max(_LEAST_NODES, -(-len(nodes) // MAX_BLOCKS))
        self.of_node = np.empty(len(nodes), np.intp)
        self.of_node[order] = np.arange(len(nodes)) // size
        self.count = -(-len(nodes) // size)
        self._of_cell = np.repeat(self.of_node, counts)
        self._sorted = np.argsort(self._of_cell, kind="stable")
        self._starts = np.searchsorted(self._of_cell[self._sorted], np.arange(self.count + 1))
        self._inside = np.empty(len(self._of_cell), np.intp)  # the place of each cell among those of its block
        self._inside[self._sorted] = np.arange(len(self._of_cell)) - self._starts[self._of_cell[self._sorted]]

    def cells(self, number: int, values: Cells) -> Cells:
        """Return the cells of a block, in order."""
        return values[self._sorted[self._starts[number] : self._starts[number + 1]]]

    def changes(self, before: Cells, after: Cells) -> dict[int, tuple[npt.NDArray[np.intp], Cells]]:
        """Return the places inside of each block that have changed, and their values; others are left out."""
        places = np.flatnonzero(before != after)
        numbers = self._of_cell[places]
        by_block = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[by_block], np.arange(self.count + 1)).tolist()
        found = {}
        for number, (start, end) in enumerate(itertools.pairwise(starts)):
            if start < end:
                changed = places[by_block[start:end]]
                found[number] = self._inside[changed], after[changed]
        return found


def packed(change: tuple[npt.NDArray[np.intp], Cells]) -> Change:
    """Return places and values as texts."""
    return encoding.packed(encoding.gaps(change[0])), encoding.packed(change[1])
