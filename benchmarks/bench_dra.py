"""Dynamic resource allocation: how fast slices are published, how soon claims show, and whether pods start as fast."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import yaml

from benchmarks import bench_fleet, bench_pods, frame, scratch
from simgpu.catalog import models
from simgpu.dra import node_devices, slices
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.versions import ServedApi
from simgpu.kube import kubeconfig, resources
from simgpu.kube.client import Client
from simgpu.kube.reflector import Reflector
from simgpu.kube.resources import Resource, V
from simgpu.kube.store import Change, Store
from simgpu.kube.views import ObjectMeta, Pod
from simgpu.topology import inline, pools

NODES, GPUS = int(os.environ.get("BENCH_NODES", "5000")), 8
CHUNKS = 5
STORM, PER_SECOND = int(os.environ.get("BENCH_PODS", "600")), 10
PODS, TURNS = min(200, STORM), 3
LABEL = "bench.simgpu.dev/pool"
TEMPLATE = "one"
CLAIMS = Resource("ResourceClaim", "resourceclaims", AllocatedClaim, group="resource.k8s.io")


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    async with scratch.cluster(nodes=NODES) as outcome, Client(kubeconfig.load(outcome.status.kubeconfig)) as client:
        await bench_fleet.each(range(NODES), lambda number: label(client, number))
        await configure(client, set())
        async with bench_fleet.running(outcome.status.kubeconfig, "--lease-duration", "300") as controller:
            await controller.until(lambda seen: seen["nodes"] == NODES)
            async for figure in publishing(client, controller):
                yield figure
            request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
            template = {"metadata": {"name": TEMPLATE}, "spec": {"spec": {"devices": {"requests": [request]}}}}
            await client.create(resources.RESOURCE_CLAIM_TEMPLATES, template, namespace="default")
            async for figure in seen_claims(client, controller):
                yield figure
            async for figure in disturbance(client, controller):
                yield figure


def pool_of(number: int) -> str:
    """All nodes are in chunks."""
    return f"chunk-{number % CHUNKS}"


async def label(client: Client, number: int) -> None:
    patch = {"metadata": {"labels": {LABEL: pool_of(number)}}}
    await client.merge_patch(resources.NODES, bench_fleet.node(number), patch)


async def configure(client: Client, published: set[str]) -> None:
    """All nodes have GPUs; those of some pools are published as slices too."""
    names = {pool_of(number) for number in range(NODES)}
    gpus = {"gpu": {"profile": "h200", "overrides": {"device_count": GPUS}}}
    by_name = {name: gpus | {"allocation": "both" if name in published else "extended"} for name in names}
    body = {"data": {"topology.yml": yaml.safe_dump({"nodePoolLabelKey": LABEL, "nodePools": by_name})}}
    await client.apply(
        resources.CONFIG_MAPS, "topology", body, namespace=bench_fleet.NAMESPACE, manager="bench", force=True
    )


# Slices


def written(seen: dict[str, float]) -> float:
    return seen.get("api_writes_total.resourceslices.create", 0) + seen.get("api_writes_total.resourceslices.patch", 0)


async def publishing(client: Client, controller: bench_fleet.Controller) -> AsyncIterator[frame.Figure]:
    """Chunks of nodes in turns: a bare writer creates the slices of the controller, then the controller does."""
    ours, bare = list[float](), list[float]()
    published: set[str] = set()
    before = written(await controller.numbers())
    for chunk in range(CHUNKS):
        numbers = list(range(chunk, NODES, CHUNKS))
        bare.append(await bare_slices(client, numbers))
        published.add(f"chunk-{chunk}")
        ours.append(await publish(client, controller, published, len(numbers)))
    against = "a bare writer of the same slices"
    yield frame.Figure("dra.slices", statistics.median(ours), statistics.median(bare), "slices/s", against, "higher")
    sent = written(await controller.numbers()) - before
    yield frame.Figure("dra.writes_per_node", sent / NODES, 1.0, "writes", "one slice")


async def publish(client: Client, controller: bench_fleet.Controller, pools_: set[str], count: int) -> float:
    """Slices in a second from the word to the last write."""
    before = written(await controller.numbers())
    started = time.perf_counter()
    await configure(client, pools_)
    while written(await controller.numbers()) - before < count:  # views may wait for their turn meanwhile
        await asyncio.sleep(0.1)
    return count / (time.perf_counter() - started)


async def bare_slices(client: Client, numbers: list[int]) -> float:
    """Slices in a second that a writer alone creates; they are deleted again."""
    spec = inline.parse(f"h200:{GPUS}", models.load(), field="x")
    api, bodies = ServedApi(), list[dict[str, Any]]()
    for name in map(bench_fleet.node, numbers):
        [content] = slices.split(node_devices.of_node(pools.build(spec, name), spec, {}), api)
        made = {**slices.spec_of(content, name, api), "driver": "bench.example.com"}
        body = slices.body(made, f"bench-{name}", generation=1, count=1, owner=ObjectMeta(name=name, uid=name))
        del body["metadata"]["ownerReferences"]  # of a node by its uid, else the slice is collected
        body["metadata"]["labels"] = {"bench": "true"}
        bodies.append(body)
    started = time.perf_counter()
    await bench_fleet.each(bodies, lambda body: client.create(resources.RESOURCE_SLICES, body))
    rate = len(numbers) / (time.perf_counter() - started)
    await client.delete_all(resources.RESOURCE_SLICES, labels="bench=true")
    return rate


# Claims


def claiming(name: str) -> dict[str, Any]:
    """A pod with a claim, wherever the scheduler places it."""
    container = {"name": "c", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {
        "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0, "containers": [container],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": TEMPLATE}],
    }  # fmt: skip
    return {"metadata": {"name": name}, "spec": spec}


async def followed(client: Client, resource: Resource[V], store: Store[V], changed: Callable[[Change[V]], None]) -> Any:
    """A task that follows objects of the namespace."""
    task = asyncio.create_task(Reflector(client, resource, store, namespace="default").run())
    store.listen(changed)
    await store.synced.wait()
    return task


async def seen_claims(client: Client, controller: bench_fleet.Controller) -> AsyncIterator[frame.Figure]:
    """Pods with claims that start and end: from a claim's allocation to its pod's name on the node's page."""
    allocated: dict[str, asyncio.Future[tuple[float, str]]] = {}

    def changed(change: Change[AllocatedClaim]) -> None:
        claim = change.new
        if claim is None or claim.status.allocation is None or not claim.metadata.owner_references:
            return
        future = allocated.setdefault(claim.metadata.owner_references[0].name, asyncio.Future())
        if not future.done():
            future.set_result((time.perf_counter(), claim.status.allocation.devices.results[0].pool))

    watching = await followed(client, CLAIMS, Store(), changed)
    waits: list[float] = []

    async def one(name: str) -> None:
        await client.create(resources.PODS, claiming(name), namespace="default")
        started, on = await allocated.setdefault(name, asyncio.Future())
        while f'pod="{name}"'.encode() not in await controller.read(f"/metrics/nodes/{on}"):
            await asyncio.sleep(0.05)
        waits.append(time.perf_counter() - started)
        await client.delete(resources.PODS, name, namespace="default")

    begun, tasks = time.perf_counter(), list[asyncio.Task[None]]()
    for number in range(STORM):
        tasks.append(asyncio.create_task(one(f"storm-{number}")))
        await asyncio.sleep(max(0.0, begun + (number + 1) / PER_SECOND - time.perf_counter()))
    await asyncio.gather(*tasks)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    aimed = f"{bench_fleet.AIMED}, 99th of 100"
    yield frame.Figure("dra.claim_seen", statistics.quantiles(waits, n=100)[98], 1.0, "s", aimed)


