"""What happened over the time of a run: pods, claims, throughput, API latency, GPUs in use.

A sample is taken at an interval; when there are many, neighbours are joined and the interval doubles, so that a long
run needs no more memory than a short one.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import msgspec

from simgpu.kube.store import Change
from simgpu.loadtest.measurements import percentiles
from simgpu.loadtest.measurements.pod_times import PodTimes
from simgpu.loadtest.running.objects import ApiCall
from simgpu.loadtest.watched import WatchedPod

MAX_SAMPLES = 600
_MAX_CALLS = 20_000  # of an interval whose latencies are kept


class TimelineSample(msgspec.Struct, frozen=True, rename="camel"):
    """Counts at one moment; rates, latencies and the most GPUs in use since the sample before."""

    at: float  # seconds since the start of the run
    pending: int = 0
    running: int = 0
    done: int = 0
    claims: int = 0
    claims_allocated: int = 0
    gpus: int = 0
    objects: int = 0  # created by phases so far
    scheduled_per_second: float = 0.0
    api_p50: float = 0.0  # milliseconds
    api_p99: float = 0.0


class Census:
    """Counts pods and claims of the run's namespaces as watches report them."""

    def __init__(self, spaces: frozenset[str]) -> None:
        self.times = PodTimes()
        self.samples: list[TimelineSample] = []
        self.objects = 0
        self.ended = 0  # pods that have ended, also those that are gone
        self.interval = 0.5
        self.spaces = spaces
        self._phases: Counter[str] = Counter()
        self._claims = [0, 0]  # all, allocated
        self._gpus = self._most_gpus = 0  # in use now, and at most since the sample before
        self._calls: list[float] = []
        self._scheduled_before, self._at_before = 0, 0.0
        self._started = time.time()
        self._due = 0.0

    @property
    def started(self) -> float:
        """When the run began, in seconds since the epoch."""
        return self._started

    # Listeners

    def pod(self, change: Change[Any]) -> None:
        """Take note of a pod."""
        self.times(change)
        before, after = _phase(change.old), _phase(change.new)
        if before != after:
            self._phases[before] -= 1
            self._phases[after] += 1
            self.ended += after == "done"
            self._use(_in_use(change.new, after) - _in_use(change.old, before))

    def claim(self, change: Change[Any]) -> None:
        """Take note of a claim."""
        for view, sign in ((change.old, -1), (change.new, 1)):
            if view is not None:
                self._claims[0] += sign
                self._claims[1] += sign * (view.devices > 0)
                self._use(sign * view.devices)

    def _use(self, more: int) -> None:
        self._gpus += more
        self._most_gpus = max(self._most_gpus, self._gpus)

    def called(self, call: ApiCall) -> None:
        """Take note of a request of a phase."""
        self.objects += call.verb == "create"
        if len(self._calls) < _MAX_CALLS:
            self._calls.append(call.seconds)

    # Samples

    def sample(self, *, last: bool = False) -> TimelineSample:
        """Return the counts of now; they are kept if the interval is over, or if it is the last sample."""
        at = time.time() - self._started
        span = max(at - self._at_before, 0.001)
        ordered = sorted(self._calls)
        made = TimelineSample(
            at=round(at, 3),
            pending=self._phases["pending"],
            running=self._phases["running"],
            done=self.ended,
            claims=self._claims[0],
            claims_allocated=self._claims[1],
            gpus=self._most_gpus,
            objects=self.objects,
            scheduled_per_second=round((self.times.scheduled_total - self._scheduled_before) / span, 3),
            api_p50=round(percentiles.at(ordered, 50) * 1000, 3),
            api_p99=round(percentiles.at(ordered, 99) * 1000, 3),
        )
        if last or at >= self._due:
            self._due = at + self.interval
            self._at_before, self._scheduled_before = at, self.times.scheduled_total
            self._calls.clear()
            self._most_gpus = self._gpus
            self.samples.append(made)
            if len(self.samples) >= MAX_SAMPLES:
                self._thin()
        return made

    def _thin(self) -> None:
        """Join neighbours: counts of the later one, the mean of rates, the greater of latencies and of GPUs."""
        joined = []
        for first, second in zip(self.samples[::2], self.samples[1::2], strict=False):
            joined.append(
                msgspec.structs.replace(
                    second,
                    gpus=max(first.gpus, second.gpus),
                    scheduled_per_second=(first.scheduled_per_second + second.scheduled_per_second) / 2,
                    api_p50=max(first.api_p50, second.api_p50),
                    api_p99=max(first.api_p99, second.api_p99),
                )
            )
        self.samples = joined
        self.interval *= 2


def _phase(pod: WatchedPod | None) -> str:
    if pod is None:
        return "none"
    if pod.ended:
        return "done"
    return "running" if pod.phase == "Running" else "pending"


def _in_use(pod: WatchedPod | None, phase: str) -> int:
    """Return the GPUs of a pod that runs and has them as an extended resource."""
    return pod.gpus if pod is not None and phase == "running" else 0
