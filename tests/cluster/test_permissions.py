"""What accounts may do and what they do are the same: each permission is used, and nothing else is tried."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from simgpu.cluster import populate
from simgpu.controllers import dra_fleet
from simgpu.dra import classes
from simgpu.dra.versions import ServedApi
from simgpu.kube import resources
from simgpu.node import messages
from simgpu.node.dra_messages import ClaimRef
from tests.fixtures import accounts, audit, pod_groups, served_types, zones
from tests.fixtures.chart import SERVED, Helm, template
from tests.fixtures.cluster import Cluster, eventually, simgpu
from tests.fixtures.controller import Fleet
from tests.fixtures.dra import Registry
from tests.fixtures.kubelet import Kubelet

POOL: dict[str, Any] = {
    "gpus": [{"type": "h200", "count": 8}], "allocation": "both", "numa": {"zones": 2, "topologyManagerScope": "pod"},
}  # fmt: skip
RESERVATIONS = "runai-reservation"
SHORT = "{Profile: [{Load: 5}], Limits: {runtime: 1}}"
PROFILED = {"simgpu.dev/activity-profile": "configmap/short", "simgpu.dev/on-limit": "fail"}


@pytest.fixture
async def fleet(fleet: Fleet) -> AsyncIterator[Fleet]:
    """A fleet in a cluster that serves whatever a controller can use."""
    async with served_types.served(fleet.client, zones.TYPE, pod_groups.TYPE):
        yield fleet


async def account(fleet: Fleet, bodies: Sequence[dict[str, Any]], path: Path) -> Cluster:
    """The cluster as an account sees it."""
    token = await accounts.create(fleet.client, bodies)
    [entry] = yaml.safe_load(fleet.cluster.kubeconfig.read_text())["clusters"]
    text = entry["cluster"]["certificate-authority-data"]
    accounts.write_kubeconfig(path, server=entry["cluster"]["server"], authority=base64.b64decode(text), token=token)
    return msgspec.structs.replace(fleet.cluster, kubeconfig=path)


def assert_exact(fleet: Fleet, name: str, allowed: set[audit.Permission]) -> None:
    """An account was never rejected, and used whatever it may."""
    written = audit.lines(fleet.cluster.state_home)
    done = [act for act in audit.acts(written, namespace=fleet.namespace) if act.account == name]
    assert [act for act in done if act.code == 403] == []
    assert audit.used(done, allowed) == allowed


async def test_a_controller_and_a_cleanup_use_each_permission_and_try_nothing_else(
    fleet: Fleet, helm: Helm, tmp_path: Path
) -> None:
    controllers = accounts.example(accounts.CONTROLLER, fleet.namespace)
    rendered = template(helm, "--namespace", "gpu-operator", served=(*SERVED, "topology.node.k8s.io/v1alpha2"))
    cleanups = [
        body for body in accounts.parts(rendered, fleet.namespace) if body["metadata"]["name"] == "simgpu-cleanup"
    ]
    admin = fleet.cluster
    fleet.cluster = await account(fleet, controllers, tmp_path / "controller.yaml")
    cleaning = await account(fleet, cleanups, tmp_path / "cleanup.yaml")

    await fleet.configure("", default=POOL)
    node = await fleet.node("a")
    for name in classes.device_classes(ServedApi()):  # so that it creates them
        await fleet.client.delete(resources.DEVICE_CLASSES, name)
    await fleet.start()
    await fleet.gpus(node, 8)
    await exercise(fleet, node)
    command = ("cleanup", "--yes", "--namespace", fleet.namespace, "--kubeconfig", str(cleaning.kubeconfig))

    # Controllers that run remove what is theirs, and wait.
    await run(*command, "--wait", "60", home=admin.state_home)
    await fleet.gpus(node, None)
    for controller in fleet.controllers:
        controller.stop(signal.SIGKILL)
    await fleet.configure("", default=POOL)
    await fleet.start()
    await fleet.gpus(node, 8)
    await eventually(lambda: fleet.client.find(resources.NODE_RESOURCE_TOPOLOGIES, node))
    await eventually(lambda: fleet.client.find(resources.RESOURCE_SLICES, f"kwok-{node}-gpu"))
    fleet.controller.stop(signal.SIGKILL)
    # What a controller that was killed has left behind, the cleanup removes itself.
    await run(*command, "--wait", "0.1", home=admin.state_home)
    await fleet.gpus(node, None)
    assert_exact(fleet, accounts.CONTROLLER, accounts.allowed(controllers))
    assert_exact(fleet, "simgpu-cleanup", accounts.allowed(cleanups))


def test_the_chart_grants_what_the_examples_grant(helm: Helm) -> None:
    """So that what is shown for the one is true of the other."""
    served = (*SERVED, "topology.node.k8s.io/v1alpha2", "scheduling.run.ai/v2alpha2")
    rendered = accounts.parts(template(helm, served=served), "gpu-operator")

    def charts(account: str) -> set[audit.Permission]:
        return accounts.allowed([body for body in rendered if body["metadata"]["name"] == account])

    def examples(account: str) -> set[audit.Permission]:
        return accounts.allowed(accounts.example(account, "gpu-operator"))

    reserved = {audit.Permission("patch", "pods", RESERVATIONS)}
    classes = {audit.Permission(verb, "resource.k8s.io/deviceclasses", "") for verb in ("create", "patch")}
    assert charts(accounts.AGENT) - reserved == examples(accounts.AGENT)
    assert charts(accounts.CONTROLLER) - reserved == examples(accounts.CONTROLLER) - classes  # Helm makes those itself


async def run(*command: str, home: Path) -> None:
    """Run `simgpu` as a user would."""
    await asyncio.to_thread(simgpu, *command, state_home=home)


async def exercise(fleet: Fleet, node: str) -> None:
    """Let a controller do all that it can: events, profiles, limits, groups, zones, slices, and a second one."""
    client, namespace = fleet.client, fleet.namespace
    await mistakes(fleet, node, "simgpu.dev/gpus", "h200:none", "h200:few")
    await profile_and_group(fleet)
    await fleet.pod("ends", node, 1, own=PROFILED | {"pod-group-name": "builds"})

    async def failed() -> bool:
        return (await client.get(resources.PODS, "ends", namespace=namespace)).status.phase == "Failed"

    await eventually(failed)
    await fail_a_gpu(fleet, node)
    await fleet.start()  # it waits for the first to end


async def fail_a_gpu(fleet: Fleet, node: str) -> None:
    """Let a GPU fail until the node's slice shows it."""

    async def annotate(failures: str | None) -> None:
        patch = {"metadata": {"annotations": {"simgpu.dev/failures": failures}}}
        await fleet.client.merge_patch(resources.NODES, node, patch)

    async def tainted() -> bool:
        found = await fleet.client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")
        return any(device.taints for item in found for device in item.spec.devices)

    await annotate("{unhealthy: [0]}")
    await eventually(tainted)
    await annotate(None)


