"""The fleet: how fast nodes get their GPUs, how soon pods show, and what a large fleet costs."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from prometheus_client import parser

from benchmarks import frame, scratch
from simgpu.catalog import models
from simgpu.controllers import feature_labels, publishing
from simgpu.controllers.node_views import SAVE_EVERY
from simgpu.kube import kubeconfig, resources
from simgpu.kube.client import Client
from simgpu.kube.operations import Target
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import Pod
from simgpu.kube.writer import Writer
from simgpu.topology import inline, pools
from simgpu.vocabulary import NODE_PREFIX

NODES, GPUS = 5000, 8
CHUNKS, CHUNK = 5, 200
PODS, STORM, PER_SECOND, STORM_NODES = 20_000, 800, 40, 1000
VIEWS_OF_A_POD = 3  # when it comes, when it runs, when it goes
NAMESPACE = "gpu-operator"
LABEL = "bench.simgpu.dev"
AIMED = "what is aimed at"
CORE = "% of a core"

T = TypeVar("T")


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    async with scratch.cluster(nodes=NODES) as outcome, Client(kubeconfig.load(outcome.status.kubeconfig)) as client:
        await each(range(NODES), lambda number: label(client, number))
        await configure(client, "none")
        async with running(outcome.status.kubeconfig) as controller:
            async for figure in bring_up(client, controller):
                yield figure
            yield frame.Figure("fleet.idle_without_pods", await idle(controller), 1, CORE, AIMED)
            async for figure in storm(client, controller):
                yield figure
            await fill(client, controller)
            async for figure in large(controller):
                yield figure


async def each(items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Work on all of them, 32 at a time."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(32)))


def node(number: int) -> str:
    return f"{NODE_PREFIX}{number + 1}"


async def label(client: Client, number: int) -> None:
    """A node is in the pool by a key that all have; those of a chunk have one more."""
    labels = {f"{LABEL}/all": "default"}
    if number < CHUNKS * CHUNK:
        labels[f"{LABEL}/chunk-{number % CHUNKS}"] = "default"
    await client.merge_patch(resources.NODES, node(number), {"metadata": {"labels": labels}})


async def configure(client: Client, key: str) -> None:
    """Nodes with this key have GPUs."""
    pool = {"gpu": {"profile": "h200", "overrides": {"device_count": GPUS}}}
    document = yaml.safe_dump({"nodePoolLabelKey": f"{LABEL}/{key}", "nodePools": {"default": pool}})
    body = {"data": {"topology.yml": document}}
    await client.apply(resources.CONFIG_MAPS, "topology", body, namespace=NAMESPACE, manager="bench", force=True)


class Controller:
    """The process that is measured."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, session: aiohttp.ClientSession) -> None:
        self.process, self._url, self._session = process, url, session

    async def read(self, path: str) -> bytes:
        async with self._session.get(f"{self._url}{path}") as answer:
            return await answer.read()

    async def numbers(self) -> dict[str, float]:
        """Its own metrics: each name's samples added up, and writes by resource and verb."""
        found: dict[str, float] = {}
        for family in parser.text_string_to_metric_families((await self.read("/metrics/controller")).decode()):
            for sample in family.samples:
                kind = (sample.labels.get("resource", ""), sample.labels.get("verb", ""))
                name = sample.name.removeprefix("simgpu_controller_") + "".join(f".{part}" for part in kind if part)
                found[name] = found.get(name, 0.0) + sample.value
        return found

    async def until(self, done: Callable[[dict[str, float]], bool], *, every: float = 0.1) -> dict[str, float]:
        """Its numbers, once it has nothing left to write and they are as wanted; looks at them cost it CPU."""
        while True:
            seen = await self.numbers()
            if seen["writes_pending"] == seen["queue_depth"] == 0 and done(seen):
                return seen
            await asyncio.sleep(every)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().split()
        return sum(map(int, fields[13:15])) / 100

    def resident_mib(self) -> float:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 / 2**20


