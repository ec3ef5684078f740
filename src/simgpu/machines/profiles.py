"""Profiles for the engine: what users do on a device."""

from __future__ import annotations

from simgpu.catalog import shapes
from simgpu.machines.users import NONE, Range, User
from simgpu.sim import activity
from simgpu.topology.devices import StaticMetrics
from simgpu.vocabulary import MAX_NAME

_TYPICAL = "training"


def of_user(user: User, *, resting: bool = False) -> activity.Profile:
    """Return the typical mix at the user's utilisation; no load if it is `resting`, with workloads of its own.

    The load of a CPU-driven user starts at zero.
    """
    name = f"{user.pod.namespace}/{user.pod.name}/{user.pod.container}"[:MAX_NAME]
    if resting:
        return activity.Profile(name, (activity.Activity({}, context=False),), repeat=0)
    return level(name, NONE if user.cpu else user.utilization, share=user.share)


def level(name: str, utilization: Range, *, share: float = 1.0) -> activity.Profile:
    """Return the typical mix at a utilisation, with a share of the card's memory from 0 to 1."""
    usage = activity.Value(utilization.low / 100, utilization.high / 100, period=1.0)
    return _mixed(name, usage, activity.constant(share))


def static(reading: StaticMetrics) -> activity.Profile:
    """Return the configured load of a device without users."""
    memory = activity.constant(reading.fb_used, share=False)
    return _mixed("configured", activity.constant(reading.utilization / 100), memory)


def _mixed(name: str, usage: activity.Value, memory: activity.Value) -> activity.Profile:
    values = activity.mix(shapes.load()[_TYPICAL].demand, usage=usage)
    values[activity.YIELDING] = memory
    context = memory.high > 0  # without memory on the card no context is open
    return activity.Profile(name, (activity.Activity(values, context=context),), repeat=0)
