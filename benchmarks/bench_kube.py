"""Figures of the Kubernetes layer, against kubernetes_asyncio on the same API server in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import kubernetes_asyncio as theirs

from benchmarks import frame, scratch
from simgpu.cluster import populate
from simgpu.kube import kubeconfig, parallel, resources, watching
from simgpu.kube.client import Client
from simgpu.kube.store import Store
from simgpu.kube.views import Pod

PODS = 5000
PATCHES = 400
IN_FLIGHT = 16
EVENTS = 200_000
NAMESPACE = "bench"


async def figures() -> AsyncIterator[frame.Figure]:
    """All of them, on one cluster with many pods."""
    async with scratch.cluster() as outcome:
        path = outcome.status.kubeconfig
        async with Client(kubeconfig.load(path)) as client, their_api(path) as api:
            await make_pods(client)
            yield await memory_growth(client)  # first: the other client leaves much free memory behind
            yield await event_cpu(client, api)
            yield await event_bytes(client, api)
            yield await list_time(client, api)
            yield await patch_rate(client, api)


@contextlib.asynccontextmanager
async def their_api(path: str) -> AsyncIterator[Any]:
    """The other client's core API."""
    await theirs.config.load_kube_config(config_file=path)
    async with theirs.client.ApiClient() as opened:
        yield theirs.client.CoreV1Api(opened)


def pod(number: int) -> dict[str, Any]:
    """A pod of usual size that no scheduler takes."""
    env = [{"name": f"SETTING_{index}", "value": f"value-{index}"} for index in range(8)]
    resource = {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}
    container = {
        "image": "example.com/app:1.2.3",
        "env": env,
        "resources": resource,
        "args": ["--serve", "--port=8080"],
    }
    return {
        "metadata": {
            "name": f"pod-{number}",
            "labels": {"app": f"app-{number % 50}", "team": f"team-{number % 7}", "pod-template-hash": "5d4f8c7b9"},
            "annotations": {"run.ai/simulated-gpu-utilization": "10-30"},
        },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", **container}, {"name": "sidecar", **container}],
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists", "effect": "NoSchedule"}],
        },
    }


async def make_pods(client: Client) -> None:
    """Fill the server."""
    await populate.ensure(client, resources.NAMESPACES, {"metadata": {"name": NAMESPACE}})
    while await client.find(resources.SERVICE_ACCOUNTS, "default", namespace=NAMESPACE) is None:
        await asyncio.sleep(0.1)

    async def make(number: int) -> None:
        await client.create(resources.PODS, pod(number), namespace=NAMESPACE)

    await parallel.each(range(PODS), make)


async def our_events(client: Client, store: Store[Pod]) -> None:
    """Everything there is, as the events of one watch, into a store."""
    events = watching.watch(
        client, resources.PODS, namespace=NAMESPACE, params={"resourceVersion": "0"}, silence_seconds=30
    )
    seen = 0
    async with contextlib.aclosing(events):
        async for batch in events:
            for event in batch:
                if isinstance(event, watching.WatchEvent):
                    store.put(event.object)
                    seen += 1
            if seen >= PODS:
                return


async def their_events(api: Any, store: dict[str, Any]) -> None:
    """The same with the other client."""
    seen = 0
    async with theirs.watch.Watch() as watch:
        async for event in watch.stream(api.list_namespaced_pod, NAMESPACE, resource_version="0"):
            store[event["object"].metadata.name] = event["object"]
            seen += 1
            if seen >= PODS:
                return


async def cpu_of(work: Callable[[], Awaitable[object]]) -> float:
    """Seconds of our own processor time."""
    gc.collect()
    started = time.process_time()
    await work()
    return time.process_time() - started


async def event_cpu(client: Client, api: Any) -> frame.Figure:
    """Processor time for one event, from the wire into a store with an index."""

    async def ours() -> float:
        store: Store[Pod] = Store({"node": lambda item: (item.spec.node_name,)})
        return await cpu_of(lambda: our_events(client, store)) / PODS * 1e6

    async def others() -> float:
        return await cpu_of(lambda: their_events(api, {})) / PODS * 1e6

    value, baseline = await frame.alternate(ours, others, chunks=3)
    return frame.Figure("kube.event_cpu", value, baseline, "us", "kubernetes_asyncio")


async def event_bytes(client: Client, api: Any) -> frame.Figure:
    """Memory that one object takes once it is in the store."""

    async def measure(work: Callable[[], Awaitable[object]]) -> float:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await work()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return (after - before) / PODS

    store: Store[Pod] = Store()
    value = await measure(lambda: our_events(client, store))
    objects: dict[str, Any] = {}
    baseline = await measure(lambda: their_events(api, objects))
    return frame.Figure("kube.event_bytes", value, baseline, "B", "kubernetes_asyncio")


async def list_time(client: Client, api: Any) -> frame.Figure:
    """Seconds to list all pods."""

    async def timed(work: Callable[[], Awaitable[object]]) -> float:
        gc.collect()
        started = time.monotonic()
        await work()
        return time.monotonic() - started

    value, baseline = await frame.alternate(
        lambda: timed(lambda: client.list(resources.PODS, namespace=NAMESPACE)),
        lambda: timed(lambda: api.list_namespaced_pod(NAMESPACE)),
        chunks=3,
    )
    return frame.Figure("kube.list", value, baseline, "s", f"kubernetes_asyncio, {PODS} pods")


async def patch_rate(client: Client, api: Any) -> frame.Figure:
    """Patches for each second of our own processor time."""
    rounds = iter(range(1000))

    async def rate(patch: Callable[[str, dict[str, Any]], Awaitable[object]]) -> float:
        body = {"metadata": {"labels": {"round": str(next(rounds))}}}

        async def one(number: int) -> None:
            await patch(f"pod-{number}", body)

        return PATCHES / await cpu_of(lambda: spread(one, PATCHES))

    value, baseline = await frame.alternate(
        lambda: rate(lambda name, body: client.merge_patch(resources.PODS, name, body, namespace=NAMESPACE)),
        lambda: rate(lambda name, body: api.patch_namespaced_pod(name, NAMESPACE, body)),
        chunks=5,
    )
    return frame.Figure("kube.patches_per_cpu", value, baseline, "patches/s", "kubernetes_asyncio", better="higher")


async def spread(work: Callable[[int], Awaitable[None]], count: int) -> None:
    """Call `work` for each number, some at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def memory_growth(client: Client) -> frame.Figure:
    """Resident memory after many events, against after the first few."""
    store: Store[Pod] = Store({"node": lambda item: (item.spec.node_name,)})
    for _ in range(4):
        await our_events(client, store)
    gc.collect()
    early = scratch.resident_mib()
    for _ in range(EVENTS // PODS):
        store.replace([])
        await our_events(client, store)
    gc.collect()
    return frame.Figure("kube.memory", scratch.resident_mib(), early, "MiB", f"before {EVENTS:,} more events")
