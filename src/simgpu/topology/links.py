"""The fabric of a machine: links between devices, tile by tile.

Cards of one model sit on boards of eight. On a board each is linked to every other, a tile to the tile of the same
number, and all of them over the same number of ports; ports that are left over are not connected. Ports that cannot be
divided evenly among tiles belong to the card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from simgpu.topology.devices import Device

BOARD = 8  # devices


class Link(msgspec.Struct, frozen=True):
    """The link from a device to a peer, by position: `ports` ports, from `port` here and from `remote` at the peer.

    A device's link to itself has no ports.
    """

    device: int
    peer: int
    tile: int = 0
    port: int = 0
    remote: int = 0
    ports: int = 0

    def split(self) -> Iterator[Link]:
        """Yields one link for each port."""
        for number in range(self.ports):
            yield msgspec.structs.replace(self, port=self.port + number, remote=self.remote + number, ports=1)


def links(devices: Sequence[Device]) -> Iterator[Link]:
    """Yields all links of devices that have peers, in both directions, including those to themselves."""
    for board in boards(devices):
        tiles, each = _ports(devices[board.start], len(board))
        if each:
            for here in range(len(board)):
                for tile in range(tiles):
                    for there in range(len(board)):
                        yield _link(board, here, there, tile, each)


def peers(devices: Sequence[Device]) -> list[int]:
    """Return how many peers each device has; with tiles, each tile has as many."""
    return [len(board) - 1 if linked(devices, board) else 0 for board in boards(devices) for _ in board]


def linked(devices: Sequence[Device], board: range) -> bool:
    """Return whether devices of a board are linked: there are several, with enough ports for every peer."""
    _, each = _ports(devices[board.start], len(board))
    return each > 0


def _ports(device: Device, together: int) -> tuple[int, int]:
    """How many tiles of a device have links, and how many ports lead to each peer on a board of `together` devices."""
    model = device.model
    count = model.links.count if model.links else 0
    tiles = model.tiles if count % model.tiles == 0 else 1
    return tiles, count // tiles // (together - 1) if together > 1 else 0


def _link(board: range, here: int, there: int, tile: int, ports: int) -> Link:
    if here == there:
        return Link(board[here], board[here], tile)
    first, remote = (1 + ports * (one - (one > other)) for one, other in ((there, here), (here, there)))
    return Link(board[here], board[there], tile, first, remote, ports)


def boards(devices: Sequence[Device]) -> Iterator[range]:
    """Yields positions of the devices of each board; another model or node starts a new board."""
    start = 0
    for position in range(1, len(devices) + 1):
        if position == len(devices) or _apart(devices[position - 1], devices[position]):
            yield range(start, position)
            start = position


def _apart(before: Device, device: Device) -> bool:
    return (
        device.model.key != before.model.key
        or device.index <= before.index
        or device.index // BOARD != before.index // BOARD
    )
