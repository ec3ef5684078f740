"""Guests of the agent's socket: containers that have GPUs, and what each may act on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec

from simgpu import errors
from simgpu.machines.users import PodRef

Working = Callable[[], contextlib.AbstractContextManager[None]]  # entered while a peer costs time, not while it waits


class Guest(msgspec.Struct, frozen=True):
    """A pod's container, with its devices by id and in its order; or a process that may act on all of them.

    Connections are counted by `name`. Of devices that are `lent`, it changes no settings: any pod can name a
    reservation.
    """

    name: str = ""
    pod: PodRef | None = None
    devices: tuple[str, ...] | None = None
    lent: tuple[str, ...] = ()

    def may_set(self, device: str) -> bool:
        """Return whether it may change settings of a device, by id."""
        return self.devices is None or (device in self.devices and device not in self.lent)

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


HOST = Guest()
