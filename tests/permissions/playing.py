"""What KWOK does with all of the permissions that a load test gives it, where it has to install one.

KWOK has its account and its configuration, and plays a node of its own beside the cluster's KWOK. The node's lease is
short, so that it is renewed soon. The cluster has stages already that write events and remove finalizers, as KWOK's own
do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from simgpu import vocabulary
from simgpu.kube import errors, resources
from simgpu.loadtest.dependencies import kwok, nodes, stages
from tests.fixtures.cluster import eventually
from tests.fixtures.controller import Fleet

_RUN_MILLISECONDS = 100
_POD = "played"
_FINALIZER = "test.simgpu.dev/kept"
_ENDED = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
_READY = {
    "key": '.status.conditions[]? | select(.type == "Ready") | .status', "operator": "In", "values": ["True"],
}  # fmt: skip


async def play(fleet: Fleet, program: Path, folder: Path) -> None:
    """Let KWOK play a node and a pod of a load test, until the pod is deleted."""
    client, name, labels = fleet.client, f"{fleet.namespace}-played", {fleet.label: ""}
    async with contextlib.AsyncExitStack() as stack:
        for stage in _stages(fleet, labels):
            await client.create(resources.STAGES, stage)
            stack.push_async_callback(client.delete, resources.STAGES, stage["metadata"]["name"])
        body = nodes.body(name, labels=labels, annotations={vocabulary.KWOK_NODE: fleet.namespace})
        await client.create(resources.NODES, body)
        fleet.nodes.append(name)
        await stack.enter_async_context(_running(fleet, program, folder))
        await ready(fleet, name)
        await renewed(fleet, name)
        # By now it knows that it holds the lease: changes that it saw earlier it may have left to another KWOK.
        await client.merge_patch(resources.NODES, name, {"metadata": {"annotations": {fleet.label: "seen"}}})
        await stack.enter_async_context(_pod(fleet, name, labels))
        await ended(fleet)
        await client.delete(resources.PODS, _POD, namespace=fleet.namespace)
        await deleted(fleet)
        await counted(fleet, name)


async def ready(fleet: Fleet, name: str) -> None:
    """Wait until a node is Ready."""

    async def look() -> bool:
        return (await fleet.client.get(resources.NODES, name)).ready

    await eventually(look)


async def ended(fleet: Fleet) -> None:
    """Wait until the pod has ended."""

    async def look() -> bool:
        return (await fleet.client.get(resources.PODS, _POD, namespace=fleet.namespace)).status.phase == "Succeeded"

    await eventually(look)


async def deleted(fleet: Fleet) -> None:
    """Wait until the pod is gone."""

    async def look() -> bool:
        return await fleet.client.find(resources.PODS, _POD, namespace=fleet.namespace) is None

    await eventually(look)


async def renewed(fleet: Fleet, name: str) -> None:
    """Wait until the lease of a node was renewed."""

    async def read() -> str | None:
        lease = await fleet.client.find(resources.LEASES, name, namespace=vocabulary.NODE_LEASES_NAMESPACE)
        return None if lease is None else lease.spec.renew_time

    first: str = await eventually(read)

    async def later() -> bool:
        return await read() != first

    await eventually(later)


async def counted(fleet: Fleet, name: str) -> None:
    """Wait until an event of a node was counted more than once."""

    async def repeated() -> bool:
        found = await fleet.client.list(resources.EVENTS, fields=f"involvedObject.name={name},reason=Beat")
        return any((event.count or 1) > 1 for event in found)

    await eventually(repeated)


def _stages(fleet: Fleet, labels: dict[str, str]) -> list[dict[str, Any]]:
    """Return the stage that a run has for its pods, and two that the cluster had before."""
    prefix = f"{fleet.namespace}-"
    times = {vocabulary.SHORT_LIVED: _RUN_MILLISECONDS}
    beat = {
        "resourceRef": {"apiGroup": "v1", "kind": "Node"},
        "selector": {"matchLabels": labels, "matchExpressions": [_READY]},
        "weight": 1, "delay": {"durationMilliseconds": 200},
        "next": {
            "event": {"type": "Normal", "reason": "Beat", "message": "still there"},
            "statusTemplate": "nodeInfo: {bootID: {{ Quote Now }}}\n",
        },
    }  # fmt: skip
    free = {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {"matchLabels": labels, "matchExpressions": [_ENDED]},
        "weight": 1, "next": {"finalizers": {"empty": True}, "delete": True},
    }  # fmt: skip
    had = [
        {"metadata": {"name": f"{prefix}{name}"}, "spec": spec} for name, spec in {"beat": beat, "free": free}.items()
    ]
    return [*stages.of_run(prefix, times, [fleet.namespace], {}), *had]


@contextlib.asynccontextmanager
async def _pod(fleet: Fleet, node: str, labels: dict[str, str]) -> AsyncIterator[None]:
    """A pod on a node, which is gone afterwards even if KWOK did not remove it."""
    client, place = fleet.client, fleet.namespace
    spec = {
        "nodeName": node, "restartPolicy": "Never", "containers": [{"name": "main", "image": "x"}],
        "tolerations": [{"operator": "Exists"}],
    }  # fmt: skip
    meta = {
        "name": _POD, "labels": labels | {vocabulary.JOB_TYPE_LABEL: vocabulary.SHORT_LIVED},
        "finalizers": [_FINALIZER],
    }  # fmt: skip
    await client.create(resources.PODS, {"metadata": meta, "spec": spec}, namespace=place)
    try:
        yield
    finally:
        with contextlib.suppress(errors.NotFound):
            await client.merge_patch(resources.PODS, _POD, {"metadata": {"finalizers": None}}, namespace=place)
        await client.delete(resources.PODS, _POD, namespace=place, grace_seconds=0)


@contextlib.asynccontextmanager
async def _running(fleet: Fleet, program: Path, folder: Path) -> AsyncIterator[None]:
    """A KWOK with an account, which plays the nodes of a fleet only."""
    document = yaml.safe_load(kwok.CONFIGURATION)
    options = document["options"]
    options["manageNodesWithAnnotationSelector"] = f"{vocabulary.KWOK_NODE}={fleet.namespace}"
    options["nodeLeaseDurationSeconds"] //= 10
    path = folder / "kwok.yaml"
    path.write_text(yaml.safe_dump(document))
    flags = {
        "config": path, "kubeconfig": fleet.cluster.kubeconfig, "node-ip": "127.0.0.1", "node-port": 10247,
        "server-address": "127.0.0.1:0",
    }  # fmt: skip
    with (folder / "kwok.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, *(f"--{name}={value}" for name, value in flags.items()), stdout=log, stderr=log
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
