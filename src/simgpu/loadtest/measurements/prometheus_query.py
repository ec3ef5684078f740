"""GenericPrometheusQuery: any queries of a Prometheus, with limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from simgpu.loadtest.measurements import bench
from simgpu.loadtest.measurements.bench import Bench, Measured, MeasurementError, Summary
from simgpu.loadtest.scenario import fields
from simgpu.loadtest.scenario.fields import Problems, Section
from simgpu.promql import asking

NAME = "GenericPrometheusQuery"


class _Query(msgspec.Struct, frozen=True):
    name: str
    text: str
    threshold: float | None
    lower_bound: bool
    require_samples: bool


def _queries(value: Any) -> list[_Query]:
    """Parse `queries`."""
    problems = Problems("")
    found = []
    for section in Section({"queries": value}, "", problems).sections("queries"):
        found.append(
            _Query(
                name=section.require("name", fields.text, ""),
                text=section.require("query", fields.text, ""),
                threshold=section.take("threshold", fields.number, None),
                lower_bound=section.take("lowerBound", fields.flag, default=False),
                require_samples=section.take("requireSamples", fields.flag, default=False),
            )
        )
        section.finish("name, query, threshold, lowerBound, requireSamples")
    if problems.found:
        raise ValueError("; ".join(problems.found))
    return found


def _dimensions(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of label names")
    return value


PARAMETERS = {
    "action": fields.choice("start", "gather"),
    "metricName": fields.text,
    "metricVersion": fields.text,
    "unit": fields.text,
    "queries": _queries,
    "dimensions": _dimensions,
    "enableViolations": fields.flag,
}


class GenericPrometheusQuery:
    """Values of queries over the time between start and gather (`%v` in a query is that time in seconds)."""

    def __init__(self, run: Bench) -> None:
        self._bench = run
        self._started = 0.0
        self._params: dict[str, Any] = {}

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Start, or gather."""
        if not self._bench.prometheus:
            return Measured(skipped="there is no Prometheus (--prometheus URL)")
        if params["action"] == "start":
            self._started, self._params = time.time(), dict(params)
            return Measured()
        if not self._started:
            raise MeasurementError(f"{identifier}: gather without start")
        given = {**self._params, **params}
        items: dict[tuple[str, ...], dict[str, float]] = {}
        violations: list[str] = []
        dimensions = _dimensions(given.get("dimensions") or [])
        for query in _queries(given.get("queries") or []):
            violations += await self._one(query, dimensions, items)
        listed = [
            (values, str(given.get("unit") or ""), dict(zip(dimensions, key, strict=True)))
            for key, values in sorted(items.items())
        ]
        name = f"{NAME} {given.get('metricName') or identifier}"
        document = {**bench.perf_data(listed), "version": str(given.get("metricVersion") or "1.0")}
        return Measured([Summary(name, document)], violations if given.get("enableViolations") else [])

    async def _one(self, query: _Query, dimensions: list[str], items: dict[tuple[str, ...], dict[str, float]]) -> Any:
        window = max(1, round(time.time() - self._started))
        samples = await asking.instant(self._bench.prometheus, query.text.replace("%v", f"{window}s"))
        found = []
        if not samples and query.require_samples:
            found.append(f"{query.name}: no samples")
        for sample in samples:
            key = tuple(sample.labels.get(name, "") for name in dimensions)
            values = items.setdefault(key, {})
            if query.name in values:
                found.append(f"{query.name}: several samples for {key}")
            values[query.name] = sample.value
            if query.threshold is not None:
                beyond = sample.value < query.threshold if query.lower_bound else sample.value > query.threshold
                if beyond:
                    side = "below" if query.lower_bound else "above"
                    found.append(f"{query.name}: {sample.value:g} is {side} {query.threshold:g}")
        return found
