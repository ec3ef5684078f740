"""What a pod's container does on a GPU, as a profile for the engine."""

from __future__ import annotations

from simgpu.catalog import shapes
from simgpu.pods.requests import Range
from simgpu.sim import activity

_TYPICAL = "training"


def of(name: str, span: Range, *, share: float = 1.0) -> activity.Profile:
    """A level of a typical mix, and its share of the card's memory."""
    usage = activity.Value(span.low / 100, span.high / 100, period=1.0)
    return _profile(name[:253], usage, activity.constant(share))


def resting(name: str) -> activity.Profile:
    """Nothing: what else it does says what it does."""
    return activity.Profile(name[:253], (activity.Activity({}, context=False),), repeat=0)


def standing(utilization: float, memory_mib: float) -> activity.Profile:
    """What a configuration says that a GPU shows while nobody uses it."""
    return _profile("configured", activity.constant(utilization / 100), activity.constant(memory_mib, share=False))


def _profile(name: str, usage: activity.Value, memory: activity.Value) -> activity.Profile:
    values = activity.mix(shapes.load()[_TYPICAL].demand, usage=usage)
    values[activity.YIELDING] = memory
    context = memory.high > 0  # who has no memory of a card has not begun with it
    return activity.Profile(name, (activity.Activity(values, context=context),), repeat=0)
