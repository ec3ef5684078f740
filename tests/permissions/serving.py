"""What an agent does with all of its permissions, beside a kubelet that is played."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

from simgpu.controllers import dra_fleet
from simgpu.dra.versions import ServedApi
from simgpu.kube import resources
from simgpu.node import messages
from simgpu.node.dra_messages import ClaimRef, PluginInfo
from tests.fixtures.cluster import Cluster, eventually
from tests.fixtures.controller import Fleet
from tests.fixtures.dra import Registry
from tests.fixtures.kubelet import Kubelet
from tests.permissions import acting


class AgentProcess:
    """A running `simgpu agent`."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        node: str,
        *options: str,
        reservations: str,
        kubelet: Kubelet,
        registry: Registry,
    ) -> None:
        root = registry.registry.parent
        command = [
            sys.executable, "-m", "simgpu", "agent", "--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace,
            "--node", node, "--listen", "127.0.0.1:0", "--interval", "0.2", "--reservation-namespace", reservations,
            "--state-dir", f"{root}/state", "--plugin-dir", str(kubelet.folder),
            "--pod-resources", str(kubelet.folder / "pods.sock"), "--dra-plugin-dir", str(registry.plugins),
            "--registry-dir", str(registry.registry), "--cdi-dir", f"{root}/cdi", "--runai-dir", f"{root}/runai",
            "--nri-socket", f"{root}/nri.sock", "--cgroups", f"{root}/cgroups", "--log-level", "warning",
            *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        """End it, and wait for that."""
        self.process.terminate()
        self.process.wait(timeout=30)

    def kill(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait()


def gpu_id(node: str, index: int) -> str:
    """Return the id of a node's GPU."""
    return f"GPU-{uuid.uuid5(uuid.UUID(int=0), f'{node}-{index}')}"


async def publish_classes(fleet: Fleet) -> None:
    """Write the classes of GPUs, as a controller does."""
    await dra_fleet.publish_classes(fleet.client, ServedApi())


async def serve(fleet: Fleet, *, reservations: str, kubelet: Kubelet, registry: Registry) -> None:
    """Let an agent do all that it can, until its node has no pool any more. It is killed if it is cancelled."""
    node = await create_node(fleet)
    async with agent(fleet, node, reservations=reservations, kubelet=kubelet, registry=registry):
        await eventually(lambda: fleet.client.find(resources.NODE_RESOURCE_TOPOLOGIES, node))
        async with asyncio.TaskGroup() as group:
            group.create_task(use_gpus(fleet, node, reservations=reservations, kubelet=kubelet))
            group.create_task(claim(fleet, node, registry))
            group.create_task(fail(fleet, node))
        await take_from_pool(fleet, node)


async def serve_without_dra(
    fleet: Fleet, account: Cluster, *, reservations: str, kubelet: Kubelet, registry: Registry
) -> None:
    """Let an agent without DRA do all that it can with its account, after one with DRA that left a claim prepared."""
    node = await create_node(fleet)
    run = functools.partial(agent, fleet, node, reservations=reservations, kubelet=kubelet, registry=registry)
    async with run():
        await prepare_claim(fleet, node, registry)
    client, namespace = fleet.client, fleet.namespace
    await client.delete(resources.RESOURCE_CLAIMS, "c", namespace=namespace)
    for item in await client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}"):
        await client.delete(resources.RESOURCE_SLICES, item.metadata.name)  # as a kubelet does without the plugin
    await client.delete(resources.NODE_RESOURCE_TOPOLOGIES, node)  # so that it is created again
    await client.delete(resources.CONFIG_MAPS, f"topology-{node}", namespace=namespace)
    fleet.cluster = account
    async with run("--components", "device-plugins,labels,exporter"):
        await eventually(lambda: client.find(resources.NODE_RESOURCE_TOPOLOGIES, node))
        async with asyncio.TaskGroup() as group:
            group.create_task(use_gpus(fleet, node, reservations=reservations, kubelet=kubelet))
            group.create_task(mistakes(fleet, node))
        await take_from_pool(fleet, node)


async def create_node(fleet: Fleet) -> str:
    """Create a real node in a pool."""
    node = f"{fleet.namespace}-real"
    await fleet.configure("", default=acting.POOL)
    await fleet.client.create(resources.NODES, {"metadata": {"name": node, "labels": {fleet.label: "default"}}})
    fleet.nodes.append(node)
    return node


@contextlib.asynccontextmanager
async def agent(
    fleet: Fleet, node: str, *options: str, reservations: str, kubelet: Kubelet, registry: Registry
) -> AsyncIterator[None]:
    """Run an agent until the block ends; it is killed if the block fails."""
    running = AgentProcess(
        fleet.cluster, fleet.namespace, node, *options, reservations=reservations, kubelet=kubelet, registry=registry
    )
    try:
        yield
        await asyncio.to_thread(running.stop)
    finally:
        running.kill()  # in no thread: this is quick, and a second cancellation could prevent one from starting


async def take_from_pool(fleet: Fleet, node: str) -> None:
    """Take a node out of its pool, and wait until nothing of it is published."""
    await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"labels": {fleet.label: None}}})
    await eventually(lambda: removed(fleet, node))


