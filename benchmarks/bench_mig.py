"""MIG on fake nodes: how fast divided nodes are published, what their page costs, and how soon a new layout shows."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator

import yaml

from benchmarks import bench_fleet, frame, scratch
from benchmarks.bench_fleet import AIMED, LABEL, NAMESPACE, Controller, node
from simgpu.catalog import models
from simgpu.identities import identity, render
from simgpu.kube import kubeconfig, resources
from simgpu.kube.client import Client
from simgpu.machines.fleet import Fleet
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import mig_layouts, pools, reading
from simgpu.vocabulary import MIG_CONFIG, MIG_CONFIG_STATE, MIG_SUCCESS
from simgpu.web import fleet_pages

NODES = int(os.environ.get("BENCH_MIG_NODES", "1000"))  # with 56 instances each
CHUNKS = 4
TURNS = 5
LAYOUT, INSTANCES = "all-1g.18gb", 56
POOL = {"gpus": [{"type": "h200", "count": 8}], "mig": {"config": LAYOUT}}
CHANGED, PROFILE = "all-balanced", "3g.71gb"  # a layout, and a profile that only this one has
SERIES_PER_SECOND = 2_000_000
SECONDS = 2.0


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    yield frame.Figure("mig.page", page_rate(), SERIES_PER_SECOND, "series/s", AIMED, "higher")
    async with scratch.cluster(nodes=NODES) as outcome, Client(kubeconfig.load(outcome.status.kubeconfig)) as client:
        await bench_fleet.each(range(NODES), lambda number: _label(client, number))
        await configure(client, "none")
        async with bench_fleet.running(outcome.status.kubeconfig) as controller:
            async for figure in bring_up(client, controller):
                yield figure
            changes = [await change(client, controller, turn) for turn in range(TURNS)]
            yield frame.Figure("mig.layout_change", statistics.median(changes), SECONDS, "s", AIMED)


def spec() -> pools.NodeGpus:
    """A node with eight cards of seven instances."""
    document = {"nodePools": {"default": POOL}}
    return reading.parse(yaml.safe_dump(document), models.load()).pools["default"]


def page_rate() -> float:
    """Series in a second of the page of all nodes, every instance with a pod; the values are new each time."""
    fleet, wanted = Fleet(seed=1), spec()
    for number in range(NODES):
        placed = fleet.place(f"node-{number}", wanted)
        fleet.use(placed, {
            card.device.uuid: tuple(
                User(PodRef(f"p-{number}-{card.device.index}-{part}", "team", "main"), Range(40, 90), 9000, part=part)
                for part, _, _ in card.parts
            )
            for card in placed.cards
        })  # fmt: skip
    fleet.step(1.0, clock=time.time())
    shown = fleet_pages.with_target_labels(identity.load("dcgm"), NAMESPACE)
    renderer, rates = render.Renderer(fleet.machine(), shown), list[float]()
    for turn in range(TURNS + 1):
        fleet.step(2.0 + turn, clock=time.time())
        started, lines, counting = time.perf_counter(), 0, 0.0
        fleet.machine()
        for piece in renderer.pieces(renderer.snapshot()):
            made, before = piece.make(), time.perf_counter()
            lines += made.count(b"\n")
            counting += time.perf_counter() - before  # is ours, not the page's
        rates.append(lines / (time.perf_counter() - started - counting))
    return statistics.median(rates[1:])  # the first makes the texts


async def _label(client: Client, number: int) -> None:
    """A node is in the pool by a key that all of its chunk have."""
    labels = {f"{LABEL}/chunk-{number % CHUNKS}": "default", f"{LABEL}/all": "default"}
    await client.merge_patch(resources.NODES, node(number), {"metadata": {"labels": labels}})


async def configure(client: Client, key: str) -> None:
    """Nodes with this key have divided GPUs."""
    document = yaml.safe_dump({"nodePoolLabelKey": f"{LABEL}/{key}", "nodePools": {"default": POOL}})
    body = {"data": {"topology.yml": document}}
    await client.apply(resources.CONFIG_MAPS, "topology", body, namespace=NAMESPACE, manager="bench", force=True)


async def bring_up(client: Client, controller: Controller) -> AsyncIterator[frame.Figure]:
    """Chunks of nodes in turns: a bare writer sends what the controller would, then the controller does."""
    ours, bare = list[float](), list[float]()
    for chunk in range(CHUNKS):
        names = [node(number) for number in range(chunk, NODES, CHUNKS)]
        bare.append(INSTANCES * await bench_fleet.bare_writes(client, names, spec()))
        before = bench_fleet.written(await controller.numbers())
        started, count = time.perf_counter(), len(names)
        await configure(client, f"chunk-{chunk}")
        await controller.until(
            lambda seen, count=count, before=before: (  # type: ignore[misc]
                seen["nodes"] == count and bench_fleet.written(seen) - before >= 2 * count
            )
        )
        ours.append(INSTANCES * count / (time.perf_counter() - started))
        await configure(client, "none")
        await controller.until(lambda seen: seen["nodes"] == 0)
    against = "a bare writer of the same writes"
    yield frame.Figure(
        "mig.bring_up", statistics.median(ours), statistics.median(bare), "instances/s", against, "higher"
    )
    await configure(client, "all")
    await controller.until(lambda seen: seen["nodes"] == NODES)


async def change(client: Client, controller: Controller, turn: int) -> float:
    """Seconds from a node's new label until all surfaces show the layout."""
    name = node(turn)
    started = time.perf_counter()
    await client.merge_patch(resources.NODES, name, {"metadata": {"labels": {MIG_CONFIG: CHANGED}}})
    while not await shows(client, controller, name):
        await asyncio.sleep(0.02)
    return time.perf_counter() - started


async def shows(client: Client, controller: Controller, name: str) -> bool:
    """Whether a node's state, labels, capacity and allocatable, its page, the live page and its view have the layout.

    The pool offers nothing through DRA: there are no slices.
    """
    seen = await client.get(resources.NODES, name)
    labels, resource = seen.metadata.labels, mig_layouts.resource_name(PROFILE)
    amounts = seen.status.capacity.keys() & seen.status.allocatable.keys()
    if labels.get(MIG_CONFIG_STATE) != MIG_SUCCESS or f"{resource}.count" not in labels or resource not in amounts:
        return False
    if f'GPU_I_PROFILE="{PROFILE}"'.encode() not in await controller.read(f"/metrics/nodes/{name}"):
        return False
    if f'"profile":"{PROFILE}"'.encode() not in await controller.read(f"/api/v1/nodes/{name}"):
        return False
    view = await client.find(resources.CONFIG_MAPS, f"topology-{name}", namespace=NAMESPACE)
    return view is not None and PROFILE in view.data["topology.yml"]
