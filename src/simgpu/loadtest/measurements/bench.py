"""What all measurements work with: their parameters, what they return, and the run that they measure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from simgpu import errors
from simgpu.kube.client import Client
from simgpu.loadtest.run_progress import RunProgress
from simgpu.loadtest.scenario import durations, fields
from simgpu.loadtest.served import Served
from simgpu.loadtest.watched import Selection, Watches


class MeasurementError(errors.SimgpuError):
    """A measurement failed: what it waited for did not come about, or a limit was exceeded."""


class Summary(msgspec.Struct, frozen=True):
    """A result, for a file of its own in the report."""

    name: str
    content: Any  # JSON


class Measured(msgspec.Struct):
    """What an action of a measurement gave; `violations` are limits that were exceeded."""

    summaries: list[Summary] = []
    violations: list[str] = []


class Bench(msgspec.Struct, frozen=True):
    """The cluster and the run."""

    client: Client
    served: Served
    watches: Watches
    progress: RunProgress
    scheduler: Callable[[], Awaitable[str]] | None = None  # returns the scheduler's metrics page
    prometheus: str = ""  # URL
    dra_version: str | None = None


class Measurement(Protocol):
    """A measurement with one identifier; it keeps its state between actions."""

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Perform an action; raises MeasurementError."""


def duration(params: Mapping[str, Any], name: str, default: float) -> float:
    """Return a duration in seconds."""
    value = params.get(name)
    return default if value is None else durations.parse(value)


def selection(params: Mapping[str, Any]) -> Selection:
    """Return the objects that the parameters select."""
    given = {key: params.get(key) for key in ("namespace", "labelSelector", "fieldSelector")}
    texts = {key: fields.text(value) if value is not None else "" for key, value in given.items()}
    return Selection(texts["namespace"], texts["labelSelector"], texts["fieldSelector"])


def perf_data(items: list[tuple[dict[str, float], str, dict[str, str]]]) -> dict[str, Any]:
    """Return a document of perf data: values, unit and labels of each item, in a fixed order."""
    listed = [{"data": data, "unit": unit, "labels": labels} for data, unit, labels in items]
    return {"version": "1.0", "dataItems": listed}


SELECTORS: dict[str, Callable[[Any], Any]] = {
    "namespace": fields.text,
    "labelSelector": fields.text,
    "fieldSelector": fields.text,
}
THRESHOLDS: dict[str, Callable[[Any], Any]] = {
    "threshold": durations.parse,
    "perc50Threshold": durations.parse,
    "perc90Threshold": durations.parse,
    "perc99Threshold": durations.parse,
}


class Thresholds(msgspec.Struct, frozen=True):
    """Limits of percentiles, in seconds."""

    perc50: float
    perc90: float
    perc99: float

    def violations(self, percentiles: Mapping[str, float], what: str) -> list[str]:
        """Return which limits percentiles (in milliseconds) exceed."""
        found = []
        for name, limit in (("Perc50", self.perc50), ("Perc90", self.perc90), ("Perc99", self.perc99)):
            if percentiles[name] > limit * 1000:
                found.append(f"{what}: {name} is {percentiles[name] / 1000:.3f} s, above {limit:g} s")
        return found


def thresholds(params: Mapping[str, Any], default: float, before: Thresholds | None = None) -> Thresholds:
    """Read limits; those that are not given are of `threshold`, else of an earlier action, else the default."""
    general = params.get("threshold")
    fallback = durations.parse(general) if general is not None else None
    values = []
    for percent in (50, 90, 99):
        earlier = getattr(before, f"perc{percent}") if before is not None else default
        values.append(duration(params, f"perc{percent}Threshold", fallback if fallback is not None else earlier))
    return Thresholds(*values)
