"""What a controller and a cleanup do with all of their permissions, in a cluster that serves whatever they can use.

What is done is looked at by an administrator's client. Whatever an account was rejected is in the API server's log, and
no matter here. What agents do is in `serving`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from simgpu import vocabulary
from simgpu.controllers import cleaning
from simgpu.dra import classes
from simgpu.dra.versions import ServedApi
from simgpu.kube import resources
from tests.fixtures import audit
from tests.fixtures.cluster import Cluster, eventually, simgpu
from tests.fixtures.controller import Fleet

POOL: dict[str, Any] = {
    "gpus": [{"type": "h200", "count": 8}], "allocation": "both", "numa": {"zones": 2, "topologyManagerScope": "pod"},
}  # fmt: skip
SHORT = "{Profile: [{Load: 5}], Limits: {runtime: 1}}"
PROFILED = {"simgpu.dev/activity-profile": "configmap/short", "simgpu.dev/on-limit": "fail"}
LEASE_WATCH = ("watch", "coordination.k8s.io/leases")
RULES_TYPE: dict[str, Any] = {
    "metadata": {"name": "prometheusrules.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com", "scope": "Namespaced",
        "names": {"kind": "PrometheusRule", "plural": "prometheusrules", "singular": "prometheusrule"},
        "versions": [
            {
                "name": "v1", "served": True, "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}  # fmt: skip


async def ask_to_withdraw(fleet: Fleet) -> None:
    """Ask a controller to remove everything, as a cleanup does."""
    await cleaning.ask_to_withdraw(fleet.client, fleet.namespace, wanted=True)


async def control(
    fleet: Fleet, *, reservations: str = "", withdraw: Callable[[Fleet], Awaitable[None]] = ask_to_withdraw
) -> str:
    """Let a controller do all that it can, until it has removed everything again. Return its node.

    With a namespace for reservations it does so beside Run:ai, whose own namespace is the controller's.
    """
    runai = ("--runai-namespace", fleet.namespace, "--reservation-namespace", reservations) if reservations else ()
    await fleet.configure("", default=POOL)
    node = await fleet.node("a")
    await fleet.start(*runai)
    await published(fleet, node)
    missing = await missing_classes(fleet)
    assert not missing, f"no DeviceClass {', '.join(missing)}"
    async with asyncio.TaskGroup() as group:
        group.create_task(mistakes(fleet, node, "simgpu.dev/gpus", "h200:none", "h200:few"))
        group.create_task(end_at_limit(fleet, node))
        group.create_task(fail_a_gpu(fleet, node))
        if reservations:
            group.create_task(reserve(fleet, node, reservations))
            group.create_task(recorded(fleet))
    await wait_in_line(fleet, *runai)
    await withdraw(fleet)
    await withdrawn(fleet, node)
    return node


async def published(fleet: Fleet, node: str) -> None:
    """Wait until there is everything that a controller publishes of a fake node."""
    for find in finders(fleet, node).values():
        await eventually(find)


async def missing_classes(fleet: Fleet) -> list[str]:
    """Return the DeviceClasses that there are not: a controller writes them before its slices."""
    names = [*classes.device_classes(ServedApi())]
    return [name for name in names if not await fleet.client.find(resources.DEVICE_CLASSES, name)]


async def withdrawn(fleet: Fleet, node: str) -> None:
    """Wait until nothing is left of what was published."""
    for find in finders(fleet, node).values():

        async def gone() -> bool:
            return not await find()  # noqa: B023

        await eventually(gone)


async def left(fleet: Fleet, node: str) -> list[str]:
    """Return what there is of all that a controller publishes of a node."""
    return [name for name, find in finders(fleet, node).items() if await find()]


def finders(fleet: Fleet, node: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return what finds each of the things that a controller publishes of a fake node, by their names."""
    client, namespace = fleet.client, fleet.namespace

    async def gpus() -> bool:
        return "nvidia.com/gpu" in (await client.get(resources.NODES, node)).status.allocatable

    return {
        "GPUs": gpus,
        "view": lambda: client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=namespace),
        "NodeResourceTopology": lambda: client.find(resources.NODE_RESOURCE_TOPOLOGIES, node),
        "ResourceSlices": lambda: client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}"),
        "lease": lambda: client.find(resources.LEASES, vocabulary.LEASE, namespace=namespace),
    }


async def mistakes(fleet: Fleet, node: str, key: str, first: str, second: str) -> None:
    """Annotate a node wrongly, three times: the third is counted on the event of the first."""
    for value, count in ((first, 1), (second, 1), (first, 2), (None, 0)):
        await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"annotations": {key: value}}})
        if value is not None:
            wrong = value.strip("{}").partition(": true")[0].rpartition(":")[2]
            await eventually(lambda: reported(fleet, node, wrong, count))  # noqa: B023


