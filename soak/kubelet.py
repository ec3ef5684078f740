"""The kubelets of the nodes with an agent, played: pods get GPUs there by count or by claims, live for a while, and go.

These pods are bound when they are created, so that no scheduler chooses among their GPUs. What an agent does not do,
because it or its API server is away, is requested again, as a kubelet does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from simgpu import vocabulary
from simgpu.dra import names
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.node import cdi, messages
from simgpu.node.dra_messages import ClaimRef
from soak import fleet
from soak.gate import Gate
from soak.insisting import insist
from tests.fixtures.dra import Registry
from tests.fixtures.kubelet import Kubelet
from tests.permissions.serving import gpu_id

_CONTAINER = "c0"
_TURN_SECONDS = 0.5  # from one pod that starts or ends to the next
_ANSWER_SECONDS = 150.0  # until an agent has done what it is asked for, on a disk that is slow
_PAUSE_SECONDS = 0.3


class AgentSilent(Exception):
    """An agent did not do in time what its kubelet requested."""


class _RunningPod(NamedTuple):
    end: float
    name: str
    claim: ClaimRef | None  # by which it has its GPU


class PlayedKubelet:
    """The kubelet of a node, whose sockets are in `folder`; `cdi_files` is where the agent puts files of claims."""

    def __init__(self, client: Client, node: str, folder: Path, cdi_files: Path, *, chance: random.Random) -> None:
        self.started = 0  # pods
        self._client = client
        self._node = node
        self._by_claim = fleet.REAL_NODES[node] in fleet.BY_CLAIM
        self._cdi_files = cdi_files
        self._chance = chance
        self._pods: dict[int, _RunningPod] = {}  # by the index of their GPU
        plugins = folder / "device-plugins"
        plugins.mkdir(parents=True)
        self._kubelet = Kubelet(plugins)
        self._registry = Registry(folder)
        self._endpoint = ""

    async def start(self) -> None:
        """Listen."""
        await self._kubelet.start()

    async def stop(self) -> None:
        """Stop listening."""
        await self._kubelet.stop()

    async def restart(self) -> None:
        """Begin anew, as a kubelet does: without the plugins that had registered, whose sockets are removed."""
        await self._kubelet.stop()
        self._endpoint = ""
        await self._kubelet.start()

    async def run(self, gate: Gate) -> None:
        """Start and end pods until cancelled; while the gate is closed, wait."""
        clock = asyncio.get_running_loop().time
        while True:
            async with gate.inside():
                index, now = self._chance.randrange(fleet.GPUS), clock()
                if index not in self._pods:
                    await self._begin(index, end=now + self._chance.uniform(1.0, 20.0))
                elif self._pods[index].end <= now:
                    await self._end(index)
            await asyncio.sleep(_TURN_SECONDS)

    async def drain(self) -> None:
        """End all pods."""
        for index in [*self._pods]:
            await self._end(index)

    def claim_file_problems(self) -> list[str]:
        """Return where CDI files are not those of the claims of pods that run."""
        held = {pod.claim.uid for pod in self._pods.values() if pod.claim is not None}
        missing = (uid for uid in held if not cdi.path(self._cdi_files, uid).exists())
        stale = cdi.stale(self._cdi_files, {cdi.COMMON, *held})
        return [
            *(f"{self._node}: claim {uid} has no CDI file" for uid in missing),
            *(f"{self._node}: {path.name} is of no claim" for path in stale),
        ]

    async def _begin(self, index: int, *, end: float) -> None:
        self.started += 1
        name = f"{self._node}-{self.started}"
        await insist(lambda: self._client.create(resources.PODS, self._pod(name), namespace=fleet.PODS))
        claim = await self._claim(name, index) if self._by_claim else None
        self._pods[index] = _RunningPod(end, name, claim)
        if claim is None:
            await self._until_done(lambda: self._allocate(index))
            self._list()
        else:
            await self._until_done(lambda: self._prepare(claim))
        await self._patch(resources.PODS, name, {"phase": "Running"})

    async def _end(self, index: int) -> None:
        pod = self._pods[index]
        if (claim := pod.claim) is not None:
            await self._until_done(lambda: self._unprepare(claim))
        del self._pods[index]
        self._list()
        await insist(
            lambda: self._client.delete(resources.PODS, pod.name, namespace=fleet.PODS, grace_seconds=0),
        )
        if claim is not None:
            await insist(lambda: self._client.delete(resources.RESOURCE_CLAIMS, pod.name, namespace=fleet.PODS))

    def _pod(self, name: str) -> dict[str, Any]:
        amounts = {"claims": [{"name": "gpu"}]} if self._by_claim else {"limits": {vocabulary.GPU_RESOURCE: "1"}}
        spec: dict[str, Any] = {
            "nodeName": self._node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": _CONTAINER, "image": "x", "resources": amounts}],
        }
        if self._by_claim:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        return {"metadata": {"name": name}, "spec": spec}

    async def _claim(self, name: str, index: int) -> ClaimRef:
        """Create a pod's claim, allocated as a scheduler would."""
        request = {"name": "gpu", "exactly": {"deviceClassName": vocabulary.DRA_DRIVER}}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        await insist(lambda: self._client.create(resources.RESOURCE_CLAIMS, body, namespace=fleet.PODS))
        pod = await insist(lambda: self._client.get(resources.PODS, name, namespace=fleet.PODS))
        claim = await insist(lambda: self._client.get(resources.RESOURCE_CLAIMS, name, namespace=fleet.PODS))
        assert pod is not None
        assert claim is not None
        gpu = gpu_id(self._node, index)
        device = names.of_gpus([gpu])[gpu]
        result = {"request": "gpu", "driver": vocabulary.DRA_DRIVER, "pool": self._node, "device": device}
        reserved = [{"resource": "pods", "name": name, "uid": pod.metadata.uid}]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
        await self._patch(resources.RESOURCE_CLAIMS, name, status)
        return ClaimRef(namespace=fleet.PODS, name=name, uid=claim.metadata.uid)

    async def _patch(self, resource: resources.Resource[Any], name: str, status: dict[str, Any]) -> None:
        body = {"status": status}
        await insist(lambda: self._client.merge_patch(resource, name, body, namespace=fleet.PODS, subresource="status"))

    def _list(self) -> None:
        """Let the pod resources interface list the pods that have GPUs by count."""
        self._kubelet.pods = messages.ListPodResourcesResponse(
            tuple(
                messages.PodResources(pod.name, fleet.PODS, (_resources(gpu_id(self._node, index)),))
                for index, pod in self._pods.items()
                if pod.claim is None
            )
        )

    async def _until_done(self, request: Callable[[], Awaitable[str]]) -> None:
        """Repeat a request to the agent, which returns what was wrong, until nothing is."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _ANSWER_SECONDS
        while problem := await self._try(request):
            if clock() > deadline:
                raise AgentSilent(f"{self._node}: {problem}")
            await asyncio.sleep(_PAUSE_SECONDS)

    @staticmethod
    async def _try(request: Callable[[], Awaitable[str]]) -> str:
        try:
            return await request()
        except (grpc.RpcError, OSError, TimeoutError) as error:
            return repr(error)

    async def _allocate(self, index: int) -> str:
        while not self._kubelet.registered.empty() or not self._endpoint:
            self._endpoint = (await self._kubelet.next()).endpoint
        wanted = messages.ContainerAllocateRequest((gpu_id(self._node, index),))
        request = messages.AllocateRequest((wanted,))
        answer = await self._kubelet.ask(self._endpoint, "Allocate", request, messages.AllocateResponse)
        return "" if answer.containers else "an empty answer"

    async def _prepare(self, claim: ClaimRef) -> str:
        results = await self._registry.prepare(await self._registry.register(), [claim])
        return results[claim.uid].error

    async def _unprepare(self, claim: ClaimRef) -> str:
        return (await self._registry.unprepare(await self._registry.register(), [claim]))[claim.uid]


def _resources(gpu: str) -> messages.ContainerResources:
    return messages.ContainerResources(_CONTAINER, (messages.ContainerDevices(vocabulary.GPU_RESOURCE, (gpu,)),))
