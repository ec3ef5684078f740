"""What all measurements work with: their parameters, what they return, and the run that they measure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from simgpu import errors
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource
from simgpu.kube.store import Change, Listener, Store, key_of
from simgpu.loadtest.run_progress import RunProgress
from simgpu.loadtest.scenario import durations, fields, kube_syntax
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
    skipped: str = ""  # why nothing was measured


class Bench(msgspec.Struct, frozen=True):
    """The cluster and the run.

    Without a namespace in its parameters, a measurement looks at the run's own namespaces: not at those of others.
    """

    client: Client
    served: Served
    watches: Watches
    progress: RunProgress
    scheduler: Callable[[], Awaitable[str]] | None = None  # returns the scheduler's metrics page
    prometheus: str = ""  # URL
    dra_version: str | None = None
    spaces: frozenset[str] = frozenset()

    def selection(self, params: Mapping[str, Any]) -> Selection:
        """Return the objects that the parameters select."""
        given = {key: params.get(key) for key in ("namespace", "labelSelector", "fieldSelector")}
        texts = {key: fields.text(value) if value is not None else "" for key, value in given.items()}
        return Selection(texts["namespace"] or self.own_namespace, texts["labelSelector"], texts["fieldSelector"])

    @property
    def own_namespace(self) -> str:
        """The only namespace of the run; empty if it has several."""
        return next(iter(self.spaces)) if len(self.spaces) == 1 else ""

    async def follow(self, resource: Resource[Any], selection: Selection, listener: Listener[Any]) -> Store[Any]:
        """Call a listener for objects of a selection, now and as they change."""
        store = await self.watches.follow(resource, selection)

        def filtered(change: Change[Any]) -> None:
            if change.key.partition("/")[0] in self.spaces:
                listener(change)

        store.listen(listener if selection.namespace else filtered)
        return store

    async def list(self, resource: Resource[Any], selection: Selection) -> list[str]:
        """Return the keys of the objects of a selection that exist now."""
        found = await self.client.list(
            resource, namespace=selection.namespace, labels=selection.labels, fields=selection.fields
        )
        keys = [key_of(item) for item in found]
        return [key for key in keys if selection.namespace or key.partition("/")[0] in self.spaces]


class Measurement(Protocol):
    """A measurement with one identifier; it keeps its state between actions."""

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Perform an action; raises MeasurementError."""


def duration(params: Mapping[str, Any], name: str, default: float) -> float:
    """Return a duration in seconds."""
    value = params.get(name)
    return default if value is None else durations.parse(value)


def perf_data(items: list[tuple[dict[str, float], str, dict[str, str]]]) -> dict[str, Any]:
    """Return a document of perf data: values, unit and labels of each item, in a fixed order."""
    listed = [{"data": data, "unit": unit, "labels": labels} for data, unit, labels in items]
    return {"version": "1.0", "dataItems": listed}


SELECTORS: dict[str, Callable[[Any], Any]] = {
    "namespace": fields.text,
    "labelSelector": kube_syntax.label_selector,
    "fieldSelector": kube_syntax.field_selector,
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
