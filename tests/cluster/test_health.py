"""GPUs of fake nodes that fail: the scheduler avoids them, metrics show why, and both end when they are healed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simgpu.kube import resources
from simgpu.kube.views import Node
from tests.fixtures.cluster import HOSTNAME, TOLERATE, eventually
from tests.fixtures.controller import Fleet

TWO_H200 = {"gpus": [{"type": "h200", "count": 2}]}
CLASS = "gpu.nvidia.com"


async def fail(fleet: Fleet, node: str, failures: str | None) -> None:
    await fleet.client.merge_patch(
        resources.NODES, node, {"metadata": {"annotations": {"simgpu.dev/failures": failures}}}
    )


async def taints(fleet: Fleet, node: str, wanted: list[list[tuple[str, str, str]]]) -> None:
    """Waits until the node's devices have these taints."""

    async def look() -> bool:
        listed = await fleet.client.list(resources.RESOURCE_SLICES, fields=f"spec.nodeName={node}")
        devices = [device for item in listed for device in item.spec.devices]
        found = [[(item["key"], item.get("value", ""), item["effect"]) for item in device.taints] for device in devices]
        return found == wanted

    await eventually(look)


async def claiming(fleet: Fleet, name: str, node: str) -> None:
    """A pod with a claim of one GPU."""
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS}}
    body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
    await fleet.client.create(resources.RESOURCE_CLAIMS, body, namespace=fleet.namespace)
    spec: dict[str, Any] = {
        "nodeSelector": {HOSTNAME: node}, "tolerations": TOLERATE, "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
    }  # fmt: skip
    await fleet.client.create(resources.PODS, {"metadata": {"name": name}, "spec": spec}, namespace=fleet.namespace)


async def unschedulable(fleet: Fleet, name: str) -> None:
    async def look() -> bool:
        found = await fleet.client.get(resources.PODS, name, namespace=fleet.namespace)
        return any(item.reason == "Unschedulable" for item in found.status.conditions)

    await eventually(look)


async def xids(fleet: Fleet, node: str, wanted: list[float]) -> None:
    async def look() -> bool:
        series = await asyncio.to_thread(fleet.series, "DCGM_FI_DEV_XID_ERRORS")
        return [series.get((node, str(index)), ({}, -1.0))[1] for index in range(len(wanted))] == wanted

    await eventually(look)


@pytest.mark.parametrize(
    ("failures", "taint", "xid"),
    [
        ("{unhealthy: [0]}", [("gpu.nvidia.com/xid", "48", "NoSchedule")], 48),
        (
            "{dying: [{gpu: 0}]}",
            [("gpu.nvidia.com/xid", "79", "NoSchedule"), ("gpu.nvidia.com/gpu-lost", "", "NoSchedule")],
            79,
        ),
    ],
)
async def test_the_scheduler_avoids_a_device_until_it_is_healed(
    fleet: Fleet, failures: str, taint: list[tuple[str, str, str]], xid: int
) -> None:
    await fleet.configure("", default={**TWO_H200, "allocation": "dra"})
    node = await fleet.node("a", failures=failures)
    await fleet.start()
    await taints(fleet, node, [taint, []])
    await xids(fleet, node, [xid, 0])
    await claiming(fleet, "first", node)
    await fleet.held({(node, "1"): ("first", "main")})
    await claiming(fleet, "second", node)
    await unschedulable(fleet, "second")
    await fail(fleet, node, None)
    await taints(fleet, node, [[], []])
    await fleet.held({(node, "0"): ("second", "main"), (node, "1"): ("first", "main")})


async def test_an_unhealthy_gpu_is_not_allocatable_and_its_pod_keeps_it(fleet: Fleet) -> None:
    await fleet.configure("", default=TWO_H200)
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 2)
    await fleet.pod("first", node, 1)
    await fleet.held({(node, "0"): ("first", "c0")})
    await fail(fleet, node, "{unhealthy: [0]}")
    seen: Node = await fleet.gpus(node, 1)
    assert seen.status.capacity["nvidia.com/gpu"] == "2"
    await fleet.held({(node, "0"): ("first", "c0")})
    await fleet.client.delete(resources.PODS, "first", namespace=fleet.namespace)
    await fleet.pod("second", node, 1)
    await fleet.held({(node, "1"): ("second", "c0")})
    await fail(fleet, node, None)
    await fleet.gpus(node, 2)


async def test_a_gpu_that_dies_for_a_while_comes_back_by_itself(fleet: Fleet) -> None:
    await fleet.configure("", default={**TWO_H200, "failures": {"dying": [{"gpu": 1, "after": 1, "for": 2}]}})
    node = await fleet.node("a")
    await fleet.start()
    await fleet.gpus(node, 2)
    await fleet.gpus(node, 1)
    await fleet.gpus(node, 2)
    await xids(fleet, node, [0, 79])
