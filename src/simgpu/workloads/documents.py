"""Workload documents: what a file or a connected process asks for.

Three forms are read into one. v1 is fakedev-exporter's: `Name`, `Repeat`, `Profile` of load, fluctuation and seconds,
`Devices`, `Limits`. v2 adds to each activity `Metrics` with functions and ranges of their own, and to the whole a
`Reference`, a `Pod` and a `Protocol`. The third is the load profile of `simgpu simulate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from simgpu import errors
from simgpu.catalog import shapes
from simgpu.identities import view
from simgpu.sim import activity, playing

TYPICAL = "training"
MIB = 2.0**20

_FUNCTIONS: dict[str, Literal["random", "increase"]] = {
    "constant": "random", "random": "random", "random-increase": "increase", "increase": "increase",
}  # fmt: skip
# Names of quantities as people and other exporters have them.
_NAMES = {name: name for name in activity.LIMITS} | {
    "engine": "usage", "load": "usage", "membw": "bandwidth", "interconnect": "fabric", "hang": "hangs",
    "ras": "corrected",
}  # fmt: skip

Whole = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class Metric(msgspec.Struct, rename="pascal"):
    """A quantity of an activity; absolute memory is in bytes, bandwidths in bytes a second."""

    func: Literal["constant", "random", "random-increase", "increase"] = "random"
    min: float = 0.0
    max: float | None = None
    unit: Literal["share", "absolute"] = "share"
    period: float = 1.0


class Step(msgspec.Struct, rename="pascal"):
    """An activity."""

    load: Percent = 0
    fluctuation: Percent = 0
    seconds: Whole = 0
    metrics: Annotated[dict[str, Metric], msgspec.Meta(max_length=32)] | None = None


class Reference(msgspec.Struct):
    """The card that it was made for."""

    max_frequency: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(name="MaxFrequencyMHz")
    capability: Annotated[float, msgspec.Meta(gt=0)] = msgspec.field(name="Capability", default=1.0)


class PodNames(msgspec.Struct, rename="pascal"):
    """Whose it is."""

    name: Annotated[str, msgspec.Meta(max_length=253)] = ""
    namespace: Annotated[str, msgspec.Meta(max_length=253)] = ""
    container: Annotated[str, msgspec.Meta(max_length=253)] = ""
    uid: Annotated[str, msgspec.Meta(max_length=253)] = ""


class Document(msgspec.Struct, rename="pascal", kw_only=True):
    """A workload document of either version."""

    name: Name
    profile: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=10_000)]
    repeat: Whole = 0
    devices: Annotated[list[str], msgspec.Meta(max_length=100_000)] | None = None
    limits: Annotated[dict[str, float], msgspec.Meta(max_length=32)] | None = None
    reference: Reference | None = None
    pod: PodNames | None = None
    protocol: int = 1


_MEMBERS: dict[str, dict[str, str]] = {}
for _struct in (Document, Step, Metric, PodNames, Reference):
    _MEMBERS[_struct.__name__] = {str(name).lower(): str(name) for name in _struct.__struct_encode_fields__}


class Wanted(msgspec.Struct, frozen=True):
    """What a document asks for."""

    profile: activity.Profile
    devices: tuple[str, ...]
    pod: view.Pod | None
    protocol: int


def read(document: Any, *, names: Mapping[str, str] = {}, half_amplitude: bool = False) -> Wanted:
    """Any of the forms. `names` are quantities by the names that an exporter has for them, for limits.

    Fluctuation is to both sides. `half_amplitude` makes it half as wide, as fakedev-exporter draws it.
    """
    if isinstance(document, dict) and "phases" in document:
        return _from_phases(document)
    form = parse(document)
    limits = {
        _quantity(name, names): _limit(_quantity(name, names), value) for name, value in (form.limits or {}).items()
    }
    reference = form.reference
    profile = activity.Profile(
        name=form.name,
        activities=tuple(_activity(step, index, half=half_amplitude) for index, step in enumerate(form.profile)),
        repeat=form.repeat,
        limits=limits,
        reference=activity.Reference(reference.max_frequency, reference.capability) if reference else None,
    )
    activity.check(profile)
    pod = form.pod
    return Wanted(
        profile=profile,
        devices=tuple(form.devices or ()),
        pod=view.Pod(pod.name or form.name, pod.namespace, pod.container, pod.uid) if pod else None,
        protocol=form.protocol,
    )


def parse(document: Any) -> Document:
    """The document's structure; what is wrong is said with its place."""
    try:
        return msgspec.convert(_canonical(document), Document)
    except msgspec.ValidationError as error:
        place, _, problem = (
            str(error).replace("`", "").rpartition(" - at $.")[::-1] if " - at $." in str(error) else ("", "", "")
        )
        if place:
            raise errors.InputError(place, problem) from None
        raise errors.InputError("workload", str(error)) from None


