"""Peers of the workload socket, and the devices that they may use."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from simgpu import errors
from simgpu.identities import view


class Guest(msgspec.Struct, frozen=True):
    """A pod's container, with its devices by id and in its order; without devices, a peer that may use all of them.

    `name` is what limits are counted by; without it there are none.
    """

    name: str = ""
    pod: view.Pod | None = None
    devices: tuple[str, ...] | None = None

    def may_set(self, device: str) -> bool:
        """Whether a device, by id, is its own."""
        return self.devices is None or device in self.devices

    def choose(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Return the ids of the devices that it names by id or by its own index; all of its own if it names none."""
        if self.devices is None:
            return tuple(wanted)
        return tuple(self._own(name) for name in wanted) if wanted else self.devices

    def _own(self, name: str) -> str:
        assert self.devices is not None  # noqa: S101 - checked by the caller
        number = int(name) if name.isascii() and name.isdecimal() and len(name) < 10 else -1
        if 0 <= number < len(self.devices):
            return self.devices[number]
        if name not in self.devices:
            numbers = "0" if len(self.devices) == 1 else f"0 to {len(self.devices) - 1}"
            raise errors.InputError(
                "Devices", f"no device {name!r} here; there are {numbers}: {', '.join(self.devices)}"
            )
        return name


class PeerRejected(errors.SimgpuError):
    """The peer is not authorised, or over a limit."""


class RateLimited(errors.SimgpuError):
    """The peer connects too often to be answered."""


HOST = Guest()
STRANGER = Guest("an unidentified process")  # until it is identified

Working = Callable[[], contextlib.AbstractContextManager[None]]
Identify = Callable[[socket.socket, Working], Awaitable[Guest]]  # enters `Working` while it works, not while it waits


async def trust_all(_connection: socket.socket, _working: Working) -> Guest:
    """Trust every peer: the socket's file permissions decide who may connect."""
    return HOST


def pid(connection: socket.socket) -> int:
    """Return the pid of the peer; 0 if it is in another PID namespace that is not visible from here."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
