"""What a user of the shared cluster sees: nodes that are Ready, pods that run, jobs that end."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest
import yaml

from simgpu.cluster import populate
from simgpu.kube import resources
from tests.fixtures.cluster import eventually, job, pod

if TYPE_CHECKING:
    from simgpu.kube.client import Client
    from simgpu.kube.views import Pod


async def test_nodes_are_ready_and_look_as_their_users_expect(client: Client) -> None:
    node = await client.get(resources.NODES, "kwok-gpu-node-1")
    assert node.ready
    assert node.metadata.labels["type"] == "kwok"
    assert node.metadata.labels["run.ai/simulated-gpu-node-pool"] == "default"
    assert node.metadata.annotations["kwok.x-k8s.io/node"] == "fake"
    assert [(taint.key, taint.value, taint.effect) for taint in node.spec.taints] == [
        ("kwok.x-k8s.io/node", "fake", "NoSchedule")
    ]
    for amounts in (node.status.capacity, node.status.allocatable):
        assert amounts == {"cpu": "32", "memory": "128Gi", "pods": "110"}


async def test_the_topology_names_the_pool(client: Client) -> None:
    topology = await client.get(resources.CONFIG_MAPS, "topology", namespace="gpu-operator")
    assert yaml.safe_load(topology.data["topology.yml"]) == {
        "nodePools": {"default": {"gpu": {"profile": "h200", "overrides": {"device_count": 8}}, "allocation": "both"}}
    }


async def test_publishing_a_pool_keeps_other_pools(client: Client) -> None:
    before = await client.get(resources.CONFIG_MAPS, "topology", namespace="gpu-operator")
    document = yaml.safe_load(before.data["topology.yml"])
    document["nodePools"]["other"] = {"gpuCount": 2}
    data = {"topology.yml": yaml.safe_dump(document)}
    await client.merge_patch(resources.CONFIG_MAPS, "topology", {"data": data}, namespace="gpu-operator")
    try:
        await populate.publish_topology(client, "a100:4", overwrite=False)
        unchanged = await client.get(resources.CONFIG_MAPS, "topology", namespace="gpu-operator")
        assert yaml.safe_load(unchanged.data["topology.yml"]) == document
        await populate.publish_topology(client, "a100:4", overwrite=True)
        after = await client.get(resources.CONFIG_MAPS, "topology", namespace="gpu-operator")
        pools = yaml.safe_load(after.data["topology.yml"])["nodePools"]
        assert pools["other"] == {"gpuCount": 2}
        assert pools["default"]["gpu"] == {"profile": "a100", "overrides": {"device_count": 4}}
    finally:
        original = {"data": before.data}
        await client.merge_patch(resources.CONFIG_MAPS, "topology", original, namespace="gpu-operator")


async def test_a_pod_on_a_simulated_node_becomes_running(client: Client, namespace: str) -> None:
    await client.create(resources.PODS, pod("app"), namespace=namespace)
    running = await eventually(lambda: _in_phase(client, namespace, "app", "Running"))
    assert running.spec.node_name.startswith("kwok-gpu-node-")
    assert [(status.name, status.ready) for status in running.status.container_statuses] == [("main", True)]


async def test_a_deleted_pod_goes_away(client: Client, namespace: str) -> None:
    await client.create(resources.PODS, pod("short"), namespace=namespace)
    await eventually(lambda: _in_phase(client, namespace, "short", "Running"))
    await client.delete(resources.PODS, "short", namespace=namespace)

    async def gone() -> bool:
        return await client.find(resources.PODS, "short", namespace=namespace) is None

    await eventually(gone)


async def test_a_jobs_pod_ends_after_its_run_time_and_not_before(client: Client, namespace: str) -> None:
    body = job("train", annotations={"simgpu.dev/run-time": "2s"})
    await client.create(resources.JOBS, body, namespace=namespace)
    [started] = await eventually(lambda: _pods_in_phase(client, namespace, "Running"))
    # A change of the pod meanwhile must not prolong it.
    await client.merge_patch(
        resources.PODS,
        started.metadata.name,
        {"metadata": {"labels": {"touched": "yes"}}},
        namespace=namespace,
    )
    [ended] = await eventually(lambda: _pods_in_phase(client, namespace, "Succeeded"), seconds=20)
    terminated = ended.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert terminated["exitCode"] == 0
    assert 2 <= _seconds(terminated["startedAt"], terminated["finishedAt"]) <= 8

    async def complete() -> bool:
        return (await client.get(resources.JOBS, "train", namespace=namespace)).status.succeeded == 1

    await eventually(complete)


@pytest.mark.parametrize(("text", "seconds"), [("1.5s", 1.5), ("500ms", 0.5), ("2", 2), ("0m1s", 1)])
async def test_run_times_are_read_as_durations_or_seconds(
    client: Client, namespace: str, text: str, seconds: float
) -> None:
    body = job("quick", annotations={"simgpu.dev/run-time": text})
    await client.create(resources.JOBS, body, namespace=namespace)
    [ended] = await eventually(lambda: _pods_in_phase(client, namespace, "Succeeded"), seconds=20)
    terminated = ended.status.container_statuses[0].state.terminated
    assert terminated is not None
    assert seconds - 1 <= _seconds(terminated["startedAt"], terminated["finishedAt"]) <= seconds + 6


async def test_a_more_specific_stage_wins_over_the_default_end_of_a_job(client: Client, namespace: str) -> None:
    stage = {
        "metadata": {"name": f"fail-{namespace}"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {
                "matchLabels": {"outcome": "fails"},
                "matchExpressions": [{"key": ".status.phase", "operator": "In", "values": ["Running"]}],
            },
            "delay": {"durationMilliseconds": 500},
            "next": {"statusTemplate": "phase: Failed\nreason: Chaos\n"},
        },
    }
    await client.create(resources.STAGES, stage)
    try:
        body = job("doomed", annotations={"simgpu.dev/run-time": "0s"})
        body["spec"]["template"]["metadata"]["labels"] = {"outcome": "fails"}
        body["spec"]["backoffLimit"] = 0
        await client.create(resources.JOBS, body, namespace=namespace)
        [failed] = await eventually(lambda: _pods_in_phase(client, namespace, "Failed"), seconds=20)
        assert failed.status.reason == "Chaos"
    finally:
        await client.delete(resources.STAGES, f"fail-{namespace}")


async def test_a_node_without_the_annotation_is_left_alone(client: Client) -> None:
    body = populate.node_object(1)
    body["metadata"] |= {"name": "somebody-elses", "annotations": {}, "labels": {}}
    await client.create(resources.NODES, body)
    try:
        await client.create(resources.PODS, pod("stranger", nodeName="somebody-elses"), namespace="default")
        probe = pod("ours", nodeName="kwok-gpu-node-1")
        await client.create(resources.PODS, probe, namespace="default")
        await eventually(lambda: _in_phase(client, "default", "ours", "Running"))
        stranger = await client.get(resources.PODS, "stranger", namespace="default")
        assert stranger.status.phase == "Pending"
        assert not (await client.get(resources.NODES, "somebody-elses")).ready
    finally:
        for name in ("stranger", "ours"):
            await client.delete(resources.PODS, name, namespace="default", grace_seconds=0)
        await client.delete(resources.NODES, "somebody-elses")


async def _in_phase(client: Client, namespace: str, name: str, phase: str) -> Pod | None:
    found = await client.find(resources.PODS, name, namespace=namespace)
    return found if found is not None and found.status.phase == phase else None


async def _pods_in_phase(client: Client, namespace: str, phase: str) -> list[Pod]:
    return [item for item in await client.list(resources.PODS, namespace=namespace) if item.status.phase == phase]


def _seconds(start: str, end: str) -> float:
    first, last = (datetime.datetime.fromisoformat(text) for text in (start, end))
    return (last - first).total_seconds()
