"""Profiles for the engine: what users do on a device."""

from __future__ import annotations

import functools

from msgspec.structs import replace

from simgpu.catalog import shapes
from simgpu.machines.users import NONE, Plan, Range, User
from simgpu.sim import activity
from simgpu.topology.devices import StaticMetrics
from simgpu.vocabulary import MAX_NAME

_TYPICAL = "training"


def of_user(user: User, *, resting: bool = False) -> activity.Profile:
    """Return the user's plan, else the typical mix at its utilisation; no load if it is `resting`.

    A user rests while it has workloads of its own. The load of a CPU-driven user starts at zero.
    """
    name = f"{user.pod.namespace}/{user.pod.name}/{user.pod.container}"[:MAX_NAME]
    if resting:
        return activity.Profile(name, (activity.Activity({}, context=False),), repeat=0)
    if user.plan is not None and user.cpu is None:
        return _planned(name, user.plan, share=user.share)
    return level(name, NONE if user.cpu or user.full_load else user.utilization, share=user.share)


def _planned(name: str, plan: Plan, *, share: float) -> activity.Profile:
    """Return a plan's profile; activities that state no memory hold a share of the card's, from 0 to 1.

    It runs on any model: nobody is there to be told that it cannot.
    """
    profile, memory = plan.profile, activity.constant(share)

    def fill(doing: activity.Activity) -> activity.Activity:
        values = dict(doing.values)
        if not {activity.MEMORY, activity.YIELDING} & values.keys():
            values[activity.YIELDING] = memory
        return replace(doing, values=values)

    afterwards = None if profile.afterwards is None else fill(profile.afterwards)
    reference = None if profile.reference is None else replace(profile.reference, clamped=True)
    return replace(
        profile, name=name, activities=tuple(map(fill, profile.activities)), afterwards=afterwards, reference=reference
    )


def narrowed(profile: activity.Profile, compute: float) -> activity.Profile:
    """Return a profile that runs on a part of the compute of its device, from 0 to 1."""

    def narrow(doing: activity.Activity) -> activity.Activity:
        usage = doing.values.get(activity.USAGE)
        return (
            doing if usage is None else replace(doing, values={**doing.values, activity.USAGE: _scaled(usage, compute)})
        )

    afterwards = None if profile.afterwards is None else narrow(profile.afterwards)
    return replace(profile, activities=tuple(map(narrow, profile.activities)), afterwards=afterwards)


def _scaled(value: activity.Value, factor: float) -> activity.Value:
    return replace(value, low=value.low * factor, high=value.high * factor)


def level(name: str, utilization: Range, *, share: float = 1.0) -> activity.Profile:
    """Return the typical mix at a utilisation, with a share of the card's memory from 0 to 1."""
    usage = activity.Value(utilization.low / 100, utilization.high / 100, period=1.0)
    return activity.Profile(name, _mixed(usage, activity.constant(share)), repeat=0)


def static(reading: StaticMetrics) -> activity.Profile:
    """Return the configured load of a device without users."""
    memory = activity.constant(reading.fb_used, share=False)
    return activity.Profile("configured", _mixed(activity.constant(reading.utilization / 100), memory), repeat=0)


@functools.lru_cache(1024)  # thousands of pods do the same
def _mixed(usage: activity.Value, memory: activity.Value) -> tuple[activity.Activity, ...]:
    values = activity.mix(shapes.load()[_TYPICAL].demand, usage=usage)
    values[activity.YIELDING] = memory
    context = memory.high > 0  # without memory on the card no context is open
    return (activity.Activity(values, context=context),)
