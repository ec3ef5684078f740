"""WaitForControlledPodsRunning: waits until the pods of jobs, deployments and others run."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from simgpu.kube.resources import Resource
from simgpu.kube.store import Change, Store
from simgpu.loadtest import watched
from simgpu.loadtest.measurements import bench
from simgpu.loadtest.measurements.bench import Bench, Measured, MeasurementError
from simgpu.loadtest.scenario import durations, fields
from simgpu.loadtest.watched import PODS, Selection, WatchedController, WatchedPod

NAME = "WaitForControlledPodsRunning"
PARAMETERS = {
    "action": fields.choice("start", "gather", "stop"),
    "apiVersion": fields.text,
    "kind": fields.choice("Job", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"),
    **bench.SELECTORS,
    "operationTimeout": durations.parse,
    "syncTimeout": durations.parse,
    "timeout": durations.parse,
    "checkIfPodsAreUpdated": fields.flag,
    "countErrorMargin": fields.count(0, 1_000_000),
}
REQUIRED = {"start": ("apiVersion", "kind")}
_OPERATION_SECONDS = 600.0
_SYNC_SECONDS = 60.0
_MAX_NAMES = 10


class _Watched(msgspec.Struct):
    """An owner of pods that is looked at."""

    deadline: float
    wanted: int
    reached: bool = False


class WaitForControlledPodsRunning:
    """Notes for each owner whether, at some moment, all of its pods ran."""

    def __init__(self, run: Bench) -> None:
        self._bench = run
        self._resource: Resource[WatchedController] | None = None
        self._owners: Store[WatchedController] = Store()
        self._selection = Selection()
        self._seconds = _OPERATION_SECONDS
        self._margin = 0
        self._watched: dict[str, _Watched] = {}  # by uid
        self._pods: dict[str, dict[str, WatchedPod]] = defaultdict(dict)  # by uid of the owner, by uid
        self._replica_sets: dict[str, str] = {}  # uid of a replica set -> of its deployment
        self._changed = asyncio.Event()

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Start, gather or stop."""
        if params["action"] == "start":
            await self._start(params)
        elif params["action"] == "gather":
            await self._gather(identifier, params)
        return Measured()

    async def _start(self, params: Mapping[str, Any]) -> None:
        if self._resource is not None:
            return
        found = await self._bench.served.resource(params["apiVersion"], params["kind"])
        self._resource = watched.controllers(found)
        self._selection = self._bench.selection(params)
        self._seconds = bench.duration(params, "operationTimeout", _OPERATION_SECONDS)
        self._margin = int(params.get("countErrorMargin") or 0)
        if found.kind == "Deployment":
            sets = watched.controllers(await self._bench.served.resource(params["apiVersion"], "ReplicaSet"))
            await self._bench.follow(sets, Selection(self._selection.namespace), self._replica_set)
        await self._bench.follow(PODS, Selection(self._selection.namespace), self._pod)
        self._owners = await self._bench.follow(self._resource, self._selection, self._owner)

    # What watches report

    def _replica_set(self, change: Change[WatchedController]) -> None:
        view = change.new
        for owner in view.metadata.owner_references if view is not None else ():
            if owner.kind == "Deployment" and view is not None:
                self._replica_sets[view.metadata.uid] = owner.uid

    def _pod(self, change: Change[Any]) -> None:
        pod: WatchedPod | None = change.new or change.old
        if pod is None:
            return
        for owner in pod.metadata.owner_references:
            if not owner.controller:
                continue
            uid = self._replica_sets.get(owner.uid, owner.uid)
            if change.new is None:
                self._pods[uid].pop(pod.metadata.uid, None)
                if not self._pods[uid]:
                    del self._pods[uid]
            else:
                self._pods[uid][pod.metadata.uid] = change.new
            self._judge(uid)

    def _owner(self, change: Change[WatchedController]) -> None:
        view = change.new
        if view is None:
            if change.old is not None:
                self._watched.pop(change.old.metadata.uid, None)
            self._changed.set()
            return
        wanted = _desired(view)
        known = self._watched.get(view.metadata.uid)
        if known is None or known.wanted != wanted:
            self._watched[view.metadata.uid] = _Watched(time.monotonic() + self._seconds, wanted)
        if view.finished or (view.status.succeeded and view.status.succeeded >= (view.spec.completions or 1)):
            self._watched[view.metadata.uid].reached = True  # its pods ran, and some may be gone already
        self._judge(view.metadata.uid)

    def _judge(self, uid: str) -> None:
        owner = self._watched.get(uid)
        if owner is None or owner.reached:
            return
        pods = self._pods.get(uid, {}).values()
        running = sum(pod.ready for pod in pods)
        others = all(pod.ready or pod.ended for pod in pods)
        # Pods that ended have run: in a short job not all need to run at the same moment.
        ran = running + sum(pod.phase == "Succeeded" for pod in pods)
        if others and (running == owner.wanted or (running < owner.wanted <= ran)):
            owner.reached = True
            self._changed.set()

    # The end

    async def _gather(self, identifier: str, params: Mapping[str, Any]) -> None:
        """Wait until all owners have reached their pods, each within its own time, and all within `timeout`."""
        if self._resource is None:
            raise MeasurementError(f"{identifier}: gather without start")
        sync = bench.duration(params, "syncTimeout", _SYNC_SECONDS)
        limit = bench.duration(params, "timeout", 0.0)
        deadline = time.monotonic() + limit if limit else float("inf")
        await self._synced(identifier, min(sync, limit) if limit else sync)
        while True:
            self._changed.clear()
            waiting = {uid: owner for uid, owner in self._watched.items() if not owner.reached}
            now = time.monotonic()
            late = [uid for uid, owner in waiting.items() if owner.deadline <= now or deadline <= now]
            if late and len(late) > self._margin:
                raise MeasurementError(self._late(identifier, late))
            if len(waiting) <= self._margin and not late:
                break
            if not waiting or set(waiting) == set(late):
                break
            until = min(deadline, *(owner.deadline for uid, owner in waiting.items() if uid not in late))
            reached = len(self._watched) - len(waiting)
            self._bench.progress.update(identifier, f"{reached} of {len(self._watched)} {self._resource.plural} run")
            try:
                async with asyncio.timeout(max(0.01, min(until - now, 1.0))):
                    await self._changed.wait()
            except TimeoutError:
                pass
        self._bench.progress.done(identifier, f"{len(self._watched)} {self._resource.plural} run")

    async def _synced(self, identifier: str, seconds: float) -> None:
        """Wait until the watch knows all owners that exist now."""
        assert self._resource is not None  # noqa: S101 - gather is after start
        keys = set(await self._bench.list(self._resource, self._selection))
        if not keys and not self._watched:
            raise MeasurementError(f"{identifier}: no {self._resource.kind} of the selection exists")
        deadline = time.monotonic() + seconds
        while missing := keys - set(self._owners.keys()):
            if time.monotonic() > deadline:
                known = len(keys) - len(missing)
                raise MeasurementError(f"{identifier}: incorrect objects number: {known}/{len(keys)}")
            await asyncio.sleep(0.05)

    def _late(self, identifier: str, late: list[str]) -> str:
        assert self._resource is not None  # noqa: S101 - gather is after start
        names = {item.metadata.uid: f"{item.metadata.namespace}/{item.metadata.name}" for item in self._owners}
        lines = []
        for uid in late[:_MAX_NAMES]:
            phases = [pod.phase or "Pending" for pod in self._pods.get(uid, {}).values()]
            counts = ", ".join(f"{phases.count(phase)} {phase}" for phase in sorted(set(phases))) or "no pods"
            lines.append(f"{names.get(uid, uid)} ({counts} of {self._watched[uid].wanted})")
        more = f" and {len(late) - _MAX_NAMES} more" if len(late) > _MAX_NAMES else ""
        return f"{identifier}: {len(late)} objects timed out: {', '.join(lines)}{more}"


def _desired(view: WatchedController) -> int:
    """Return how many pods an owner should have."""
    if view.spec.parallelism is not None:
        return min(view.spec.parallelism, view.spec.completions or view.spec.parallelism)
    return view.spec.replicas if view.spec.replicas is not None else view.status.desired_number_scheduled