async def reported(fleet: Fleet, node: str, wrong: str, count: int) -> bool:
    """Return whether something wrong with a node was reported so often."""
    events = await fleet.client.list(resources.EVENTS, namespace="default", fields=f"involvedObject.name={node}")
    return any(wrong in event.message and (event.count or 1) >= count for event in events)


async def profile_and_group(fleet: Fleet) -> None:
    """Create what a pod refers to: a profile that ends at a limit, and a group."""
    body = {"metadata": {"name": "short"}, "data": {"profile.yaml": SHORT}}
    await fleet.client.create(resources.CONFIG_MAPS, body, namespace=fleet.namespace)
    group = {"metadata": {"name": "builds"}, "spec": {"priorityClassName": "build"}}
    await fleet.client.create(resources.POD_GROUPS, group, namespace=fleet.namespace)


async def end_at_limit(fleet: Fleet, node: str) -> None:
    """Run a pod of a group until it fails at its limit."""
    client, namespace = fleet.client, fleet.namespace
    await profile_and_group(fleet)
    await fleet.pod("ends", node, 1, own=PROFILED | {"pod-group-name": "builds"})

    async def failed() -> bool:
        return (await client.get(resources.PODS, "ends", namespace=namespace)).status.phase == "Failed"

    await eventually(failed)


async def fail_a_gpu(fleet: Fleet, node: str) -> None:
    """Let a GPU fail until the node's slice shows it."""

    async def annotate(failures: str | None) -> None:
        patch = {"metadata": {"annotations": {"simgpu.dev/failures": failures}}}
        await fleet.client.merge_patch(resources.NODES, node, patch)

    async def tainted() -> bool:
        found = await fleet.client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")
        return any(device.taints for item in found for device in item.spec.devices)

    await annotate("{unhealthy: [7]}")
    await eventually(tainted)
    await annotate(None)


async def reserve(fleet: Fleet, node: str, reservations: str) -> None:
    """Run a pod that reserves a GPU until it is annotated with that."""
    await fleet.pod("reserves", node, 1, namespace=reservations)
    await reserved(fleet, reservations)


async def reserved(fleet: Fleet, reservations: str) -> None:
    """Wait until the pod that reserves a GPU knows which one."""

    async def annotated() -> bool:
        pod = await fleet.client.get(resources.PODS, "reserves", namespace=reservations)
        return "run.ai/reserve_for_gpu_index" in pod.metadata.annotations

    await eventually(annotated)


async def recorded(fleet: Fleet) -> None:
    """Wait for Run:ai's recording rules."""
    name = vocabulary.RUNAI_RULE
    await eventually(lambda: fleet.client.find(resources.PROMETHEUS_RULES, name, namespace=fleet.namespace))


async def wait_in_line(fleet: Fleet, *options: str) -> None:
    """Start a second controller, which waits for the first to end."""
    log = audit.Tail(fleet.cluster.state_home)

    async def watching() -> bool:
        return any(act.permission[:2] == LEASE_WATCH for act in audit.acts(log.read(), namespace=fleet.namespace))

    await fleet.start(*options)
    await eventually(watching)


async def leave_behind(fleet: Fleet, node: str) -> None:
    """Let a controller publish everything and kill it, unless all of that is there from an earlier one."""
    await cleaning.ask_to_withdraw(fleet.client, fleet.namespace, wanted=False)
    await fleet.configure("", default=POOL)
    if len(await left(fleet, node)) == len(finders(fleet, node)):
        return
    await fleet.client.delete(resources.LEASES, vocabulary.LEASE, namespace=fleet.namespace)  # or it would wait
    await fleet.start()
    await published(fleet, node)
    await asyncio.to_thread(fleet.controller.stop, signal.SIGKILL)


async def clean(fleet: Fleet, cluster: Cluster, *, wait: float) -> None:
    """Run a cleanup as a user would, with the account of a kubeconfig."""
    command = ("cleanup", "--yes", "--namespace", fleet.namespace, "--kubeconfig", str(cluster.kubeconfig))
    await run(*command, "--wait", f"{wait:g}", home=cluster.state_home)


async def run(*command: str, home: Path) -> None:
    """Run `simgpu` as a user would, to its end even if that is not awaited any more."""
    running = asyncio.create_task(asyncio.to_thread(simgpu, *command, state_home=home))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.gather(running, return_exceptions=True)
        raise
