"""Workload documents, from a file or a connected process.

Three forms are read into one. v1 is fakedev-exporter's: `Name`, `Repeat`, `Profile` of load, fluctuation and seconds,
`Devices`, `Limits`. v2 adds `Metrics` with functions and ranges of their own to each activity, and `Reference`, `Pod`
and `Protocol` to the document. The third is the load profile of `simgpu simulate`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from simgpu import errors
from simgpu.catalog import shapes
from simgpu.machines.users import PodRef
from simgpu.sim import activity, playing
from simgpu.vocabulary import MAX_NAME


class LimitName(msgspec.Struct, frozen=True):
    """An exporter's name of a quantity: which one, and its unit as a factor and what is added."""

    quantity: str
    scale: float = 1.0
    offset: float = 0.0


Names = Mapping[str, LimitName]
NO_NAMES: Names = {}

TYPICAL = "training"
MIB = 2.0**20

_FUNCTIONS: dict[str, Literal["random", "increase"]] = {
    "constant": "random", "random": "random", "random-increase": "increase", "increase": "increase",
}  # fmt: skip
# Quantities by our names and by those of other exporters.
_NAMES = {name: name for name in activity.LIMITS} | {
    "engine": "usage", "load": "usage", "membw": "bandwidth", "interconnect": "fabric", "hang": "hangs",
    "ras": "corrected",
}  # fmt: skip

Whole = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


class Metric(msgspec.Struct, rename="pascal"):
    """A quantity of an activity, `period` in seconds; absolute memory is in bytes, bandwidths in bytes a second."""

    func: Literal["constant", "random", "random-increase", "increase"] = "random"
    min: float = 0.0
    max: float | None = None
    unit: Literal["share", "absolute"] = "share"
    period: float = 1.0


class Step(msgspec.Struct, rename="pascal"):
    """An activity: load and fluctuation in percent; 0 seconds is a day."""

    load: Percent = 0
    fluctuation: Percent = 0
    seconds: Whole = 0
    metrics: Annotated[dict[str, Metric], msgspec.Meta(max_length=32)] | None = None


class ReferenceCard(msgspec.Struct):
    """The card that a document was made for: its highest clock in MHz, and its capability."""

    max_frequency: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(name="MaxFrequencyMHz")
    capability: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(name="Capability", default=1.0)


class Setting(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    """A setting of a device through NVML: a power limit in mW, clocks in MHz."""

    device: Name
    setting: Name
    values: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=2**32)]], msgspec.Meta(min_length=2, max_length=2)]


class PodNames(msgspec.Struct, rename="pascal"):
    """The pod that a workload belongs to."""

    name: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    namespace: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    container: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""
    uid: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] = ""


class Document(msgspec.Struct, rename="pascal", kw_only=True):
    """A workload document of version 1 or 2; `repeat` 0 is without end."""

    name: Name
    profile: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=10_000)]
    repeat: Whole = 0
    devices: Annotated[list[str], msgspec.Meta(max_length=100_000)] | None = None
    limits: Annotated[dict[str, float], msgspec.Meta(max_length=32)] | None = None
    reference: ReferenceCard | None = None
    pod: PodNames | None = None
    protocol: int = 1


class Wanted(msgspec.Struct, frozen=True):
    """The workload that a document describes, and the devices that it names."""

    profile: activity.Profile
    devices: tuple[str, ...]
    pod: PodRef | None


def read(document: Any, *, names: Names = NO_NAMES, peak_to_peak: bool = False) -> Wanted:
    """Return the workload of a document in any form. `names` are an exporter's names for quantities.

    Fluctuation is to each side of the load; with `peak_to_peak` it is the whole width, as fakedev-exporter draws it.
    """
    _check_text(document)
    if isinstance(document, dict) and "phases" in document:
        return _from_phases(document, names)
    form = parse(document)
    limits, limit_names = _limits(form.limits or {}, names)
    reference = form.reference
    profile = activity.Profile(
        name=form.name,
        activities=tuple(_activity(step, index, peak_to_peak=peak_to_peak) for index, step in enumerate(form.profile)),
        repeat=form.repeat,
        limits=limits,
        limit_names=limit_names,
        reference=activity.Reference(reference.max_frequency, reference.capability) if reference else None,
    )
    activity.check(profile)
    return Wanted(profile, tuple(form.devices or ()), _pod(form.pod, form.name))


