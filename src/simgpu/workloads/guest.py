"""Who is connected to the socket, and what that one may act on."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable

from simgpu import errors
from simgpu.pods.guests import HOST, Guest


class TurnedAway(errors.SimgpuError):
    """It connects too often to be answered."""


STRANGER = Guest("a process that is not known")  # until it is

Working = Callable[[], contextlib.AbstractContextManager[None]]
Identify = Callable[[socket.socket, Working], Awaitable[Guest]]  # enters `Working` while it works, not while it waits


async def anybody(_connection: socket.socket, _working: Working) -> Guest:
    """Where file permissions say who may connect, everybody who does is trusted."""
    return HOST


def pid(connection: socket.socket) -> int:
    """The process that is connected; 0 where it cannot be seen from here, as from another container."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
