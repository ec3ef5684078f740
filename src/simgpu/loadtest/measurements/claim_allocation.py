"""ResourceClaimAllocationLatency: how long resource claims wait for their devices."""

from __future__ import annotations

import array
import time
from collections.abc import Mapping
from typing import Any

from simgpu.kube.store import Change
from simgpu.loadtest import watched
from simgpu.loadtest.measurements import bench, percentiles
from simgpu.loadtest.measurements.bench import Bench, Measured, MeasurementError, Summary
from simgpu.loadtest.scenario import fields
from simgpu.loadtest.watched import PODS, Selection, WatchedClaim

NAME = "ResourceClaimAllocationLatency"
PARAMETERS = {"action": fields.choice("start", "gather"), **bench.SELECTORS, **bench.THRESHOLDS}
_DEFAULT_SECONDS = 300.0


class _ClaimTimes:
    """A listener of claims and of pods; times are those at which events were received."""

    def __init__(self) -> None:
        self.allocation = array.array("d")
        self.after_pod = array.array("d")
        self.live = False
        self._waiting: dict[str, float] = {}
        self._pods: dict[str, float] = {}

    def claim(self, change: Change[Any]) -> None:
        new: WatchedClaim | None = change.new
        if new is None:
            if change.old is not None:
                self._waiting.pop(change.old.metadata.uid, None)
            return
        uid, now = new.metadata.uid, time.time()
        if change.old is None and self.live and not new.devices:
            self._waiting[uid] = now
            for owner in new.metadata.owner_references:
                created = self._pods.pop(owner.uid, None)
                if created is not None:
                    self.after_pod.append(now - created)
        if new.devices and uid in self._waiting:
            self.allocation.append(now - self._waiting.pop(uid))

    def pod(self, change: Change[Any]) -> None:
        if change.old is None and change.new is not None and self.live and not change.new.node:
            self._pods[change.new.metadata.uid] = time.time()
        elif change.new is None and change.old is not None:
            self._pods.pop(change.old.metadata.uid, None)


class ResourceClaimAllocationLatency:
    """Allocation latency of the claims of a selection."""

    def __init__(self, run: Bench) -> None:
        self._bench = run
        self._times: _ClaimTimes | None = None
        self._limits: bench.Thresholds | None = None

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Start, or gather."""
        self._limits = bench.thresholds(params, _DEFAULT_SECONDS, self._limits)
        if params["action"] == "start":
            await self._start(self._bench.selection(params))
            return Measured()
        if self._times is None:
            raise MeasurementError(f"{identifier}: gather without start")
        return self._gather(identifier, self._times, self._limits)

    async def _start(self, selection: Selection) -> None:
        if self._times is not None:
            return
        if self._bench.dra_version is None:
            raise MeasurementError("resource.k8s.io is not served by this cluster")
        times = self._times = _ClaimTimes()
        await self._bench.follow(PODS, Selection(selection.namespace), times.pod)
        await self._bench.follow(watched.claims(self._bench.dra_version), selection, times.claim)
        times.live = True

    def _gather(self, identifier: str, times: _ClaimTimes, limits: bench.Thresholds) -> Measured:
        if not times.allocation:
            raise MeasurementError(f"{identifier}: no claim of the selection was allocated: nothing to measure")
        allocation = percentiles.milliseconds(times.allocation)
        items = [
            (allocation, "ms", {"Metric": "claim_allocation"}),
            (percentiles.milliseconds(times.after_pod), "ms", {"Metric": "pod_create_to_claim_create"}),
        ]
        return Measured(
            [Summary(f"{NAME}_{identifier}", bench.perf_data(items))],
            limits.violations(allocation, "claim_allocation"),
        )
