"""What a workload does over time: a list of activities, each with a value per quantity that it demands.

All file formats are read into this form, which is validated here.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

from simgpu import errors
from simgpu.catalog import shapes

USAGE: Final = "usage"
MEMORY: Final = "memory"
YIELDING: Final = "yielding"  # memory that is reported but does not count towards running out of memory
UNITS: Final = ("sm", "tensor", "bandwidth", "pcie", "fabric")
EVENTS: Final = ("hangs", "corrected", "uncorrected")
CHANNELS: Final = (USAGE, *UNITS, MEMORY, YIELDING, *EVENTS)
RUNTIME: Final = "runtime"
# Readings of a card that limits can be set on, and their columns: W, °C, MHz, percent, J, seconds, bytes and counts.
READINGS: Final = {
    "power": "power_average", "power_instant": "power_instant", "temperature": "temperature",
    "memory_temperature": "temperature_memory", "frequency": "sm_clock", "memory_clock": "memory_clock",
    "memory_usage": "memory_usage", "energy": "energy", "power_throttle": "power_throttle",
    "thermal_throttle": "thermal_throttle", "memory_bytes": "memory_bytes", "pcie_bytes": "pcie_bytes",
    "fabric_bytes": "fabric_bytes", "hardware_throttle": "hardware_throttle", "busy_time": "busy_time",
    "hang_count": "hangs", "corrected_count": "corrected", "uncorrected_count": "uncorrected", "xid_count": "xids",
}  # fmt: skip
LIMITS: Final = (*CHANNELS, RUNTIME, *READINGS)
FOREVER: Final = 86400.0
MIN_SECONDS: Final = 0.01  # of activities and periods

_MAX_VALUE = 1e15
# Maximum demand on a card at any time, as single precision can hold with room for sums: times its capacity for usage
# and units (also where these are given in bytes a second), MiB for memory, counts for events.
MAX_DEMAND: Final = dict.fromkeys((USAGE, *UNITS), 1e6) | {MEMORY: 1e9, YIELDING: 1e9} | dict.fromkeys(EVENTS, 1e12)
_MAX_EVENTS = 1e6  # per period
_REFERENCE = (1e-6, 1e9)


class Value(msgspec.Struct, frozen=True):
    """A quantity over time.

    `random` draws a value between `low` and `high` once per `period` (seconds); `increase` adds each draw to the value.
    Event quantities (hangs, errors) count what is drawn. With `share` values are fractions of what the card has;
    otherwise memory is in MiB and bandwidths are in bytes per second.
    """

    low: float
    high: float
    function: Literal["random", "increase"] = "random"
    period: float = 1.0
    share: bool = True

    @property
    def varies(self) -> bool:
        """Whether it changes over time."""
        return self.function == "increase" or self.low != self.high


def constant(value: float, *, share: bool = True) -> Value:
    """Return a quantity that does not change."""
    return Value(value, value, share=share)


class Pulse(msgspec.Struct, frozen=True):
    """On for `duty` of each `period` seconds, counted from the activity's start."""

    duty: float
    period: float


class Activity(msgspec.Struct, frozen=True):
    """One phase of a workload: its demands by quantity, and how many seconds it lasts; 0 is a day."""

    values: dict[str, Value]
    seconds: float = 0.0
    context: bool = True
    pulse: Pulse | None = None
    name: str = ""

    @property
    def length(self) -> float:
        """How many seconds it lasts."""
        return self.seconds or FOREVER


class Reference(msgspec.Struct, frozen=True):
    """The card that a workload was made for: its maximum clock in MHz and its capability.

    Where a card is too many times as fast or as slow, that is an error, or with `clamped` as much as is allowed.
    """

    mhz: float
    capability: float
    clamped: bool = False


class Profile(msgspec.Struct, frozen=True):
    """A workload: its activities, how often they repeat (0: forever), and the limits at which it is terminated.

    After the last repetition it ends, unless it has an activity for the time `afterwards`. Limits of readings are of
    those of its cards. `limit_names` are what messages call limits, where that differs.
    """

    name: str
    activities: tuple[Activity, ...]
    repeat: int = 1
    limits: dict[str, float] = {}
    limit_names: dict[str, str] = {}
    reference: Reference | None = None
    afterwards: Activity | None = None


def mix(demand: shapes.Demand, *, usage: Value, memory_mib: float | None = None) -> dict[str, Value]:
    """Return values for a mix of demands at some usage."""
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
    """Validate a profile; raises InputError with the field."""
    if not profile.name:
        raise errors.InputError("name", "must not be empty")
    if not profile.activities:
        raise errors.InputError("profile", "must hold at least one activity")
    if profile.repeat < 0:
        raise errors.InputError("repeat", "must be 0 (forever) or more")
    listed = {f"profile[{index}]": item for index, item in enumerate(profile.activities)}
    for place, item in (listed | ({"afterwards": profile.afterwards} if profile.afterwards else {})).items():
        _check_activity(item, place)
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
    """Return the maximum of a quantity in an activity."""
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