async def disturbance(client: Client, controller: bench_fleet.Controller) -> AsyncIterator[frame.Figure]:
    """Pods with claims, in turns with the controller running and stopped."""
    store: Store[Pod] = Store()
    watching = await followed(client, resources.PODS, store, lambda _change: None)
    ours, stopped, cpu = await bench_pods.in_turns(controller, lambda: life(client, store), PODS, TURNS)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    yield frame.Figure("dra.pod_cpu", statistics.median(cpu), 1.0, "ms", bench_fleet.AIMED)
    against = "while the controller is stopped"
    yield frame.Figure("dra.disturbance", statistics.median(ours), statistics.median(stopped), "s", against)


async def life(client: Client, store: Store[Pod]) -> float:
    """Seconds until pods with claims that are created at once are Running; then pods and claims are gone."""
    started = time.perf_counter()
    await bench_fleet.each(
        range(PODS), lambda number: client.create(resources.PODS, claiming(f"pod-{number}"), namespace="default")
    )
    while sum(pod.status.phase == "Running" for pod in store) < PODS:
        await asyncio.sleep(0.02)
    spent = time.perf_counter() - started
    await client.delete_all(resources.PODS, namespace="default")
    while len(store) or await client.list(CLAIMS, namespace="default"):
        await asyncio.sleep(0.1)
    return spent
