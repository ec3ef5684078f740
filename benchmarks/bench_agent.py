"""The agent on a real node: what it needs, how soon a container has its GPUs, and how soon pages show its work.

The node is the one of the tests: a kubelet with containerd in a machine of its own. That needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc.aio

from benchmarks import frame, scratch
from simgpu.cli import progress
from simgpu.cluster import locate
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import Pod
from simgpu.node import dra_messages, messages
from simgpu.node.protobuf import Message
from tests.fixtures.agent import H200, Gpus
from tests.fixtures.claimed import Claimed
from tests.fixtures.cluster import Cluster
from tests.fixtures.machine import Machine, wait_for
from tests.fixtures.node import PROGRAMS, Node

IDLE_SECONDS = 40.0
CALLS = 100
PODS = 20
AIMED = "what is aimed at"

_IMPORTS = """
import aiohttp.web, click, grpclib.client, grpclib.server, msgspec, numpy, yaml
print(open("/proc/self/statm").read().split()[1])
"""


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    if os.geteuid() != 0:
        print("left out: a machine of its own needs root", flush=True)
        return
    async with equipped() as gpus:
        yield await idle(gpus)
        yield await allocate(gpus)
        async for figure in pods(gpus):
            yield figure
        yield resident(gpus)
        yield await prepare(gpus)


@contextlib.asynccontextmanager
async def equipped() -> AsyncIterator[Gpus]:
    """A real node with eight GPUs, gone afterwards."""
    found = await locate.ensure(PROGRAMS, progress.Plain())
    programs = {name: place.path for name, place in found.items()}
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder)) as machine:
        async with scratch.cluster(address=machine.outside) as outcome:
            cluster = Cluster(outcome.status.name, Path(outcome.status.kubeconfig), Path(folder))
            node = Node(machine, cluster, programs)
            node.start()
            gpus = Gpus(node)
            gpus.start()
            gpus.have(8)
            yield gpus


async def idle(gpus: Gpus) -> frame.Figure:
    """Its share of a core while no pod has a GPU."""
    await asyncio.sleep(5)  # it has just started
    before, started = cpu_seconds(gpus.agent.pid), time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    share = (cpu_seconds(gpus.agent.pid) - before) / (time.perf_counter() - started)
    return frame.Figure("agent.idle", 100 * share, 2.0, "% of a core", AIMED)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def resident(gpus: Gpus) -> frame.Figure:
    """What it has in memory after pods came and went, against its libraries alone."""
    size = os.sysconf("SC_PAGE_SIZE") / 1e6
    ours = int(Path(f"/proc/{gpus.agent.pid}/statm").read_text().split()[1])
    bare = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True).stdout
    return frame.Figure("agent.resident", ours * size, int(bare) * size, "MB", "its libraries alone")


async def allocate(gpus: Gpus) -> frame.Figure:
    """All eight GPUs for a container, asked over one connection as by a kubelet, against a bare call."""
    socket = gpus.node.machine.path("/var/lib/kubelet/device-plugins/simgpu-nvidia.com_gpu.sock")
    ids = tuple(labels["UUID"] for labels, _ in gpus.series())
    request = messages.AllocateRequest((messages.ContainerAllocateRequest(ids),))
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:

        def call(method: str, asked: Message) -> Callable[[], Awaitable[float]]:
            ask: Callable[[Message], Awaitable[bytes]] = channel.unary_unary(
                f"/{messages.DEVICE_PLUGIN}/{method}", request_serializer=Message.encode
            )

            async def milliseconds() -> float:
                await asyncio.sleep(0.1)  # an agent that gave GPUs looks who has them
                started = time.perf_counter()
                await ask(asked)
                return (time.perf_counter() - started) * 1000

            return milliseconds

        bare = call("GetDevicePluginOptions", messages.Empty())
        value, baseline = await frame.alternate(call("Allocate", request), bare, chunks=CALLS)
    return frame.Figure("agent.allocate", value, baseline, "ms", "GetDevicePluginOptions")


async def prepare(gpus: Gpus) -> frame.Figure:
    """A claim of all eight GPUs: read from the API server, its CDI file and the checkpoint written."""
    made = Claimed(gpus.node)
    made.publish_classes()
    made.configure({**H200, "allocation": "dra"})
    wait_for(lambda: len(made.offered()) == 8, "eight devices")
    made.claim("all", count=8)
    made.use("user", "all")
    made.running("user")
    uid = gpus.node.kubectl("get", "resourceclaim", "all", "-o", "jsonpath={.metadata.uid}")
    request = dra_messages.ClaimsRequest((dra_messages.ClaimRef("default", uid, "all"),))
    socket = gpus.node.machine.path("/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock")
    service, times = dra_messages.PLUGIN_SERVICES["v1.DRAPlugin"], []
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        undo: Callable[[Message], Awaitable[bytes]] = channel.unary_unary(
            f"/{service}/NodeUnprepareResources", request_serializer=Message.encode
        )
        ask: Callable[[Message], Awaitable[dra_messages.PrepareResponse]] = channel.unary_unary(
            f"/{service}/NodePrepareResources",
            request_serializer=Message.encode,
            response_deserializer=dra_messages.PrepareResponse.decode,
        )
        for _ in range(CALLS):
            await undo(request)
            await asyncio.sleep(0.1)
            started = time.perf_counter()
            answer = await ask(request)
            times.append((time.perf_counter() - started) * 1000)
            if len(answer.claims[uid].devices) != 8:
                raise RuntimeError(answer.claims[uid].error)
    return frame.Figure("agent.prepare", statistics.median(times), 20.0, "ms", AIMED)


async def pods(gpus: Gpus) -> AsyncIterator[frame.Figure]:
    """Pods with a GPU and without in turns: until they run, and from then until the page shows the GPU at work."""
    waits, starts, bare = [], [], []
    async with gpus.node.cluster.client() as client, watched(client) as seen, aiohttp.ClientSession(gpus.url) as page:
        for number in range(PODS):
            name = await asyncio.to_thread(gpus.pod)
            starts.append(await seen.running(name))
            waits.append(await shown(page, name, since=seen.phases[name]["Running"]))
            await remove(gpus, seen, name)
            plain = f"plain-{number}"
            await asyncio.to_thread(gpus.node.pod, plain, "sleep 1000")
            bare.append(await seen.running(plain))
            await remove(gpus, seen, plain)
    yield frame.Figure("agent.running_to_metrics", statistics.median(waits), 1.0, "s", AIMED)
    yield frame.Figure("agent.running_to_metrics_worst", max(waits), 1.0, "s", f"{AIMED}, of {PODS} pods")
    started, bare_started = statistics.median(starts), statistics.median(bare)
    yield frame.Figure("agent.pod_start", started, bare_started, "s", "a pod without a GPU")


class Seen:
    """When a watch showed which phase of a pod."""

    def __init__(self, store: Store[Pod]) -> None:
        self.phases: dict[str, dict[str, float]] = {}
        self._store = store
        self._changed = asyncio.Event()
        store.listen(self._note)

    def _note(self, change: Change[Pod]) -> None:
        if change.new is not None:
            name = change.new.metadata.name
            self.phases.setdefault(name, {}).setdefault(change.new.status.phase, time.perf_counter())
        self._changed.set()

    async def running(self, name: str) -> float:
        """Seconds from when a pod was there to when it ran."""
        await self._until(lambda: "Running" in self.phases.get(name, ()))
        return self.phases[name]["Running"] - min(self.phases[name].values())

    async def gone(self, name: str) -> None:
        await self._until(lambda: f"default/{name}" not in self._store)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def watched(client: Client) -> AsyncIterator[Seen]:
    store: Store[Pod] = Store()
    watching = asyncio.create_task(Reflector(client, resources.PODS, store, namespace="default").run())
    try:
        await store.synced.wait()
        yield Seen(store)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def shown(page: aiohttp.ClientSession, name: str, *, since: float) -> float:
    """Seconds until the page shows a GPU of the pod at work."""
    busy = re.compile(rf'^DCGM_FI_DEV_GPU_UTIL{{.*\bpod="{name}".*}} [1-9]', re.MULTILINE)
    while True:
        async with page.get("/metrics") as answer:
            text = await answer.text()
        if busy.search(text):
            return time.perf_counter() - since
        await asyncio.sleep(0.02)


async def remove(gpus: Gpus, seen: Seen, name: str) -> None:
    """Take a pod away, and let the node come to rest."""
    await asyncio.to_thread(gpus.delete, name)
    await seen.gone(name)
    await asyncio.sleep(1)
