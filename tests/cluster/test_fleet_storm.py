"""Whatever befalls a fleet in the middle of a storm of pods: it comes to rest as a start would, and no counter falls.

The controller reaches the API server of a cluster of its own through a proxy that can be cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from simgpu.cluster import record
from simgpu.kube import errors, kubeconfig, resources
from simgpu.kube.client import Client
from tests.fixtures.cluster import Cluster, eventually, new_namespace
from tests.fixtures.controller import Fleet, fleet_in
from tests.fixtures.proxy import CuttingProxy
from tests.fixtures.rough import restart_apiserver

FOUR = {"gpu": {"profile": "h100", "overrides": {"device_count": 4}}}
NODES = 6
A_RATE = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"  # in MB/s, though the real exporter calls it a counter
ALIVE = 2 * NODES  # pods at a time: at most two on a node, which both fit

T = TypeVar("T")


async def insist(call: Callable[[], Awaitable[T]]) -> T | None:
    """Ask again while the server is away; what is there already is as good as made."""
    while True:
        try:
            return await call()
        except errors.AlreadyExists:
            return None
        except errors.KubeError:
            await asyncio.sleep(0.1)


class World:
    """A fleet, a storm of pods on it, and somebody who scrapes it all the time."""

    def __init__(self, fleet: Fleet, folder: record.Folder, proxy: CuttingProxy) -> None:
        self.fleet, self.folder, self.proxy = fleet, folder, proxy
        self.turn = 0
        self.scrapes = 0
        self.counters: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.falls: list[str] = []

    # The storm.

    async def storm(self) -> None:
        while True:
            await self.end(self.turn - ALIVE)
            await insist(lambda: self.fleet.pod(f"p{self.turn}", self.node(self.turn), *(1, 1)[: 1 + self.turn % 2]))
            self.turn += 1
            await asyncio.sleep(0.05)

    def node(self, turn: int) -> str:
        return f"{self.fleet.namespace}-n{turn % NODES}"

    async def end(self, turn: int) -> None:
        if turn >= 0:
            namespace = self.fleet.namespace
            await insist(lambda: self.fleet.client.delete(resources.PODS, f"p{turn}", namespace=namespace))

    async def turns(self, count: int) -> None:
        """Let the storm go on for a while."""
        until = self.turn + count

        async def reached() -> bool:
            return self.turn >= until

        await eventually(reached)

    # The scrapes.

    async def scrape(self) -> None:
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(0.1)

    def look(self) -> None:
        """Every counter of every GPU is at least what it was, whoever has the GPU now."""
        try:
            status, page = self.fleet.controller.get("/metrics")
        except (OSError, http.client.HTTPException):
            return  # it was just killed
        if status != 200:
            return
        self.scrapes += 1
        names = set(re.findall(r"^# TYPE (\S+) counter$", page, re.MULTILINE)) - {A_RATE}
        for line in page.splitlines():
            name = line.partition("{")[0]
            if name in names:
                labels = dict(re.findall(r'(\w+)="(.*?)"', line))
                key, value = f"{name} {labels['UUID']}", float(line.rpartition(" ")[2])
                if value < self.counters.get(key, 0.0):
                    self.falls.append(f"{key}: {self.counters[key]} -> {value}")
                self.first.setdefault(key, value)
                self.counters[key] = value

    # The end.

    async def wanted(self) -> Counter[tuple[str, str, str]]:
        """GPUs by node, pod and container, as the API has them."""
        pods = await self.fleet.client.list(resources.PODS, namespace=self.fleet.namespace)
        return Counter(
            {
                (pod.spec.node_name, pod.metadata.name, item.name): int(item.resources.limits["nvidia.com/gpu"])
                for pod in pods
                for item in pod.spec.containers or ()
            }
        )

    async def published(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Pod and container by node and index, as the views have them."""
        found: dict[tuple[str, str], tuple[str, str]] = {}
        for view in await self.fleet.client.list(
            resources.CONFIG_MAPS, namespace=self.fleet.namespace, labels="node-topology=true"
        ):
            for index, gpu in enumerate(yaml.safe_load(view.data["topology.yml"])["gpus"]):
                owner = gpu["status"]["allocatedBy"]
                if owner["pod"]:
                    found[view.metadata.labels["node-name"], str(index)] = (owner["pod"], owner["container"])
        return found

    async def at_rest(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Who holds what, once the page, the views and the API agree."""
        held: dict[tuple[str, str], tuple[str, str]] = {}

        async def agree() -> bool:
            nonlocal held
            held = await asyncio.to_thread(self.fleet.holders)
            counted = Counter((node, pod, container) for (node, _), (pod, container) in held.items())
            return counted == await self.wanted() and held == await self.published()

        await eventually(agree, seconds=90)
        lines = self.fleet.controller.get("/metrics")[1].splitlines()
        assert sum(line.startswith("DCGM_FI_DEV_GPU_UTIL{") for line in lines) == len(self.fleet.series()) == 4 * NODES
        return held


@pytest.fixture
async def world(rough: record.Folder, tmp_path: Path) -> AsyncIterator[World]:
    target = kubeconfig.load(rough.kubeconfig)
    known = rough.load()
    assert known is not None
    proxy = CuttingProxy("127.0.0.1", known.ports["apiserver"])
    async with Client(target) as client, new_namespace(client) as namespace, proxy as port:
        document = yaml.safe_load(rough.kubeconfig.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        through = tmp_path / "kubeconfig.yaml"
        through.write_text(yaml.safe_dump(document))
        async with fleet_in(Cluster("rough", through, rough.path), client, namespace) as fleet:
            await fleet.configure("", default=FOUR)
            for number in range(NODES):
                await fleet.node(f"n{number}")
            await fleet.start()
            for node in fleet.nodes:
                await fleet.gpus(node, 4)
            yield World(fleet, rough, proxy)


# What can befall it.


async def killed(world: World) -> None:
    world.fleet.controller.stop(signal.SIGKILL)
    await world.turns(10)
    await leads(world)


async def stopped(world: World) -> None:
    await asyncio.to_thread(world.fleet.controller.stop)
    await leads(world)


async def leads(world: World) -> None:
    """A new controller, once it works."""
    made = await world.fleet.start()

    async def ready() -> bool:
        return (await asyncio.to_thread(made.get, "/readyz"))[0] == 200

    await eventually(ready)


async def restarted_server(world: World) -> None:
    await restart_apiserver(world.folder)


async def cut_watches(world: World) -> None:
    for _ in range(5):
        world.proxy.cut()
        await world.turns(3)


async def lost_topology(world: World) -> None:
    await delete_topology(world)

    async def told() -> bool:
        return "no such ConfigMap" in world.fleet.controller.get("/healthz?verbose")[1]

    await eventually(told)
    await world.turns(5)
    await world.fleet.configure("", default=FOUR)


async def lost_nodes(world: World) -> None:
    await delete_node(world, 0)
    await delete_node(world, 3)

    async def gone() -> bool:
        return len(await asyncio.to_thread(world.fleet.series)) == 4 * (NODES - 2)

    await eventually(gone)
    for number in (0, 3):
        await recreate_node(world, number)


async def all_at_once(world: World) -> None:
    """It starts without a topology and without a node that it knew; both come back later."""
    world.fleet.controller.stop(signal.SIGKILL)
    await delete_topology(world)
    await delete_node(world, 2)
    await world.turns(5)
    await leads(world)
    world.proxy.cut()
    await world.turns(5)
    await recreate_node(world, 2)
    await world.fleet.configure("", default=FOUR)


async def delete_topology(world: World) -> None:
    await world.fleet.client.delete(resources.CONFIG_MAPS, "topology", namespace=world.fleet.namespace)


async def delete_node(world: World, number: int) -> None:
    name = world.node(number)
    await world.fleet.client.delete(resources.NODES, name)
    world.fleet.nodes.remove(name)


async def recreate_node(world: World, number: int) -> None:
    await world.fleet.node(f"n{number}")


@pytest.mark.parametrize(
    "disaster", [killed, stopped, restarted_server, cut_watches, lost_topology, lost_nodes, all_at_once]
)
async def test_a_fleet_comes_to_rest_as_a_start_would_and_no_counter_falls(
    world: World, disaster: Callable[[World], Any]
) -> None:
    scraping, storming = asyncio.create_task(world.scrape()), asyncio.create_task(world.storm())
    try:
        await world.turns(20)
        await disaster(world)
        await world.turns(20)
        storming.cancel()
        held = await world.at_rest()
        await stopped(world)
        await world.fleet.held(held)
    finally:
        for task in (scraping, storming):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    assert not world.falls
    assert world.scrapes > 10
    assert any(value > world.first[key] for key, value in world.counters.items())
