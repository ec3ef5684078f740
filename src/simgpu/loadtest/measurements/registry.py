"""All measurements by the names of their methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu.loadtest.measurements import (
    claim_allocation,
    controlled_pods,
    finished_jobs,
    pod_startup,
    prometheus_query,
    scheduler,
    throughput,
)
from simgpu.loadtest.measurements.bench import Bench, Measurement

Make = Callable[[Bench], Measurement]


def _scheduling(method: str) -> Make:
    return lambda run: scheduler.SchedulingMetrics(run, method)


MAKERS: Mapping[str, Make] = {
    controlled_pods.NAME: controlled_pods.WaitForControlledPodsRunning,
    finished_jobs.NAME: finished_jobs.WaitForFinishedJobs,
    pod_startup.NAME: pod_startup.PodStartupLatency,
    claim_allocation.NAME: claim_allocation.ResourceClaimAllocationLatency,
    throughput.NAME: throughput.SchedulingThroughput,
    prometheus_query.NAME: prometheus_query.GenericPrometheusQuery,
    **{name: _scheduling(name) for name in scheduler.NAMES},
}

PARAMETERS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    controlled_pods.NAME: controlled_pods.PARAMETERS,
    finished_jobs.NAME: finished_jobs.PARAMETERS,
    pod_startup.NAME: pod_startup.PARAMETERS,
    claim_allocation.NAME: claim_allocation.PARAMETERS,
    throughput.NAME: throughput.PARAMETERS,
    prometheus_query.NAME: prometheus_query.PARAMETERS,
    **dict.fromkeys(scheduler.NAMES, scheduler.PARAMETERS),
}

REQUIRED: Mapping[str, Mapping[str, tuple[str, ...]]] = {controlled_pods.NAME: controlled_pods.REQUIRED}
