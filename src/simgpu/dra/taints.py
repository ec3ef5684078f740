"""Taints of an unhealthy device, as NVIDIA's driver sets them; the scheduler avoids devices with `NoSchedule`."""

from __future__ import annotations

import msgspec

from simgpu.machines.health import DeviceFaults
from simgpu.vocabulary import LOST_TAINT, XID_TAINT

NO_EFFECT = "None"  # informs people, and keeps no pod away


class DeviceTaint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A taint of a device; the server sets its time."""

    key: str
    effect: str
    value: str = ""


def of(faults: DeviceFaults) -> tuple[DeviceTaint, ...]:
    """Return the taints of a GPU, and of its MIG devices.

    A key can stand once: of several XID errors, the first is shown that makes the GPU unusable.
    """
    found: list[DeviceTaint] = []
    if faults.xids:
        worst = next(iter(faults.fatal_xids), faults.xids[0])
        effect = "NoSchedule" if faults.fatal_xids else NO_EFFECT
        found.append(DeviceTaint(XID_TAINT, effect, str(worst)))
    if faults.lost:
        found.append(DeviceTaint(LOST_TAINT, "NoSchedule"))
    return tuple(found)
