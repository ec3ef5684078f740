"""The fabric of a machine: which device is linked to which, tile by tile.

Cards of one model sit on boards of eight. On a board each is linked to every other, a tile to the tile of the same
number, and all of them over the same number of ports; ports that are left over go nowhere. Ports that cannot be shared
out among tiles belong to the card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from simgpu.topology.devices import Device

BOARD = 8


class Link(msgspec.Struct, frozen=True):
    """What joins two devices, by position: its ports, counted from `port` here and from `remote` on the other side.

    A device's link to itself has no ports.
    """

    device: int
    peer: int
    tile: int = 0
    port: int = 0
    remote: int = 0
    ports: int = 0

    def split(self) -> Iterator[Link]:
        """Each of its ports as a link."""
        for number in range(self.ports):
            yield msgspec.structs.replace(self, port=self.port + number, remote=self.remote + number, ports=1)


def links(devices: Sequence[Device]) -> Iterator[Link]:
    """All links of devices that have peers, in both directions, those to themselves included."""
    for board in boards(devices):
        tiles, each = _ports(devices[board.start], len(board))
        if each:
            for here in range(len(board)):
                for tile in range(tiles):
                    for there in range(len(board)):
                        yield _link(board, here, there, tile, each)


def peers(devices: Sequence[Device]) -> list[int]:
    """How many others each device is linked to; with tiles, by each of them."""
    return [len(board) - 1 if linked(devices, board) else 0 for board in boards(devices) for _ in board]


def linked(devices: Sequence[Device], board: range) -> bool:
    """Whether the devices of a board are linked to one another: there are others, and ports enough to reach each."""
    _, each = _ports(devices[board.start], len(board))
    return each > 0


def _ports(device: Device, together: int) -> tuple[int, int]:
    """Which tiles of a device have links, and ports to each of the others on a board of that many."""
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
    """Positions of the devices of each board; another model or another node begins a new one."""
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