@contextlib.asynccontextmanager
async def running(config: str, *options: str) -> AsyncIterator[Controller]:
    address = f"127.0.0.1:{scratch.free_port()}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "simgpu", "controller", "--kubeconfig", config, "--listen", address,
        "--topology-listen", f"127.0.0.1:{scratch.free_port()}", "--log-level", "error", *options,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    await process.stderr.readline()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
        made = Controller(process, f"http://{address}", session)
        try:
            await made.until(lambda seen: seen["leading"] == 1)
            yield made
        finally:
            process.terminate()
            await process.wait()


# Bring-up


def written(seen: dict[str, float]) -> float:
    return seen.get("api_writes_total.nodes.patch", 0) + seen.get("api_writes_total.configmaps.patch", 0)


async def bring_up(client: Client, controller: Controller) -> AsyncIterator[frame.Figure]:
    """Chunks of nodes in turns: a bare writer sends what the controller would, then the controller does."""
    ours, bare = [], []
    for chunk in range(CHUNKS):
        numbers = range(chunk, CHUNKS * CHUNK, CHUNKS)
        bare.append(await bare_writes(client, [node(number) for number in numbers]))
        ours.append(await published(client, controller, f"chunk-{chunk}", len(numbers)))
        await configure(client, "none")
        await controller.until(lambda seen: seen["nodes"] == 0)
    baseline = statistics.median(bare)
    against = "a bare writer of the same writes"
    yield frame.Figure("fleet.bring_up", statistics.median(ours), baseline, "nodes/s", against, "higher")
    before = written(await controller.numbers())
    whole = await published(client, controller, "all", NODES)
    sent = (written(await controller.numbers()) - before) / NODES
    yield frame.Figure("fleet.writes_per_node", sent, 2.0, "writes", "labels with capacity, view")
    first = CHUNKS * CHUNK  # of nodes that the bare writer has not written to
    bare.append(await bare_writes(client, [node(number) for number in range(first, first + CHUNK)]))
    around = statistics.mean(bare[-2:])  # before and after: the machine may be another by then
    yield frame.Figure("fleet.bring_up_whole", whole, around, "nodes/s", against, "higher")


async def bare_writes(client: Client, names: list[str], wanted_spec: pools.NodeGpus | None = None) -> float:
    """Nodes in a second that a writer alone gives labels, capacity and a view."""
    spec = wanted_spec or inline.parse(f"h200:{GPUS}", models.load(), field="x")
    labels = {
        name.replace("nvidia.com", "bare.test"): value for name, value in feature_labels.labels(spec, "mixed").items()
    }
    amounts = {
        name.replace("nvidia.com", "bare.test"): value for name, value in publishing.amounts(spec, "mixed").items()
    }
    wanted = {"metadata": {"labels": labels}}
    capacity = {"status": {"capacity": amounts, "allocatable": amounts}}
    bodies = []
    for name in names:
        ids = [device.uuid for device in pools.build(spec, name)]
        counters = {"time": 0.0, "gpus": dict.fromkeys(ids, [0.0] * 12)}
        bodies.append((name, publishing.view(name, ids, spec, strategy="mixed", users={}, counters=counters)))
    writer = Writer(client, manager="bench", in_flight=32)
    task = asyncio.create_task(writer.run())
    started = time.perf_counter()
    for name, body in bodies:
        writer.merge(Target(resources.NODES, name, subresource="status"), wanted | capacity, urgent=True)
        writer.apply(Target(resources.CONFIG_MAPS, f"bench-{name}", "default"), body, urgent=True)
    await writer.drained()
    rate = len(names) / (time.perf_counter() - started)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return rate


async def published(client: Client, controller: Controller, key: str, count: int) -> float:
    """Nodes in a second from the word to the last write."""
    before = written(await controller.numbers())
    started = time.perf_counter()
    await configure(client, key)
    await controller.until(lambda seen: seen["nodes"] == count and written(seen) - before >= 2 * count)
    return count / (time.perf_counter() - started)