def _canonical(document: Any) -> Any:
    """Names of members match whatever their case, and null is absent."""
    result = _named(document, "Document")
    if isinstance(result, dict):
        for name, kind in (("Pod", "PodNames"), ("Reference", "Reference")):
            if name in result:
                result[name] = _named(result[name], kind)
        if isinstance(result.get("Profile"), list):
            result["Profile"] = [_step(item) for item in result["Profile"]]
    return result


def _step(item: Any) -> Any:
    step = _named(item, "Step")
    if isinstance(step, dict) and isinstance(step.get("Metrics"), dict):
        step["Metrics"] = {name: _named(metric, "Metric") for name, metric in step["Metrics"].items()}
    return step


def _named(value: Any, kind: str) -> Any:
    if not isinstance(value, dict):
        return value
    known = _MEMBERS[kind]
    return {known.get(str(name).lower(), str(name)): item for name, item in value.items() if item is not None}


def _activity(step: Step, index: int, *, half: bool) -> activity.Activity:
    where = f"Profile[{index}]"
    if step.fluctuation > step.load:
        raise errors.InputError(f"{where}.Fluctuation", f"{step.fluctuation} is more than the load, {step.load}")
    if step.load + step.fluctuation > 100:
        raise errors.InputError(
            f"{where}.Fluctuation", f"load and fluctuation are {step.load + step.fluctuation} together; at most 100"
        )
    around = step.fluctuation / (200 if half else 100)
    usage = activity.Value(step.load / 100 - around, step.load / 100 + around)
    demand = shapes.load()[TYPICAL].demand
    values = activity.mix(demand, usage=usage)
    values[activity.YIELDING] = usage
    for name, metric in (step.metrics or {}).items():
        quantity = _NAMES.get(name.lower())
        if quantity is None or quantity == activity.RUNTIME:
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


def _quantity(name: str, names: Mapping[str, str]) -> str:
    found = _NAMES.get(name.lower()) or _NAMES.get(_of_exporter(names.get(name, "")))
    if found is None:
        raise errors.InputError(f"Limits.{name}", f"no such quantity; there are: {', '.join(activity.LIMITS)}")
    return found


def _of_exporter(quantity: str) -> str:
    """The workload's quantity behind one that an exporter shows."""
    if quantity.startswith(("fb_", "memory_used")) or quantity == "memory":
        return "memory"
    if quantity.startswith(("usage", "busy")):
        return "usage"
    return quantity


def _limit(quantity: str, value: float) -> float:
    """Limits of memory are in bytes; a small number is meant as a share of nothing and stays what it is."""
    return value / MIB if quantity == activity.MEMORY else value


def _from_phases(document: dict[str, Any]) -> Wanted:
    more = {name: value for name, value in document.items() if name != "phases"}
    name, repeat, on = more.pop("name", "load"), more.pop("repeat", 0), more.pop("devices", [])
    if more:
        raise errors.InputError(next(iter(more)), "no such field beside phases; there are: name, repeat, devices")
    known = shapes.load()
    try:
        profile = msgspec.convert({"phases": document["phases"]}, playing.LoadProfile)
        devices = msgspec.convert(on, list[str])
        activities = tuple(playing.activity_of(phase, known) for phase in profile.phases)
        made = msgspec.convert({"name": name, "repeat": repeat}, _Named)
    except msgspec.ValidationError as error:
        raise errors.InputError("workload", str(error).replace("`$.", "`")) from None
    except KeyError as error:
        raise errors.InputError("phases", f"no shape {error}; there are: {', '.join(known)}") from None
    return Wanted(activity.Profile(made.name, activities, repeat=made.repeat), tuple(devices), None, 1)


class _Named(msgspec.Struct):
    name: Name
    repeat: Whole
