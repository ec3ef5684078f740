"""PodStartupLatency: how long pods take from their creation until they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simgpu.loadtest.measurements import bench, percentiles
from simgpu.loadtest.measurements.bench import Bench, Measured, MeasurementError, Summary
from simgpu.loadtest.measurements.pod_times import PodTimes, Started
from simgpu.loadtest.scenario import fields
from simgpu.loadtest.watched import PODS

NAME = "PodStartupLatency"
PARAMETERS = {
    "action": fields.choice("start", "gather"),
    **bench.SELECTORS,
    **bench.THRESHOLDS,
    "schedulerName": fields.text,
}
_DEFAULT_SECONDS = 5.0
_STARTUP = "pod_startup"


class PodStartupLatency:
    """Start-up latency of the pods of a selection."""

    def __init__(self, run: Bench) -> None:
        self._bench = run
        self._times: PodTimes | None = None
        self._limits: bench.Thresholds | None = None

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Start, or gather."""
        self._limits = bench.thresholds(params, _DEFAULT_SECONDS, self._limits)
        if params["action"] == "start":
            if self._times is None:
                self._times = PodTimes()
                await self._bench.follow(PODS, self._bench.selection(params), self._times)
                self._times.begin()
            return Measured()
        if self._times is None:
            raise MeasurementError(f"{identifier}: gather without start")
        return self._gather(identifier, self._times.started(), self._limits)

    def _gather(self, identifier: str, started: Sequence[Started], limits: bench.Thresholds) -> Measured:
        if not started:
            raise MeasurementError(f"{identifier}: no pod of the selection started, so there is nothing to measure")
        groups = {
            "": started,
            "Stateless": [pod for pod in started if pod.stateless],
            "Stateful": [pod for pod in started if not pod.stateless],
        }
        result = Measured()
        for prefix, pods in groups.items():
            result.summaries.append(Summary(f"{prefix}{NAME}_{identifier}", _document(pods)))
        startup = percentiles.milliseconds([pod.running - pod.created for pod in started])
        result.violations = limits.violations(startup, _STARTUP)
        return result


def _document(pods: Sequence[Started]) -> dict[str, Any]:
    spans = {
        "create_to_schedule": [pod.scheduled - pod.created for pod in pods],
        "schedule_to_run": [pod.running - pod.scheduled for pod in pods],
        "run_to_watch": [0.0 for _ in pods],  # running is when the watch reports it
        "schedule_to_watch": [pod.running - pod.scheduled for pod in pods],
        _STARTUP: [pod.running - pod.created for pod in pods],
        "create_to_run": [pod.running - pod.created for pod in pods],
    }
    return bench.perf_data(
        [(percentiles.milliseconds(values), "ms", {"Metric": name}) for name, values in spans.items()]
    )
