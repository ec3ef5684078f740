"""SchedulingMetrics and PrometheusSchedulingMetrics: latencies that the scheduler itself measured.

They are read from Prometheus where there is one, else from the scheduler's own metrics page, before and after.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from simgpu.loadtest.measurements import histograms
from simgpu.loadtest.measurements.bench import Bench, Measured, MeasurementError, Summary
from simgpu.loadtest.measurements.histograms import Buckets
from simgpu.loadtest.scenario import fields
from simgpu.promql import asking

NAMES = ("SchedulingMetrics", "PrometheusSchedulingMetrics")
PARAMETERS = {"action": fields.choice("start", "reset", "gather")}
E2E = "scheduler_pod_scheduling_sli_duration_seconds"
_ALGORITHM = "scheduler_scheduling_algorithm_duration_seconds"
_PREEMPTION = "scheduler_scheduling_algorithm_preemption_evaluation_seconds"
_POINT = "scheduler_framework_extension_point_duration_seconds"
_POINTS = (
    "PreFilter", "Filter", "PostFilter", "PreScore", "Score", "PreBind", "Bind", "PostBind", "Reserve", "Unreserve",
    "Permit",
)  # fmt: skip
_QUANTILES = {"Perc50": 0.5, "Perc90": 0.9, "Perc99": 0.99}
_MAX_SECONDS = 1e9  # of a latency

# Name in the result -> family, and labels that select its series.
_SERIES: dict[str, tuple[str, dict[str, str]]] = {
    **{f"frameworkExtensionPointDuration{point}": (_POINT, {"extension_point": point}) for point in _POINTS},
    "preemptionEvaluationLatency": (_PREEMPTION, {}),
    "e2eSchedulingLatency": (E2E, {}),
    "schedulingLatency": (_ALGORITHM, {}),
}


class SchedulingMetrics:
    """Latencies of the scheduler between start (or reset) and gather."""

    def __init__(self, run: Bench, method: str) -> None:
        self._bench, self._method = run, method
        self._before: str | None = None
        self._started = 0.0

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Start, reset or gather."""
        if params["action"] in {"start", "reset"}:
            self._started = time.time()
            if not self._bench.prometheus:
                self._before = await self._page(identifier)
            return Measured()
        if not self._started:
            raise MeasurementError(f"{identifier}: gather without start")
        found = await self._increases(identifier)
        if not histograms.total(found["e2eSchedulingLatency"]):
            raise MeasurementError(f"{identifier}: the scheduler placed no pod: nothing to measure")
        content = {
            name: {key: _nanoseconds(buckets, part, f"{identifier}: {name}") for key, part in _QUANTILES.items()}
            for name, buckets in found.items()
        }
        return Measured([Summary(f"{identifier}_{self._method}", content)])

    async def _page(self, identifier: str) -> str:
        if self._bench.scheduler is None:
            raise MeasurementError(
                f"{identifier}: the scheduler's metrics were not found; give --scheduler-metrics or --prometheus"
            )
        return await self._bench.scheduler()

    async def _increases(self, identifier: str) -> dict[str, Buckets]:
        if self._bench.prometheus:
            return {name: await self._query(*series) for name, series in _SERIES.items()}
        after, before = await self._page(identifier), self._before or ""
        return {
            name: histograms.increase(histograms.read(before, family, labels), histograms.read(after, family, labels))
            for name, (family, labels) in _SERIES.items()
        }

    async def _query(self, family: str, labels: Mapping[str, str]) -> Buckets:
        window = max(1, round(time.time() - self._started))
        matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
        query = f"sum(increase({family}_bucket{{{matchers}}}[{window}s])) by (le)"
        samples = await asking.instant(self._bench.prometheus, query)
        return histograms.summed((sample.labels, sample.value) for sample in samples)


def _nanoseconds(buckets: Buckets, fraction: float, where: str) -> int:
    seconds = histograms.quantile(buckets, fraction)
    if not abs(seconds) <= _MAX_SECONDS:
        raise MeasurementError(f"{where}: a latency of {seconds:g} s: are these buckets those of the scheduler?")
    return round(seconds * 1e9)