async def fail(fleet: Fleet, node: str) -> None:
    """Request failures that there are not, and then one that there is."""
    await mistakes(fleet, node)
    await acting.fail_a_gpu(fleet, node)


async def mistakes(fleet: Fleet, node: str) -> None:
    """Request failures that there are not."""
    await acting.mistakes(fleet, node, "simgpu.dev/failures", "{melt: true}", "{burst: true}")


async def removed(fleet: Fleet, node: str) -> bool:
    """Return whether nothing is left of what an agent publishes of its node."""
    client = fleet.client
    view = await client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
    zone = await client.find(resources.NODE_RESOURCE_TOPOLOGIES, node)
    return not view and not zone and not await client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")


async def use_gpus(fleet: Fleet, node: str, *, reservations: str, kubelet: Kubelet) -> None:
    """Run pods with GPUs of the kubelet: one that fails at its limit and is in a group, and one that reserves."""
    client, namespace = fleet.client, fleet.namespace
    await acting.profile_and_group(fleet)
    holders = {("ends", namespace): gpu_id(node, 0), ("reserves", reservations): gpu_id(node, 1)}
    for name, place in holders:
        annotations = acting.PROFILED | {"pod-group-name": "builds"} if name == "ends" else {}
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "x"}], "terminationGracePeriodSeconds": 0}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        await client.create(resources.PODS, body, namespace=place)
        status = {"status": {"phase": "Running"}}
        await client.merge_patch(resources.PODS, name, status, namespace=place, subresource="status")
    kubelet.pods = messages.ListPodResourcesResponse(
        tuple(
            messages.PodResources(
                name, place,
                (messages.ContainerResources("main", (messages.ContainerDevices("nvidia.com/gpu", (gpu,)),)),),
            )
            for (name, place), gpu in holders.items()
        )
    )  # fmt: skip

    async def failed() -> bool:
        return (await client.get(resources.PODS, "ends", namespace=namespace)).status.phase == "Failed"

    await acting.reserved(fleet, reservations)
    await eventually(failed)
    await client.delete(resources.PODS, "reserves", namespace=reservations)


async def claim(fleet: Fleet, node: str, registry: Registry) -> None:
    """Let the kubelet prepare a claim that was allocated on the node, and unprepare it."""
    info, ref = await prepare_claim(fleet, node, registry)
    await registry.unprepare(info, [ref])


async def prepare_claim(fleet: Fleet, node: str, registry: Registry) -> tuple[PluginInfo, ClaimRef]:
    """Let the kubelet prepare a claim that was allocated on the node."""
    client, namespace = fleet.client, fleet.namespace
    info = await registry.register()

    async def offered() -> Any:
        found = await client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")
        return [device.name for item in found for device in item.spec.devices]

    device = (await eventually(offered))[2]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}}
    made = await client.create(resources.RESOURCE_CLAIMS, body, namespace=namespace)
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": device}
    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
    await client.merge_patch(resources.RESOURCE_CLAIMS, "c", status, namespace=namespace, subresource="status")
    ref = ClaimRef(namespace=namespace, name="c", uid=made.metadata.uid)
    prepared = await registry.prepare(info, [ref])
    assert not prepared[made.metadata.uid].error
    return info, ref
