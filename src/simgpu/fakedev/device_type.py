"""The device type file: labels, and for each metric its range, what it follows, and the limits at which workloads end.

Of the first version are labels and ranges. Without more, a metric is its range times the load; a dependent one follows
the simulated card, which is made to fit the ranges.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from simgpu import errors
from simgpu.catalog import ceilings, models
from simgpu.catalog.facts import Number, Share
from simgpu.fakedev import files
from simgpu.machines import documents, quantities
from simgpu.machines.machine import Machine, Values
from simgpu.topology.devices import LabelName

_DEFAULT_MODEL = "dg1"  # the card that the original was made for
_MAX_SUBDEVICES = 64
_MAX_SERIES = 1000  # of one metric and device


class _MetricForm(msgspec.Struct, rename="pascal"):
    min: Number | None = None
    max: Number | None = None
    role: Literal["primary", "dependent"] | None = None
    quantity: str = ""
    scope: Literal["device", "subdevice"] = "device"
    aggregate: Literal["sum", "avg", "max"] | None = None
    dims: Annotated[dict[LabelName, list[str] | dict[str, Share]], msgspec.Meta(max_length=8)] = {}
    terminate_above: Number | None = None
    terminate_below: Number | None = None


class _Capability(msgspec.Struct):
    max_frequency: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = msgspec.field(
        name="MaxFrequencyMHz", default=None
    )
    relative: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = msgspec.field(name="Relative", default=1.0)


class _DeviceFile(msgspec.Struct, rename="pascal"):
    index_regex: str = ""


class _Form(msgspec.Struct, rename="pascal"):
    device_labels: dict[str, str] = {}
    metric_limits: Annotated[dict[str, Any], msgspec.Meta(max_length=1000)] = {}
    model: str = _DEFAULT_MODEL
    relations: dict[str, Any] | None = None
    sub_devices: Annotated[int, msgspec.Meta(ge=1, le=_MAX_SUBDEVICES)] = 1
    capability: Any = None
    device_file: Any = None


class DeviceMetric(msgspec.Struct, frozen=True):
    """A metric: its range, the simulated quantity that it follows (none: the load), and of what there are values.

    With an `aggregate`, a metric of sub-devices has a value of the whole device too. `dims` are the labels of several
    series of it, and which share of the value each has.
    """

    low: float
    high: float
    follows: str = ""
    of_parts: bool = False
    aggregate: Literal["sum", "avg", "max"] | None = None
    dims: tuple[tuple[dict[str, str], float], ...] = ()

    def values(self, machine: Machine, *, parts: bool = False) -> Values:
        """Return the values of all devices, or of all sub-devices."""
        if self.of_parts and not parts:
            return self._aggregated(machine)
        look_up = quantities.of_parts if parts else quantities.of_devices
        if self.follows:
            return np.clip(look_up(machine, self.follows), self.low, self.high)
        return np.clip(self.low + (self.high - self.low) * np.round(look_up(machine, "busy"), 6), self.low, self.high)

    def _aggregated(self, machine: Machine) -> Values:
        each, parent, count = self.values(machine, parts=True), machine.parent, len(machine.devices)
        if self.aggregate == "max":
            highest = np.full(count, -np.inf)
            np.maximum.at(highest, parent, each)
            return highest
        sums = np.bincount(parent, weights=each, minlength=count)
        return np.asarray(sums / np.bincount(parent, minlength=count) if self.aggregate == "avg" else sums, float)

    def limit_name(self, *, scale: float = 1.0, offset: float = 0.0) -> documents.LimitName | None:
        """Return what a limit of this metric is, in a unit; None if it can have none."""
        if self.follows:
            return documents.LimitName(self.follows, scale, offset) if self.follows in documents.LIMITABLE else None
        span = (self.high - self.low) * scale
        return documents.LimitName("busy", span, self.low * scale + offset) if span else None


class DeviceType(msgspec.Struct, frozen=True):
    """A device type: labels of its devices, its metrics by name, and the model that is simulated."""

    labels: dict[str, str]
    metrics: dict[str, DeviceMetric]
    model: models.Model
    index: re.Pattern[str] | None = None  # finds a device's index in the name of its file


def read(path: Path) -> DeviceType:
    """Return the device type in a file; `InputError` names the field that is invalid."""
    where = str(path)
    form = files.convert(files.read(path), _Form, where=where)
    metrics: dict[str, DeviceMetric] = {}
    terminate: list[dict[str, Any]] = []
    for name, given in form.metric_limits.items():
        place = f"{where}: MetricLimits.{name}"
        wanted = files.convert(given, _MetricForm, where=place)
        metrics[name] = _metric(name, wanted, form, place)
        terminate += _ceilings(name, wanted, metrics[name], place)
    model = _model(form, metrics, terminate, where)
    return DeviceType(form.device_labels, metrics, model, _index(form, where))


def _metric(name: str, wanted: _MetricForm, form: _Form, place: str) -> DeviceMetric:
    quantity = wanted.quantity or name
    known = quantity in quantities.QUANTITIES
    role = wanted.role or ("dependent" if known and (form.relations is not None or wanted.quantity) else "primary")
    if role == "dependent" and not known:
        there = ", ".join(sorted(quantities.QUANTITIES))
        raise errors.InputError(f"{place}.Quantity", f"no quantity {errors.shown(quantity)}; there are: {there}")
    bare = (-np.inf, np.inf) if role == "dependent" and wanted.max is None else (0.0, 0.0)  # a counter, for instance
    low, high = bare[0] if wanted.min is None else wanted.min, bare[1] if wanted.max is None else wanted.max
    if low > high:
        raise errors.InputError(place, f"Min {low:g} is above Max {high:g}")
    parts = wanted.scope == "subdevice"
    if parts and form.sub_devices == 1:
        raise errors.InputError(f"{place}.Scope", "there are no sub-devices; state how many as SubDevices")
    if wanted.aggregate is not None and not parts:
        raise errors.InputError(f"{place}.Aggregate", "is for metrics with the scope subdevice")
    follows = quantity if role == "dependent" else ""
    return DeviceMetric(low, high, follows, parts, wanted.aggregate, _dims(wanted, place))


def _dims(wanted: _MetricForm, place: str) -> tuple[tuple[dict[str, str], float], ...]:
    """Return every combination of the values of extra labels, and the share of each."""
    shares = [
        [
            (name, value, share)
            for value, share in (given if isinstance(given, dict) else dict.fromkeys(given, 1.0)).items()
        ]
        for name, given in wanted.dims.items()
    ]
    if math.prod(map(len, shares)) > _MAX_SERIES:
        raise errors.InputError(f"{place}.Dims", f"more than {_MAX_SERIES} combinations")
    return tuple(
        ({name: value for name, value, _ in labels}, math.prod(share for _, _, share in labels))
        for labels in (itertools.product(*shares) if shares else ())
    )


def _ceilings(name: str, wanted: _MetricForm, metric: DeviceMetric, place: str) -> list[dict[str, Any]]:
    """Return the limit of a metric at which workloads end, as one of the model's."""
    above, below = wanted.terminate_above, wanted.terminate_below
    if above is None and below is None:
        return []
    known = metric.limit_name()
    if known is None:
        there = ", ".join(sorted(documents.LIMITABLE))
        raise errors.InputError(place, f"nothing can end at a limit of this metric; of these it can: {there}")
    quantity, unit = documents.LIMITABLE[known.quantity]
    scale, offset = unit / known.scale, known.offset
    demanded = quantity in ceilings.DEMANDS
    if demanded and below is not None:
        raise errors.InputError(f"{place}.TerminateBelow", "is for readings, not for what workloads demand")
    if metric.of_parts and not demanded:
        raise errors.InputError(f"{place}.TerminateAbove", "of sub-devices, only what workloads demand has a limit")
    limits = {"above": above, "below": below}
    converted = {side: (value - offset) * scale for side, value in limits.items() if value is not None}
    return [{"quantity": quantity, "name": name, "of": "part" if metric.of_parts else "card", **converted}]


