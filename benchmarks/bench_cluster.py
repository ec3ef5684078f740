"""Figures of the local cluster: how fast it is up, how fast nodes are made."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import yaml

from benchmarks import frame, scratch
from simgpu.cluster import binaries, lifecycle, locate, populate, progress
from simgpu.kube import auth, kubeconfig, parallel, resources
from simgpu.kube.client import Client
from simgpu.kube.views import Node

NODES = 100
CHUNK = 200
CHUNKS = 5
IN_FLIGHT = 32


async def figures() -> AsyncIterator[frame.Figure]:
    """All of them."""
    yield await up_time()
    yield await node_creation()


async def up_time() -> frame.Figure:
    """From `up` to all components and nodes ready, against KWOK's own tool with the same programs."""
    found = await locate.ensure([*binaries.LOCAL_CLUSTER, "kwokctl"], progress.Silent())
    programs = {name: place.path for name, place in found.items()}

    async def ours() -> float:
        with scratch.state_home():
            started = time.monotonic()
            await lifecycle.up(lifecycle.UpSettings(name="bench", nodes=NODES), progress.Silent())
            spent = time.monotonic() - started
            await lifecycle.down("bench", progress.Silent())
        return spent

    async def theirs() -> float:
        return await asyncio.to_thread(kwokctl_up, programs)

    value, baseline = await frame.alternate(ours, theirs, chunks=3)
    return frame.Figure("cluster.up", value, baseline, "s", f"kwokctl create and scale to {NODES} nodes")


def kwokctl_up(programs: dict[str, Path]) -> float:
    """The same with kwokctl: create the cluster, scale to as many nodes, wait until they are Ready."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "bindAddress": "127.0.0.1",
            "disableQPSLimits": True,
            "kubeVersion": f"v{binaries.KUBERNETES.version}",
            "etcdBinary": str(programs["etcd"]),
            "kubeApiserverBinary": str(programs["kube-apiserver"]),
            "kubeControllerManagerBinary": str(programs["kube-controller-manager"]),
            "kubeSchedulerBinary": str(programs["kube-scheduler"]),
            "kwokControllerBinary": str(programs["kwok"]),
            "kubectlBinary": str(programs["kubectl"]),
        }
        config = Path(folder) / "config.yaml"
        api_version = "config.kwok.x-k8s.io/v1alpha1"
        config.write_text(
            yaml.safe_dump({"kind": "KwokctlConfiguration", "apiVersion": api_version, "options": options})
        )
        environment = {**os.environ, "KWOK_WORKDIR": folder, "HOME": folder}
        run = [str(programs["kwokctl"]), "--name", "bench"]

        def call(*arguments: str, check: bool = True) -> str:
            command = [*run, *arguments]
            return subprocess.run(command, env=environment, check=check, capture_output=True, text=True).stdout

        started = time.monotonic()
        try:
            call("create", "cluster", "--runtime", "binary", "--kubeconfig", "", "--config", str(config))
            call("scale", "node", "--replicas", str(NODES))
            while usable(call("kubectl", "get", "nodes", "-o", "json")) < NODES:
                time.sleep(0.1)
            return time.monotonic() - started
        finally:
            call("delete", "cluster", "--kubeconfig", "", check=False)
            for pid_file in (Path(folder) / "clusters" / "bench" / "pids").glob("*.pid"):
                end_leftover(int(pid_file.read_text()), folder)


def usable(listed: str) -> int:
    """Nodes that are Ready and that pods can be placed on: what our own `up` waits for."""
    nodes = msgspec.json.decode(listed, type=NodeList).items
    return sum(node.ready and populate.schedulable(node) for node in nodes)


class NodeList(msgspec.Struct):
    items: list[Node]


def end_leftover(pid: int, folder: str) -> None:
    """kwokctl can leave processes behind; end those that run from its folder."""
    try:
        if folder in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, 9)
    except (OSError, ProcessLookupError):
        return


async def node_creation() -> frame.Figure:
    """Nodes made per second by `up`, against a bare loop that only posts ready-made bytes."""
    async with scratch.cluster() as outcome:
        target = kubeconfig.load(outcome.status.kubeconfig)
        async with Client(target) as client:
            await remove_nodes(client)

            async def ours() -> float:
                started = time.monotonic()
                await parallel.each(range(1, CHUNK + 1), functools.partial(populate.create_node, client))
                rate = CHUNK / (time.monotonic() - started)
                await remove_nodes(client)
                return rate

            async def bare() -> float:
                rate = await bare_writer(target)
                await remove_nodes(client)
                return rate

            value, baseline = await frame.alternate(ours, bare, chunks=CHUNKS)
    return frame.Figure("cluster.node_creation", value, baseline, "nodes/s", "bare concurrent writer", better="higher")


async def bare_writer(target: kubeconfig.ClientConfig) -> float:
    """Post nodes with nothing but aiohttp."""
    grant = await auth.Credentials(target).current()
    bodies = iter([msgspec.json.encode(populate.node_object(number)) for number in range(1, CHUNK + 1)])
    url = target.server + resources.NODES.path()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64, ssl=grant.ssl or True)) as session:

        async def worker() -> None:
            for body in bodies:
                async with session.post(url, data=body, headers=headers) as answer:
                    await answer.read()
                    assert answer.status == 201

        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(worker())
        return CHUNK / (time.monotonic() - started)


async def remove_nodes(client: Client) -> None:
    """Start the next chunk from nothing, on a calm server."""
    await client.delete_all(resources.NODES)
    while await client.list(resources.NODES):
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
