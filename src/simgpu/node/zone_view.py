"""A view of the node's pods with GPUs as if its NUMA zones were real: a pod resources interface and the zones' CPUs.

A real machine seldom has the NUMA nodes of its pool, so the kubelet's own interface cannot show them. Programs that
read NUMA zones can be pointed to this folder instead: `pod-resources/kubelet.sock` in it, and `sys`. A pod's CPUs and
memory are in the zones of its GPUs, by their number; CPUs of pods overlap.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from simgpu import errors
from simgpu.node import files, messages, rpc
from simgpu.node.runai import split
from simgpu.vocabulary import KUBELET_SOCKET

_SOCKET = Path("pod-resources") / KUBELET_SOCKET
_ZONES = Path("sys") / "devices" / "system" / "node"
_MEMORY = "memory"
_MODE = 0o644
_RETRY_SECONDS = 30.0

_log = logging.getLogger(__name__)


class ZonedPod(msgspec.Struct, frozen=True):
    """A pod with GPUs, by id and zone; its CPU requests in thousandths of a core, and its memory requests in bytes."""

    namespace: str
    name: str
    gpus: tuple[tuple[str, int], ...]
    cpu: int = 0
    memory: int = 0


class ZonedNode(msgspec.Struct, frozen=True):
    """A node's zones, with so many cores in each, and its pods with GPUs of a resource."""

    zones: int = 0
    cores: int = 0
    resource: str = ""
    pods: tuple[ZonedPod, ...] = ()


class ZoneView:
    """Serves the view of a node in a folder. `look` returns its current state."""

    def __init__(self, folder: Path, look: Callable[[], ZonedNode]) -> None:
        self._folder = folder
        self._look = look
        self._shown: tuple[int, int] | None = None
        self._problem = ""

    async def run(self) -> None:
        """Serve until cancelled; where the socket cannot be made, try again later."""
        while True:
            try:
                await self._serve(self._folder / _SOCKET)
            except OSError as error:
                _log.warning("the pod resources interface with NUMA zones is not served: %s", errors.explain(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _serve(self, socket: Path) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        listed = rpc.unary(messages.Empty, self._list)
        server = await rpc.serve(socket, {messages.POD_RESOURCES: {"List": listed}})
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop()

    async def _list(self, _request: messages.Empty) -> messages.ListPodResourcesResponse:
        return response(self._look())

    def show(self) -> None:
        """Write the CPUs of each zone, if they changed; a failure is logged once."""
        node = self._look()
        if self._shown == (node.zones, node.cores):
            return
        try:
            self._write(node)
        except OSError as error:
            if (problem := errors.explain(error)) != self._problem:
                self._problem = problem
                _log.warning("cannot write CPUs of NUMA zones: %s", problem)
            return
        self._shown, self._problem = (node.zones, node.cores), ""

    def _write(self, node: ZonedNode) -> None:
        folder = self._folder / _ZONES
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {f"node{zone}" for zone in range(node.zones)}
        for path in folder.iterdir():
            if path.name not in wanted and path.name.startswith("node"):
                shutil.rmtree(path)
        for zone in range(node.zones):
            path = folder / f"node{zone}" / "cpulist"
            path.parent.mkdir(exist_ok=True)
            first = zone * node.cores
            listed = f"{first}-{first + node.cores - 1}" if node.cores > 1 else f"{first}" if node.cores else ""
            files.put(path, f"{listed}\n".encode(), _MODE)

    def remove(self) -> None:
        """Remove everything that was written. The folder itself stays: it may be mounted."""
        shutil.rmtree((self._folder / _SOCKET).parent, ignore_errors=True)
        shutil.rmtree(self._folder / "sys", ignore_errors=True)


def response(node: ZonedNode) -> messages.ListPodResourcesResponse:
    """Return what the interface answers: one container without a name for each pod."""
    pods = sorted(node.pods, key=lambda pod: (pod.namespace, pod.name))
    return messages.ListPodResourcesResponse(
        tuple(messages.PodResources(pod.name, pod.namespace, (_container(pod, node),)) for pod in pods)
    )


def _container(pod: ZonedPod, node: ZonedNode) -> messages.ContainerResources:
    counts = Counter(zone for _, zone in pod.gpus)
    zones = sorted(counts)
    weights = [counts[zone] for zone in zones]
    cpus = zip(zones, split((pod.cpu + 500) // 1000, weights), strict=True)
    memory = zip(zones, split(pod.memory, weights), strict=True)
    return messages.ContainerResources(
        devices=tuple(
            messages.ContainerDevices(node.resource, _in_zone(pod.gpus, zone), _topology(zone)) for zone in zones
        ),
        cpu_ids=tuple(zone * node.cores + number for zone, count in cpus for number in range(min(count, node.cores))),
        memory=tuple(messages.ContainerMemory(_MEMORY, size, _topology(zone)) for zone, size in memory if size),
    )


def _in_zone(gpus: Iterable[tuple[str, int]], zone: int) -> tuple[str, ...]:
    return tuple(gpu for gpu, there in gpus if there == zone)


def _topology(zone: int) -> messages.TopologyInfo:
    return messages.TopologyInfo((messages.NumaNode(zone),))


def zoned(
    owners: Sequence[tuple[str, int, tuple[str, str]]], requested: Callable[[str, str], tuple[int, int]]
) -> tuple[ZonedPod, ...]:
    """Return the pods that own GPUs.

    `owners` are id, zone, and namespace and name of the pod of each GPU; `requested` returns a pod's CPU and memory.
    """
    found: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for gpu, zone, pod in owners:
        found.setdefault(pod, []).append((gpu, zone))
    return tuple(ZonedPod(*pod, tuple(gpus), *requested(*pod)) for pod, gpus in found.items())
