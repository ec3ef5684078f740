"""Peers of the workload socket, and the devices that they may use."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable

from simgpu import errors
from simgpu.pods.guests import HOST, Guest, Working


class RateLimited(errors.SimgpuError):
    """The peer connects too often to be answered."""


STRANGER = Guest("an unidentified process")  # until it is identified

Identify = Callable[[socket.socket, Working], Awaitable[Guest]]


async def trust_all(_connection: socket.socket, _working: Working) -> Guest:
    """Trust every peer: the socket's file permissions decide who may connect."""
    return HOST


def pid(connection: socket.socket) -> int:
    """Return the pid of the peer; 0 if it is in another PID namespace that is not visible from here."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
