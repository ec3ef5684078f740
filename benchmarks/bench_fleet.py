"""The fleet: how fast nodes get their GPUs, how soon pods show, and what a large fleet costs."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks import frame, scratch
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.controllers.fleet import gpu_id
from simgpu.kube import kubeconfig, resources
from simgpu.kube.client import Client
from simgpu.kube.writer import Target, Writer
from simgpu.topology import pools

NODES = 5000
NAMESPACE = "gpu-operator"
POOL = {"gpu": {"profile": "h200", "overrides": {"device_count": 8}}}
LABEL = "bench.simgpu.dev/pool"
LIMIT = 1.0


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    async with scratch.cluster(nodes=1) as outcome, Client(kubeconfig.load(outcome.status.kubeconfig)) as client:
        await make_nodes(client, "bare", NODES, pool=None)
        bare = await bare_writes(client)
        await make_nodes(client, "ours", NODES, pool="default")
        async with controller(outcome.status.kubeconfig) as (process, url):
            started = time.perf_counter()
            await configure(client)
            await until_published(url)
            ours = NODES / (time.perf_counter() - started)
            yield frame.Figure("fleet.bring_up", ours, bare, "nodes/s", "a bare writer of the same writes", "higher")
            async for figure in large(process, url):
                yield figure
            yield await latency(client, url)


async def make_nodes(client: Client, prefix: str, count: int, *, pool: str | None) -> None:
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            meta: dict[str, Any] = {"name": f"{prefix}-{number}", "annotations": {"kwok.x-k8s.io/node": "fake"}}
            if pool:
                meta["labels"] = {LABEL: pool}
            await client.create(resources.NODES, {"metadata": meta})

    await asyncio.gather(*(worker() for _ in range(32)))
    while not all(node.ready for node in await client.list(resources.NODES)):  # KWOK has its own work with them
        await asyncio.sleep(2)


async def bare_writes(client: Client) -> float:
    """Nodes in a second that a writer alone gives labels, capacity and a view."""
    spec = pools.parse_gpus("h200:8", models.load(), field="x")
    labels = {"metadata": {"labels": publishing.labels(spec, "mixed")}}
    amounts = publishing.amounts(spec)
    capacity = {"status": {"capacity": amounts, "allocatable": amounts}}
    bodies = []
    for number in range(NODES):
        name = f"bare-{number}"
        ids = [gpu_id(name, index) for index in range(8)]
        bodies.append((name, publishing.view(name, ids, spec, strategy="mixed", uses={}, counters={})))
    writer = Writer(client, manager="bench", in_flight=32)
    running = asyncio.create_task(writer.run())
    started = time.perf_counter()
    for name, body in bodies:
        writer.merge(Target(resources.NODES, name), labels, urgent=True)
        writer.merge(Target(resources.NODES, name, subresource="status"), capacity, urgent=True)
        writer.apply(Target(resources.CONFIG_MAPS, f"bench-{name}", NAMESPACE), body, urgent=True)
    await writer.drained()
    rate = NODES / (time.perf_counter() - started)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return rate


async def configure(client: Client) -> None:
    document = yaml.safe_dump({"nodePoolLabelKey": LABEL, "nodePools": {"default": POOL}})
    await client.apply(
        resources.CONFIG_MAPS,
        "topology",
        {"data": {"topology.yml": document}},
        namespace=NAMESPACE,
        manager="bench",
        force=True,
    )


@contextlib.asynccontextmanager
async def controller(config: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    address = f"127.0.0.1:{scratch.free_port()}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "simgpu", "controller", "--kubeconfig", config, "--listen", address,
        "--topology-listen", f"127.0.0.1:{scratch.free_port()}", "--log-level", "error", stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    await process.stderr.readline()
    try:
        yield process, f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


async def read(url: str) -> bytes:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session, session.get(url) as answer:
        return await answer.read()


def numbers(page: bytes) -> Iterator[tuple[str, float]]:
    for line in page.decode().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            yield name, float(value)


async def until_published(url: str) -> None:
    while True:
        seen = dict(numbers(await read(f"{url}/metrics/controller")))
        done = seen["simgpu_controller_nodes"] >= NODES and seen["simgpu_controller_writes_pending"] == 0
        if done and seen["simgpu_controller_writes_total"] >= 3 * NODES:
            return
        await asyncio.sleep(0.1)


async def large(process: asyncio.subprocess.Process, url: str) -> AsyncIterator[frame.Figure]:
    """What the large fleet costs."""
    await read(f"{url}/metrics")
    times, single, page = [], [], b""
    for _ in range(3):
        started = time.perf_counter()
        page = await read(f"{url}/metrics")
        times.append(time.perf_counter() - started)
    for number in range(50):
        started = time.perf_counter()
        await read(f"{url}/metrics/nodes/ours-{number}")
        single.append(time.perf_counter() - started)
    assert page.count(b"DCGM_FI_DEV_GPU_UTIL{") == NODES * 8
    yield frame.Figure("fleet.scrape", statistics.median(times), 1.5, "s", "what is aimed at")
    yield frame.Figure("fleet.scrape_node", statistics.median(single) * 1000, 5, "ms", "what is aimed at")
    stat = Path(f"/proc/{process.pid}/stat")
    before, started = sum(map(int, stat.read_text().split()[13:15])), time.perf_counter()
    await asyncio.sleep(20)
    used = (sum(map(int, stat.read_text().split()[13:15])) - before) / 100 / (time.perf_counter() - started)
    yield frame.Figure("fleet.idle", 100 * used, 5, "% of a core", "what is aimed at")
    resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 2**20
    yield frame.Figure("fleet.memory", resident, 600, "MiB", "what is aimed at")


async def latency(client: Client, url: str) -> frame.Figure:
    """From a pod's start to its name on its node's page, 40 pods a second."""
    waits: list[float] = []

    async def one(number: int) -> None:
        node, name = f"ours-{number % 1000}", f"bench-{number}"
        spec = {
            "nodeName": node, "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        }  # fmt: skip
        await client.create(resources.PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")
        while (await client.get(resources.PODS, name, namespace="default")).status.phase != "Running":
            await asyncio.sleep(0.05)
        started = time.perf_counter()
        while f'pod="{name}"'.encode() not in await read(f"{url}/metrics/nodes/{node}"):
            await asyncio.sleep(0.05)
        waits.append(time.perf_counter() - started)
        await client.delete(resources.PODS, name, namespace="default")

    tasks = []
    for number in range(400):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(1 / 40)
    await asyncio.gather(*tasks)
    return frame.Figure(
        "fleet.pod_seen", statistics.quantiles(waits, n=100)[98], LIMIT, "s", "what is aimed at, 99th of 100"
    )
