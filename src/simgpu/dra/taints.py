"""Taints of an unhealthy device, as NVIDIA's driver sets them; the scheduler avoids devices with `NoSchedule`."""

from __future__ import annotations

from typing import Any

import msgspec

from simgpu.vocabulary import LOST_TAINT, UNMONITORED_TAINT, XID_TAINT

_APPLICATION_XIDS = frozenset((13, 31, 43, 45, 68, 109))  # faults of a program; the GPU itself is in order


class DeviceFaults(msgspec.Struct, frozen=True):
    """What is wrong with a GPU: XID errors, whether it is lost or not monitored, and since when (RFC 3339)."""

    xids: tuple[int, ...] = ()
    lost: bool = False
    unmonitored: bool = False
    since: str = ""

    @property
    def unhealthy(self) -> bool:
        """Whether no new claim should get the GPU."""
        return self.lost or any(xid not in _APPLICATION_XIDS for xid in self.xids)


HEALTHY = DeviceFaults()


class DeviceTaint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A taint of a device; the server sets its time if it is empty."""

    key: str
    effect: str
    value: str = ""
    time_added: str = ""


def of(faults: DeviceFaults) -> tuple[DeviceTaint, ...]:
    """Return the taints of a GPU, and of its MIG devices.

    A key can stand once: of several XID errors, the first is shown that makes the GPU unusable.
    """
    found: list[DeviceTaint] = []
    if faults.xids:
        worst = next((xid for xid in faults.xids if xid not in _APPLICATION_XIDS), faults.xids[0])
        effect = "None" if worst in _APPLICATION_XIDS else "NoSchedule"
        found.append(DeviceTaint(XID_TAINT, effect, str(worst), faults.since))
    if faults.lost:
        found.append(DeviceTaint(LOST_TAINT, "NoSchedule", time_added=faults.since))
    if faults.unmonitored:
        found.append(DeviceTaint(UNMONITORED_TAINT, "None", time_added=faults.since))
    return tuple(found)


def render(taints: tuple[DeviceTaint, ...]) -> list[dict[str, Any]]:
    """Return taints as in the API."""
    return [msgspec.to_builtins(taint) for taint in taints]
