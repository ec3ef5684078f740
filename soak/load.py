"""The load of a soak: pods with whole GPUs, pods with claims, and workloads on the exporter's socket.

Pods come at a rate with peaks, live for a while, and go. The API server is asked directly, not through the proxy, and
again while it is away.
"""

from __future__ import annotations

import asyncio
import collections
import heapq
import math
import random
import time
from pathlib import Path
from typing import Any

from simgpu import errors, vocabulary
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.workloads import client as workloads
from soak import fleet
from soak.fleet import Fleet
from soak.gate import Gate
from soak.insisting import insist
from soak.settings import Settings

_TICK_SECONDS = 0.05
_IN_FLIGHT = 48
_PEAK_EVERY, _PEAK_SECONDS = 30.0, 2.0
_FIRST_PEAK = 6.0
_USED = 0.8  # of all GPUs at most, so that pods need not wait for others to end
_CLAIMS = 0.12  # of all pods
_CLAIM_RATE = 3.0  # a second at most
_TEMPLATE = "one-gpu"
_TOLERATIONS = [{"key": vocabulary.KWOK_NODE, "operator": "Exists", "effect": "NoSchedule"}]
_WORKLOAD_SECONDS = 2
_ANSWER_SECONDS = 60.0  # until a workload's end is reported, on a disk that is slow
WORKLOADS = 4  # at a time
FAILED = "failed: "  # before the reason


class Load:
    """Creates and deletes pods; `by_second` counts those that the API server has created, by the second of that."""

    def __init__(self, client: Client, gpus: Fleet, settings: Settings, gate: Gate) -> None:
        self._client = client
        self._gpus = gpus
        self._settings = settings
        self._gate = gate
        self._chance = settings.chance("load")
        self._slots = asyncio.Semaphore(_IN_FLIGHT)
        self._ends: list[tuple[float, str, int]] = []  # when a pod goes, its name, its GPUs
        self._held = {False: 0, True: 0}  # GPUs of pods that exist, without and with claims
        self._claim_credit = 0.0
        self._number = 0
        self.by_second: collections.Counter[int] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()

    async def prepare(self) -> None:
        """Create what pods refer to."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        body = {"metadata": {"name": _TEMPLATE}, "spec": {"spec": {"devices": {"requests": [request]}}}}
        await insist(lambda: self._client.create(resources.RESOURCE_CLAIM_TEMPLATES, body, namespace=fleet.PODS))
        while not await self._client.find(resources.SERVICE_ACCOUNTS, "default", namespace=fleet.PODS):
            await asyncio.sleep(_TICK_SECONDS)

    def rate(self, at: float) -> float:
        """Return the pods a second that are due at a moment of the run."""
        peak = at >= _FIRST_PEAK and (at - _FIRST_PEAK) % _PEAK_EVERY < _PEAK_SECONDS
        return self._settings.peak if peak else self._settings.rate

    async def run(self) -> None:
        """Create and delete pods until cancelled; while the gate is closed, wait."""
        clock = asyncio.get_running_loop().time
        start = last = clock()
        due, paused = 0.0, 0.0
        async with asyncio.TaskGroup() as group:
            while True:
                async with self._gate.inside():
                    now = clock()
                    paused += max(0.0, now - last - 1.0)  # time at the gate is no time of the load
                    at = now - start - paused
                    due = min(due + self.rate(at) * min(now - last, 1.0), self._settings.peak)
                    self._claim_credit = min(self._claim_credit + _CLAIM_RATE * min(now - last, 1.0), _CLAIM_RATE)
                    last = now
                    await self._turn(group, now=now, count=math.floor(due))
                    due -= math.floor(due)
                await asyncio.sleep(_TICK_SECONDS)

    async def _turn(self, group: asyncio.TaskGroup, *, now: float, count: int) -> None:
        work = [self._create(now) for _ in range(count) if self._room()]
        while self._ends and self._ends[0][0] <= now:
            _, name, gpus = heapq.heappop(self._ends)
            work.append(self._delete(name, gpus))
        if work:  # within the gate: a check begins when all are done
            done = [group.create_task(item) for item in work]
            await asyncio.wait(done)

    def _room(self) -> bool:
        return self._held[False] < _USED * self._gpus.whole_gpus

    async def _create(self, now: float) -> None:
        claims = self._chance.random() < _CLAIMS and self._claim_credit >= 1.0
        claims = claims and self._held[True] < _USED * self._gpus.claimed_gpus
        containers = 1 if claims or self._chance.random() < 0.8 else 2
        lifetime = min(30.0, self._chance.expovariate(1 / 8.0)) + 0.5
        self._number += 1
        name = f"{'claim' if claims else 'pod'}-{self._number}"
        self._claim_credit -= claims
        self._held[claims] += containers
        body = pod(name, containers, claims=claims, chance=self._chance)
        async with self._slots:
            await insist(lambda: self._client.create(resources.PODS, body, namespace=fleet.PODS))
        self.counts["claims" if claims else "pods"] += 1
        self.by_second[int(time.monotonic())] += 1
        heapq.heappush(self._ends, (now + lifetime, name, containers))

    async def _delete(self, name: str, gpus: int) -> None:
        async with self._slots:
            await insist(lambda: self._client.delete(resources.PODS, name, namespace=fleet.PODS, grace_seconds=0))
        self._held[name.startswith("claim")] -= gpus
        self.counts["pods deleted"] += 1

    async def drain(self) -> None:
        """Delete all pods."""
        self._ends.clear()
        await insist(lambda: self._client.delete_all(resources.PODS, namespace=fleet.PODS))
        while await insist(lambda: self._client.list(resources.PODS, namespace=fleet.PODS)):
            await asyncio.sleep(_TICK_SECONDS)


def pod(name: str, containers: int, *, claims: bool, chance: random.Random) -> dict[str, Any]:
    """Return a pod with a GPU in each container, or with one claim; some say how busy they are."""
    amounts = {"claims": [{"name": "gpu"}]} if claims else {"limits": {vocabulary.GPU_RESOURCE: "1"}}
    low = chance.randrange(0, 60)
    annotations = {"run.ai/simulated-gpu-utilization": f"{low}-{low + 30}"} if chance.random() < 0.5 else {}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 0,
        "tolerations": _TOLERATIONS,
        "containers": [{"name": f"c{number}", "image": "x", "resources": amounts} for number in range(containers)],
    }
    if claims:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": _TEMPLATE}]
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


async def run_workloads(socket: Path, chance: random.Random, counts: collections.Counter[str]) -> None:
    """Connect one workload after another to the exporter, which may be away at any time; each plays for a while."""
    while True:
        profile = workloads.activities(f"{chance.randrange(10, 96)}:5:{_WORKLOAD_SECONDS}")
        device = f"nvidia{chance.randrange(fleet.EXPORTER_GPUS)}"
        document = {"name": "soak", "devices": [device], "profile": profile, "repeat": 1, "protocol": 2}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                code, message = await workloads.run(document, socket)
            counts["workload documents"] += 1
            if code:
                counts[f"{FAILED}{message[:80]}"] += 1
        except (workloads.Lost, workloads.Unreachable):
            counts["workloads cut off"] += 1
        except (errors.SimgpuError, TimeoutError) as error:
            counts[f"{FAILED}{error!r}"[:120]] += 1
        await asyncio.sleep(0.2)
