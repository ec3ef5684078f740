"""What a user does on a device, as a profile for the engine."""

from __future__ import annotations

from simgpu.catalog import shapes
from simgpu.machines.users import NONE, Range, User
from simgpu.sim import activity
from simgpu.topology.devices import StaticMetrics

_TYPICAL = "training"
_MAX_NAME = 253


def of_user(user: User, *, resting: bool = False) -> activity.Profile:
    """The typical mix at the user's utilisation; nothing while it is `resting`: it has workloads of its own.

    One that follows processor time starts with nothing.
    """
    name = f"{user.pod.namespace}/{user.pod.name}/{user.pod.container}"[:_MAX_NAME]
    if resting:
        return activity.Profile(name, (activity.Activity({}, context=False),), repeat=0)
    return level(name, NONE if user.cpu else user.utilization, share=user.share)


def level(name: str, utilization: Range, *, share: float = 1.0) -> activity.Profile:
    """The typical mix at a utilisation, with a share of the card's memory from 0 to 1."""
    usage = activity.Value(utilization.low / 100, utilization.high / 100, period=1.0)
    return _mixed(name, usage, activity.constant(share))


def static(reading: StaticMetrics) -> activity.Profile:
    """What the configuration says that a device shows while it has no users."""
    memory = activity.constant(reading.fb_used, share=False)
    return _mixed("configured", activity.constant(reading.utilization / 100), memory)


def _mixed(name: str, usage: activity.Value, memory: activity.Value) -> activity.Profile:
    values = activity.mix(shapes.load()[_TYPICAL].demand, usage=usage)
    values[activity.YIELDING] = memory
    context = memory.high > 0  # without memory on the card no context is open
    return activity.Profile(name, (activity.Activity(values, context=context),), repeat=0)
