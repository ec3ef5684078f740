"""The health of devices: one state for each, from configured failures and from errors of the simulation.

Every surface shows this state: the device plugin and the taints and health of DRA devices, metrics, and state pages.
An error stays until the device is healed, as with NVIDIA's drivers: by the end of a configured failure, or by a restart
of the process.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from simgpu.topology import failures

HANG_XID, MEMORY_XID, LOST_XID = 43, 48, 79

_APPLICATION_XIDS = frozenset((13, 31, 43, 45, 68, 109))  # errors of a program; the device itself is in order


class DeviceFailure(Enum):
    """A configured failure: none, an uncorrected memory error, or a device that fell off the bus."""

    NONE = ""
    MEMORY = "memory"
    LOST = "lost"


def configured(failing: failures.Failures, elapsed: float) -> dict[int, DeviceFailure]:
    """Return the failure of each GPU by index, `elapsed` seconds after the failures began; one that died is lost."""
    sick = dict.fromkeys(failing.unhealthy, DeviceFailure.MEMORY)
    return sick | dict.fromkeys(failing.lost_at(elapsed), DeviceFailure.LOST)


class DeviceFaults(msgspec.Struct, frozen=True):
    """What is wrong with a device: XID errors since it was healed, and whether it is lost."""

    xids: tuple[int, ...] = ()
    lost: bool = False

    @property
    def fatal_xids(self) -> tuple[int, ...]:
        """The errors of the device itself, without those of programs."""
        return tuple(xid for xid in self.xids if xid not in _APPLICATION_XIDS)

    @property
    def unhealthy(self) -> bool:
        """Whether nothing new should get the device."""
        return self.lost or bool(self.fatal_xids)

    @property
    def problem(self) -> str:
        """A short text about an unhealthy device; empty for a healthy one."""
        named = [f"XID {xid}" for xid in self.fatal_xids]
        return ", ".join([*(["GPU is lost"] if self.lost else []), *named])


HEALTHY = DeviceFaults()