async def mistakes(fleet: Fleet, node: str, key: str, first: str, second: str) -> None:
    """Annotate a node wrongly, three times: the third is counted on the event of the first."""
    for value, count in ((first, 1), (second, 1), (first, 2), (None, 0)):
        await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"annotations": {key: value}}})
        if value is not None:
            wrong = value.strip("{}").partition(": true")[0].rpartition(":")[2]
            await eventually(lambda: reported(fleet, node, wrong, count))  # noqa: B023


async def reported(fleet: Fleet, node: str, wrong: str, count: int) -> bool:
    """Whether something wrong with a node was reported so often."""
    events = await fleet.client.list(resources.EVENTS, namespace="default")
    return any(
        wrong in event.message and event.involved_object.name == node and (event.count or 1) >= count
        for event in events
    )


async def profile_and_group(fleet: Fleet) -> None:
    """What a pod refers to: a profile that ends at a limit, and a group."""
    body = {"metadata": {"name": "short"}, "data": {"profile.yaml": SHORT}}
    await fleet.client.create(resources.CONFIG_MAPS, body, namespace=fleet.namespace)
    group = {"metadata": {"name": "builds"}, "spec": {"priorityClassName": "build"}}
    await fleet.client.create(resources.POD_GROUPS, group, namespace=fleet.namespace)