# Pods


def gpu_pod(name: str, on: str = "") -> dict[str, Any]:
    """A pod with a GPU, on a certain node or wherever the scheduler places it."""
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {
        **({"nodeName": on} if on else {}), "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": spec}


async def storm(client: Client, controller: Controller) -> AsyncIterator[frame.Figure]:
    """Pods that start and end: from Running to their name on their node's page, and what is written for them."""
    store: Store[Pod] = Store()
    runs: dict[str, asyncio.Event] = {}

    def changed(change: Change[Pod]) -> None:
        if change.new is not None and change.new.status.phase == "Running":
            runs.setdefault(change.new.metadata.name, asyncio.Event()).set()

    watching = asyncio.create_task(Reflector(client, resources.PODS, store, namespace="default").run())
    store.listen(changed)
    await store.synced.wait()
    waits: list[float] = []

    async def one(number: int) -> None:
        on, name = node(number % STORM_NODES), f"storm-{number}"
        await client.create(resources.PODS, gpu_pod(name, on), namespace="default")
        await runs.setdefault(name, asyncio.Event()).wait()
        started = time.perf_counter()
        while f'pod="{name}"'.encode() not in await controller.read(f"/metrics/nodes/{on}"):
            await asyncio.sleep(0.1)
        waits.append(time.perf_counter() - started)
        await client.delete(resources.PODS, name, namespace="default")

    before, begun = await controller.numbers(), time.perf_counter()
    tasks = []
    for number in range(STORM):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(max(0.0, begun + (number + 1) / PER_SECOND - time.perf_counter()))
    await asyncio.gather(*tasks)
    after = await controller.until(lambda _seen: True)
    seconds = time.perf_counter() - begun
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    nodes = "api_writes_total.nodes.patch"
    assert after[nodes] == before[nodes], "a pod's coming and going changes no node"
    each_pod = (written(after) - written(before)) / STORM
    yield frame.Figure("fleet.pod_seen", statistics.quantiles(waits, n=100)[98], 1.0, "s", f"{AIMED}, 99th of 100")
    saves = NODES * seconds / SAVE_EVERY / STORM
    needed = "a view when it comes, runs and goes, and meanwhile the nodes' saves"
    yield frame.Figure("fleet.writes_per_pod", each_pod, VIEWS_OF_A_POD + saves, "writes", needed)


async def fill(client: Client, controller: Controller) -> None:
    """Pods that stay, four on a node."""
    await each(
        range(PODS),
        lambda number: client.create(
            resources.PODS, gpu_pod(f"stays-{number}", node(number % NODES)), namespace="default"
        ),
    )
    while (await controller.read("/metrics")).count(b"runai_pod_gpu_utilization{") < PODS:
        await asyncio.sleep(2)
    while await client.list(resources.PODS, namespace="default", fields="status.phase!=Running"):
        await asyncio.sleep(2)
    await controller.until(lambda _seen: True)


async def large(controller: Controller) -> AsyncIterator[frame.Figure]:
    """What the large fleet costs."""
    page = await controller.read("/metrics")
    assert page.count(b"DCGM_FI_DEV_GPU_UTIL{") == NODES * GPUS
    yield frame.Figure("fleet.idle", await idle(controller), 5, CORE, AIMED)
    yield frame.Figure("fleet.memory", controller.resident_mib(), 600, "MiB", AIMED)


async def idle(controller: Controller) -> float:
    """Percent of a core while nothing changes: the median of five stretches of 20 seconds."""
    await controller.until(lambda _seen: True)
    used = []
    for _ in range(5):
        before, started = controller.cpu_seconds(), time.perf_counter()
        await asyncio.sleep(20)
        used.append((controller.cpu_seconds() - before) / (time.perf_counter() - started))
    return 100 * statistics.median(used)