def _model(form: _Form, metrics: dict[str, DeviceMetric], terminate: list[dict[str, Any]], where: str) -> models.Model:
    """Return the catalog's model with the ranges of the metrics that follow it."""
    base = _catalog().get(form.model, field=f"{where}: Model")
    capability = _Capability()
    if form.capability is not None:
        capability = files.convert(form.capability, _Capability, where=f"{where}: Capability")
    changes: dict[str, Any] = {
        "key": f"{base.key}-fakedev", "tiles": form.sub_devices, "terminate": terminate, "estimated": [],
        "relations": {},
    }  # fmt: skip
    top = base.clocks_mhz.sm_max
    for metric in metrics.values():
        if not metric.follows or not np.isfinite(metric.high) or metric.high <= 0:
            continue
        of_all = form.sub_devices if metric.of_parts else 1
        low, high = max(metric.low, metric.high * 1e-3), metric.high
        if metric.follows in ("frequency", "sm_clock"):
            top = high
            changes["clocks_mhz"] = {"sm_idle": low, "sm_min": low, "sm_max": high}
        elif metric.follows in ("power", "power_whole"):
            least, most = low * of_all, high * of_all
            changes["power_w"] = {"idle": least, "min": least, "default": most, "max": most}
        elif metric.follows in ("memory", "fb_used"):
            mebibytes = int(high * of_all / (documents.MIB if metric.follows == "memory" else 1))
            changes["memory_mib"] = {"total": max(1, form.sub_devices, mebibytes), "reserved": 0}
        elif metric.follows == "temperature":
            changes["temperature_c"] = {"gpu_max": high, "slowdown": high, "shutdown": high + 10}
            changes["relations"] = {"heat": {"inlet": metric.low}}
    changes["relations"] = models.merged(changes["relations"], form.relations or {})
    changes["work_per_clock"] = capability.relative * (capability.max_frequency or top) / top
    return models.changed(base, changes, where=where)


@functools.cache
def _catalog() -> models.Catalog:
    return models.load()


def _index(form: _Form, where: str) -> re.Pattern[str] | None:
    if form.device_file is None:
        return None
    place = f"{where}: DeviceFile"
    text = files.convert(form.device_file, _DeviceFile, where=place).index_regex
    try:
        return re.compile(text) if text else None
    except (re.error, OverflowError, RecursionError) as error:
        raise errors.InputError(f"{place}.IndexRegex", f"{errors.shown(text)}: {error}") from None