class AgentProcess:
    """A running `simgpu agent` beside a kubelet that the test plays."""

    def __init__(self, cluster: Cluster, namespace: str, node: str, *, kubelet: Kubelet, registry: Registry) -> None:
        root = registry.registry.parent
        command = [
            sys.executable, "-m", "simgpu", "agent", "--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace,
            "--node", node, "--listen", "127.0.0.1:0", "--interval", "0.2", "--reservation-namespace", RESERVATIONS,
            "--state-dir", f"{root}/state", "--plugin-dir", str(kubelet.folder),
            "--pod-resources", str(kubelet.folder / "pods.sock"), "--dra-plugin-dir", str(registry.plugins),
            "--registry-dir", str(registry.registry), "--cdi-dir", f"{root}/cdi", "--runai-dir", f"{root}/runai",
            "--nri-socket", f"{root}/nri.sock", "--cgroups", f"{root}/cgroups", "--log-level", "warning",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


def gpu_id(node: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.UUID(int=0), f'{node}-{index}')}"


async def test_an_agent_uses_each_permission_and_tries_nothing_else(
    fleet: Fleet, kubelet: Kubelet, registry: Registry, tmp_path: Path
) -> None:
    client, namespace, node = fleet.client, fleet.namespace, f"{fleet.namespace}-real"
    await populate.ensure(client, resources.NAMESPACES, {"metadata": {"name": RESERVATIONS}})
    sharing = accounts.parts(accounts.MANIFESTS[accounts.AGENT].with_name("agent-runai.yaml").read_text(), namespace)
    bodies = [*accounts.example(accounts.AGENT, namespace), *sharing]
    await publish_classes(fleet)
    seen = await account(fleet, bodies, tmp_path / "agent.yaml")
    await fleet.configure("", default=POOL)
    await client.create(resources.NODES, {"metadata": {"name": node, "labels": {fleet.label: "default"}}})
    fleet.nodes.append(node)
    agent = AgentProcess(seen, namespace, node, kubelet=kubelet, registry=registry)
    try:
        await eventually(lambda: client.find(resources.NODE_RESOURCE_TOPOLOGIES, node))
        await use_gpus(fleet, node, kubelet)
        await claim(fleet, node, registry)
        await mistakes(fleet, node, "simgpu.dev/failures", "{melt: true}", "{burst: true}")
        await fail_a_gpu(fleet, node)
        await client.merge_patch(resources.NODES, node, {"metadata": {"labels": {fleet.label: None}}})

        async def gone() -> bool:
            view = await client.find(resources.CONFIG_MAPS, f"topology-{node}", namespace=namespace)
            zone = await client.find(resources.NODE_RESOURCE_TOPOLOGIES, node)
            return (
                not view
                and not zone
                and not await client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")
            )

        await eventually(gone)
    finally:
        await asyncio.to_thread(agent.stop)
    assert_exact(fleet, accounts.AGENT, accounts.allowed(bodies))


async def publish_classes(fleet: Fleet) -> None:
    """The classes of GPUs, as the controller makes them."""
    await dra_fleet.publish_classes(fleet.client, ServedApi())


async def use_gpus(fleet: Fleet, node: str, kubelet: Kubelet) -> None:
    """Pods with GPUs of the kubelet: one that fails at its limit and is in a group, and one that reserves."""
    client, namespace = fleet.client, fleet.namespace
    await profile_and_group(fleet)
    holders = {("ends", namespace): gpu_id(node, 0), ("reserves", RESERVATIONS): gpu_id(node, 1)}
    for name, place in holders:
        annotations = PROFILED | {"pod-group-name": "builds"} if name == "ends" else {}
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "x"}], "terminationGracePeriodSeconds": 0}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        await eventually(lambda: client.find(resources.SERVICE_ACCOUNTS, "default", namespace=place))  # noqa: B023
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

    async def done() -> bool:
        ends = await client.get(resources.PODS, "ends", namespace=namespace)
        reserves = await client.get(resources.PODS, "reserves", namespace=RESERVATIONS)
        return ends.status.phase == "Failed" and "run.ai/reserve_for_gpu_index" in reserves.metadata.annotations

    await eventually(done)
    await client.delete(resources.PODS, "reserves", namespace=RESERVATIONS)


async def claim(fleet: Fleet, node: str, registry: Registry) -> None:
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
    await registry.unprepare(info, [ref])
