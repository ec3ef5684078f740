"""What a workload does over time: a list of activities, each with a value for every quantity that it asks for.

Formats of files live elsewhere; here is the one form that they are all read into, and what is allowed in it.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from simgpu import errors
from simgpu.catalog import shapes

USAGE: Final = "usage"
MEMORY: Final = "memory"
YIELDING: Final = "yielding"  # memory that gives way: shown, but nobody is ended for it
UNITS: Final = ("sm", "tensor", "bandwidth", "pcie", "fabric")
EVENTS: Final = ("hangs", "corrected", "uncorrected")
CHANNELS: Final = (USAGE, *UNITS, MEMORY, YIELDING, *EVENTS)
RUNTIME: Final = "runtime"
LIMITS: Final = (*CHANNELS, RUNTIME)
FOREVER: Final = 86400.0
MIN_SECONDS: Final = 0.01  # seconds: activities and periods

_MAX_VALUE = 1e15
# The most that is asked of a card at once, however it grows, as single precision can hold with room for sums: times its
# work, MiB, events. Where a quantity is given in bytes a second, this is in parts of what the card can do.
MAX_DEMAND: Final = dict.fromkeys((USAGE, *UNITS), 1e6) | {MEMORY: 1e9, YIELDING: 1e9} | dict.fromkeys(EVENTS, 1e12)
_MAX_EVENTS = 1e6  # at once
_REFERENCE = (1e-6, 1e9)


class Value(msgspec.Struct, frozen=True):
    """A quantity over time.

    `random` draws anew between `low` and `high` once in `period`; `increase` adds such a draw to what there was.
    Quantities that count events (hangs, errors) count what is drawn. A `share` is of what the card has; otherwise
    memory is in MiB and bandwidths are in bytes a second.
    """

    low: float
    high: float
    function: Literal["random", "increase"] = "random"
    period: float = 1.0
    share: bool = True

    @property
    def varies(self) -> bool:
        """Whether it is ever drawn anew."""
        return self.function == "increase" or self.low != self.high


def constant(value: float, *, share: bool = True) -> Value:
    """A quantity that stays."""
    return Value(value, value, share=share)


class Pulse(msgspec.Struct, frozen=True):
    """On for `duty` of each `period` seconds, counted from the activity's start."""

    duty: float
    period: float


class Activity(msgspec.Struct, frozen=True):
    """One phase of a workload: how long, and what it asks for; 0 seconds is a day."""

    values: dict[str, Value]
    seconds: float = 0.0
    context: bool = True
    pulse: Pulse | None = None
    name: str = ""

    @property
    def length(self) -> float:
        """Seconds."""
        return self.seconds or FOREVER


class Reference(msgspec.Struct, frozen=True):
    """The card that a workload was made for: its highest clock and its capability."""

    mhz: float
    capability: float


class Profile(msgspec.Struct, frozen=True):
    """A workload: its activities, how often they run (0: for ever), and the limits at which it is ended."""

    name: str
    activities: tuple[Activity, ...]
    repeat: int = 1
    limits: dict[str, float] = {}
    reference: Reference | None = None


def mix(demand: shapes.Demand, *, usage: Value, memory_mib: float | None = None) -> dict[str, Value]:
    """Values for a mix of demands at some usage."""
    values = {
        USAGE: usage,
        "sm": constant(demand.sm),
        "tensor": constant(demand.tensor),
        "bandwidth": constant(demand.memory),
        "pcie": constant(demand.pcie),
        "fabric": constant(demand.nvlink),
    }
    if memory_mib is not None:
        values[MEMORY] = constant(memory_mib, share=False)
    return values


def check(profile: Profile) -> None:
    """Everything that can be wrong with a profile is an error that names the place."""
    if not profile.name:
        raise errors.InputError("name", "must not be empty")
    if not profile.activities:
        raise errors.InputError("profile", "must hold at least one activity")
    if profile.repeat < 0:
        raise errors.InputError("repeat", "must be 0 (for ever) or more")
    for index, item in enumerate(profile.activities):
        _check_activity(item, f"profile[{index}]")
    for name, limit in profile.limits.items():
        if name not in LIMITS:
            raise errors.InputError(f"limits.{name}", f"no such quantity; there are: {', '.join(LIMITS)}")
        if not 0 <= limit <= _MAX_VALUE:
            raise errors.InputError(f"limits.{name}", "must be a number from 0")
    if (reference := profile.reference) is not None:
        lowest, highest = _REFERENCE
        if not (lowest <= reference.mhz <= highest and lowest <= reference.capability <= highest):
            raise errors.InputError("reference", f"clock and capability must be from {lowest:g} to {highest:g}")


def _check_activity(activity: Activity, where: str) -> None:
    if activity.seconds and not MIN_SECONDS <= activity.seconds <= _MAX_VALUE:
        raise errors.InputError(f"{where}.seconds", f"must be 0 (a day) or a number from {MIN_SECONDS}")
    if activity.pulse is not None:
        if not 0 <= activity.pulse.duty <= 1:
            raise errors.InputError(f"{where}.duty", "must be from 0 to 1")
        if not 0.001 <= activity.pulse.period <= FOREVER:
            raise errors.InputError(f"{where}.period", "must be from 0.001 to 86400 seconds")
    for name, value in activity.values.items():
        place = f"{where}.{name}"
        if name not in CHANNELS:
            raise errors.InputError(place, f"no such quantity; there are: {', '.join(CHANNELS)}")
        _check_value(value, place, _max_value(name, value))


def _max_value(name: str, value: Value) -> float:
    """The most that an activity may say of a quantity."""
    if name in EVENTS:
        return _MAX_EVENTS
    if value.share and value.function == "random":
        return 1.0
    return _MAX_VALUE if name in UNITS and not value.share else MAX_DEMAND[name]


def _check_value(value: Value, where: str, highest: float) -> None:
    if not (math.isfinite(value.low) and math.isfinite(value.high)):
        raise errors.InputError(where, "must be a number")
    if not 0 <= value.low <= highest or not 0 <= value.high <= highest:
        raise errors.InputError(where, f"must be from 0 to {highest:g}")
    if value.low > value.high:
        raise errors.InputError(where, f"the lower end, {value.low:g}, is above the upper end, {value.high:g}")
    if not MIN_SECONDS <= value.period <= FOREVER:
        raise errors.InputError(f"{where}.period", f"must be from {MIN_SECONDS} to 86400 seconds")