def _pod(pod: PodNames | None, name: str) -> PodRef | None:
    return PodRef(pod.name or name, pod.namespace, pod.container, pod.uid) if pod else None


def protocol(document: Any) -> int:
    """Return the protocol version that a document requests."""
    if not isinstance(document, dict):
        return 1
    return 2 if any(str(name).lower() == "protocol" and value == 2 for name, value in document.items()) else 1


def is_setting(document: Any) -> bool:
    """Whether a document is a setting, not a workload."""
    return isinstance(document, dict) and "Set" in document


def setting(document: Any) -> Setting:
    """Return the setting of a document."""
    _check_text(document)
    try:
        return msgspec.convert(document["Set"], Setting)
    except msgspec.ValidationError as error:
        raise errors.InputError("Set", str(error)) from None


def _check_text(document: Any) -> None:
    """Reject text that cannot be encoded: half a surrogate pair could be printed on no page."""
    try:
        json.dumps(document, ensure_ascii=False, default=str).encode()
    except (UnicodeEncodeError, ValueError, RecursionError):
        raise errors.InputError("workload", "holds text that is not Unicode, or is nested too deeply") from None


def parse(document: Any) -> Document:
    """Return the document as a struct; errors name the field."""
    try:
        return msgspec.convert(_canonical(document), Document)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).replace("`", "").rpartition(" - at $.")
        if problem:
            raise errors.InputError(place, problem) from None
        raise errors.InputError("workload", str(error)) from None


def _canonical(document: Any) -> Any:
    """Names of members match in any case, and null counts as absent."""
    result = named(document, Document)
    if isinstance(result, dict):
        for name, kind in (("Pod", PodNames), ("Reference", ReferenceCard)):
            if name in result:
                result[name] = named(result[name], kind)
        if isinstance(result.get("Profile"), list):
            result["Profile"] = [_step(item) for item in result["Profile"]]
    return result


def _step(item: Any) -> Any:
    step = named(item, Step)
    if isinstance(step, dict) and isinstance(step.get("Metrics"), dict):
        step["Metrics"] = {name: named(metric, Metric) for name, metric in step["Metrics"].items()}
    return step


