"""SchedulingThroughput: how many pods a second are placed on nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from simgpu.loadtest.measurements import bench, percentiles
from simgpu.loadtest.measurements.bench import Bench, Measured, MeasurementError, Summary
from simgpu.loadtest.measurements.pod_times import PodTimes
from simgpu.loadtest.scenario import durations, fields
from simgpu.loadtest.watched import PODS

NAME = "SchedulingThroughput"
PARAMETERS = {
    "action": fields.choice("start", "gather"),
    **bench.SELECTORS,
    "threshold": fields.number,
    "measurmentInterval": durations.parse,  # as ClusterLoader2 spells it
    "measurementInterval": durations.parse,
}
_DEFAULT_SECONDS = 5.0


class SchedulingThroughput:
    """Throughput in windows of some seconds."""

    def __init__(self, run: Bench) -> None:
        self._bench = run
        self._times: PodTimes | None = None
        self._started = 0.0
        self._window = _DEFAULT_SECONDS

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Start, or gather."""
        if params["action"] == "start":
            if self._times is None:
                given = bench.duration(params, "measurmentInterval", _DEFAULT_SECONDS)
                self._window = bench.duration(params, "measurementInterval", given) or _DEFAULT_SECONDS
                self._times = PodTimes()
                await self._bench.follow(PODS, self._bench.selection(params), self._times)
                self._times.begin()
                self._started = time.time()
            return Measured()
        if self._times is None:
            raise MeasurementError(f"{identifier}: gather without start")
        rates = windows(self._times.scheduled_at, self._started, time.time(), self._window)
        if not rates:
            raise MeasurementError(f"{identifier}: no pod of the selection was scheduled: nothing to measure")
        ordered = sorted(rates)
        content = {f"perc{percent}": percentiles.at(ordered, percent) for percent in percentiles.PERCENTS}
        highest = content["max"] = ordered[-1]
        lowest = float(params.get("threshold") or 0.0)
        violations = [f"at most {highest:g} pods/s were scheduled, below {lowest:g}"] if highest < lowest else []
        return Measured([Summary(f"{NAME}_{identifier}", content)], violations)


def windows(moments: Sequence[float], start: float, end: float, width: float) -> list[float]:
    """Return the rate in each window up to the last event; none without an event.

    The last window ends with the measurement, so a run that is shorter than a window still has a rate.
    """
    if not moments:
        return []
    counts = Counter(int((moment - start) // width) for moment in moments)
    last = max(counts)
    span = min(width, max(end - (start + last * width), 0.001))
    if last == 0:
        span = min(width, max(max(moments) - start, 0.001))
    rates = [counts[index] / width for index in range(last)]
    return [*rates, counts[last] / span]
