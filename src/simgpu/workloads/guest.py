"""Who is connected to the socket, and what that one may act on."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from simgpu import errors
from simgpu.identities import view


class Guest(msgspec.Struct, frozen=True):
    """A pod's container, with its devices by id and in its order; or somebody who may act on all of them.

    `name` is whom connections are counted for.
    """

    name: str = ""
    pod: view.Pod | None = None
    devices: tuple[str, ...] | None = None

    def may_set(self, device: str) -> bool:
        """Whether a device, by id, is its own."""
        return self.devices is None or device in self.devices

    def choose(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The devices that it means: by id, or by number as it counts its own; all of its own if it names none."""
        if self.devices is None:
            return tuple(wanted)
        return tuple(self._own(name) for name in wanted) if wanted else self.devices

    def _own(self, name: str) -> str:
        assert self.devices is not None  # noqa: S101 - asked by whoever calls
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
    """Whoever connects may not."""


class TurnedAway(errors.SimgpuError):
    """It connects too often to be answered."""


HOST = Guest()
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