@functools.cache
def _members(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {name.lower(): name for name in kind.__struct_encode_fields__}


def named(value: Any, kind: type[msgspec.Struct]) -> Any:
    """Return a JSON object with the struct's names of members, which match in any case, and without nulls."""
    if not isinstance(value, dict):
        return value
    known = _members(kind)
    return {known.get(str(name).lower(), str(name)): item for name, item in value.items() if item is not None}


def _activity(step: Step, index: int, *, peak_to_peak: bool) -> activity.Activity:
    where = f"Profile[{index}]"
    if step.fluctuation > step.load:
        raise errors.InputError(f"{where}.Fluctuation", f"{step.fluctuation} is above the load; at most {step.load}")
    if step.load + step.fluctuation > 100:
        raise errors.InputError(
            f"{where}.Fluctuation", f"load and fluctuation are {step.load + step.fluctuation} together; at most 100"
        )
    around = step.fluctuation / (200 if peak_to_peak else 100)
    usage = activity.Value(step.load / 100 - around, step.load / 100 + around)
    demand = shapes.load()[TYPICAL].demand
    values = activity.mix(demand, usage=usage)
    values[activity.YIELDING] = usage
    for name, metric in (step.metrics or {}).items():
        quantity = _NAMES.get(name.lower())
        if quantity not in activity.CHANNELS:
            raise errors.InputError(
                f"{where}.Metrics.{name}", f"no such quantity; there are: {', '.join(activity.CHANNELS)}"
            )
        values[quantity] = _value(metric, quantity)
        if quantity == activity.MEMORY:
            values.pop(activity.YIELDING, None)
    return activity.Activity(values, seconds=float(step.seconds))


def _value(metric: Metric, quantity: str) -> activity.Value:
    high = metric.min if metric.max is None or metric.func == "constant" else metric.max
    absolute = metric.unit == "absolute"
    scale = 1 / MIB if quantity == activity.MEMORY and absolute else 1.0
    return activity.Value(
        metric.min * scale, high * scale, _FUNCTIONS[metric.func], period=metric.period, share=not absolute
    )


# The limit, and the factor to its unit, of those exporters' quantities that can be limited.
LIMITABLE = {name: (name, 1.0) for name in activity.READINGS} | {
    "usage": ("usage", 0.01), "usage_exact": ("usage", 0.01), "busy": ("usage", 1.0), "fb_used": ("memory", 1.0),
    "memory": ("memory", 1 / MIB), "memory_usage_exact": ("memory_usage", 1.0), "power_whole": ("power", 1.0),
    "sm_clock": ("frequency", 1.0), "sm_occupancy": ("sm", 1.0), "tensor_active": ("tensor", 1.0),
    "dram_active": ("bandwidth", 1.0), "fabric_share": ("fabric", 1.0), "hangs": ("hang_count", 1.0),
    "corrected": ("corrected_count", 1.0), "uncorrected": ("uncorrected_count", 1.0), "xids": ("xid_count", 1.0),
    "ecc_corrected": ("corrected_count", 1.0), "ecc_uncorrected": ("uncorrected_count", 1.0),
}  # fmt: skip


def _limits(given: Mapping[str, float], names: Names) -> tuple[dict[str, float], dict[str, str]]:
    """Return limits by quantity, and what the document calls them; of several for one quantity, the lowest."""
    found: dict[str, float] = {}
    called: dict[str, str] = {}
    for name, value in given.items():
        quantity, limit = _limit(name, value, names)
        if limit < found.get(quantity, math.inf):
            found[quantity], called[quantity] = limit, name
    return found, {quantity: name for quantity, name in called.items() if name != quantity}


def _limit(name: str, value: float, names: Names) -> tuple[str, float]:
    """Return quantity and value of a limit, given by the exporter's name and unit or by ours (memory in bytes)."""
    if not math.isfinite(value):
        raise errors.InputError(f"Limits.{name}", "must be a number")
    if (known := names.get(name)) is not None:
        own, unit = LIMITABLE[known.quantity]
        if (limit := (value - known.offset) / known.scale * unit) < 0:
            raise errors.InputError(f"Limits.{name}", f"must be at least {known.offset:g}")
        return own, limit
    if (ours := _NAMES.get(name.lower())) is not None:
        return ours, value / MIB if ours == activity.MEMORY else value
    others = ", ".join((*activity.LIMITS, *sorted(names)))
    raise errors.InputError(f"Limits.{errors.clipped(name, 120)}", f"no such quantity; there are: {others}")


def _from_phases(document: dict[str, Any], names: Names) -> Wanted:
    fields = {str(name).lower(): value for name, value in document.items() if value is not None}
    phases = fields.pop("phases", None)
    fields.pop("protocol", None)
    known = shapes.load()
    try:
        form = msgspec.convert(fields, _Around)
        profile = msgspec.convert({"phases": phases}, playing.LoadProfile)
        owner = None if form.pod is None else msgspec.convert(named(form.pod, PodNames), PodNames)
        activities = tuple(playing.activity_of(phase, known) for phase in profile.phases)
    except msgspec.ValidationError as error:
        raise errors.InputError("workload", str(error).replace("`$.", "`")) from None
    except KeyError as error:
        raise errors.InputError("phases", f"no shape {error}; there are: {', '.join(known)}") from None
    limits, limit_names = _limits(form.limits, names)
    made = activity.Profile(form.name, activities, repeat=form.repeat, limits=limits, limit_names=limit_names)
    activity.check(made)
    return Wanted(made, tuple(form.devices), _pod(owner, form.name))


class _Around(msgspec.Struct, forbid_unknown_fields=True):
    """The fields beside `phases`."""

    name: Name = "load"
    repeat: Whole = 0
    devices: Annotated[list[str], msgspec.Meta(max_length=100_000)] = []
    limits: Annotated[dict[str, float], msgspec.Meta(max_length=32)] = {}
    pod: Any = None
