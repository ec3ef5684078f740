"""MIG on fake nodes, with the real scheduler: a label divides a node, pods get instances, and metrics name both."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
from typing import Any

import pytest

from simgpu.kube import resources
from simgpu.kube.views import Node
from tests.fixtures.cluster import HOSTNAME, TOLERATE, eventually
from tests.fixtures.controller import Fleet

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
USED, ENERGY = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
Instances = dict[tuple[str, str, str], tuple[dict[str, str], float]]


def two(**mig: Any) -> dict[str, Any]:
    return {"gpus": [{"type": "h200", "count": 2}], "mig": mig}


async def divide(fleet: Fleet, node: str, layout: str | None) -> None:
    await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"labels": {CONFIG: layout}}})


async def offers(fleet: Fleet, node: str, state: str, **wanted: int) -> Node:
    """The node, once it has this state, and so many devices of each resource by the name after `nvidia.com/`."""
    amounts = {f"nvidia.com/{name}": str(count) for name, count in wanted.items()}

    async def look() -> Node | None:
        seen = await fleet.client.get(resources.NODES, node)
        ours = {name: value for name, value in seen.status.allocatable.items() if name.startswith("nvidia.com/")}
        return seen if ours == amounts and seen.metadata.labels.get(STATE, "") == state else None

    found: Node = await eventually(look)
    return found


async def pod(fleet: Fleet, name: str, node: str, **limits: int) -> None:
    amounts = {f"nvidia.com/{resource}": str(count) for resource, count in limits.items()}
    spec = {
        "nodeSelector": {HOSTNAME: node}, "tolerations": TOLERATE, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "x", "resources": {"limits": amounts}}],
    }  # fmt: skip
    await fleet.client.create(resources.PODS, {"metadata": {"name": name}, "spec": spec}, namespace=fleet.namespace)


def instances(fleet: Fleet, family: str = USED) -> Instances:
    """Series of instances by GPU, number and profile; those of whole GPUs have no number."""
    _, page = fleet.controller.get("/metrics")
    found: Instances = {}
    for line in page.splitlines():
        if line.startswith(f"{family}{{"):
            labels = dict(re.findall(r'(\w+)="(.*?)"', line))
            key = labels["gpu"], labels.get("GPU_I_ID", ""), labels.get("GPU_I_PROFILE", "")
            found[key] = labels, float(line.rpartition(" ")[2])
    return found


async def shown(fleet: Fleet, family: str) -> Instances:
    """Series of instances, once there are any: on a busy machine a controller may lose its short lease for a moment."""
    found: Instances = await eventually(lambda: asyncio.to_thread(instances, fleet, family))
    return found


async def held(fleet: Fleet, wanted: dict[tuple[str, str, str], str]) -> Instances:
    """The instances, once these have these pods and are full, and all others are free."""

    async def look() -> Instances | None:
        series = await asyncio.to_thread(instances, fleet)
        pods = {key: labels["exported_pod"] for key, (labels, _) in series.items() if "exported_pod" in labels}
        filled = all((value > 0) == (key in wanted) for key, (_, value) in series.items())
        return series if pods == wanted and filled else None

    found: Instances = await eventually(look, seconds=30)
    return found


async def test_a_label_divides_a_node_and_pods_keep_their_instances_when_the_controller_is_killed(fleet: Fleet) -> None:
    await fleet.configure("", default=two())
    node = await fleet.node("a")
    await fleet.start()
    await offers(fleet, node, "", gpu=2)
    await divide(fleet, node, "all-balanced")
    balanced = {"mig-1g.18gb": 4, "mig-2g.35gb": 2, "mig-3g.71gb": 2}
    seen = await offers(fleet, node, "success", **balanced)
    series = await held(fleet, {})
    assert len(series) == 8
    assert seen.metadata.labels["nvidia.com/mig-3g.71gb.product"] == "NVIDIA-H200-MIG-3g.71gb"
    await pod(fleet, "big", node, **{"mig-3g.71gb": 1})
    await pod(fleet, "small", node, **{"mig-1g.18gb": 2})
    wanted = {("0", "2", "3g.71gb"): "big", ("0", "7", "1g.18gb"): "small", ("0", "8", "1g.18gb"): "small"}
    found = await held(fleet, wanted)
    assert found["0", "2", "3g.71gb"][1] == 71424
    assert not await asyncio.to_thread(instances, fleet, "DCGM_FI_DEV_GPU_UTIL")
    energy = await shown(fleet, ENERGY)
    await divide(fleet, node, "all-1g.18gb")  # under load
    await offers(fleet, node, "failed", **balanced)

    async def told() -> bool:
        events = await fleet.client.list(resources.EVENTS, namespace="default")
        mine = [
            item for item in events if item.reason == "MigConfigFailed" and node in item.message + item.metadata.name
        ]
        return any("GPU 0 is in use by" in item.message for item in mine)

    await eventually(told)
    published = f"topology-{node}"

    async def saved() -> bool:
        view = await fleet.client.get(resources.CONFIG_MAPS, published, namespace=fleet.namespace)
        return "small" in view.data["topology.yml"]

    await eventually(saved)
    fleet.controller.stop(signal.SIGKILL)
    await fleet.start()
    again = await held(fleet, wanted)
    assert again.keys() == found.keys()
    later = await shown(fleet, ENERGY)
    assert all(later[key][1] >= value for key, (_, value) in energy.items())
    for name in ("big", "small"):
        await fleet.client.delete(resources.PODS, name, namespace=fleet.namespace)
    await held(fleet, {})
    await divide(fleet, node, "all-disabled")
    whole = await offers(fleet, node, "success", gpu=2)
    assert not [name for name in whole.metadata.labels if name.startswith("nvidia.com/mig-")]


async def test_with_the_strategy_single_the_scheduler_counts_instances_as_gpus(fleet: Fleet) -> None:
    await fleet.configure("", default=two(strategy="single", config="all-3g.71gb"))
    node = await fleet.node("a")
    await fleet.start()
    seen = await offers(fleet, node, "success", gpu=4)
    assert seen.metadata.labels["nvidia.com/gpu.product"] == "NVIDIA-H200-MIG-3g.71gb"
    await pod(fleet, "p", node, gpu=3)
    await held(fleet, {("0", "1", "3g.71gb"): "p", ("0", "2", "3g.71gb"): "p", ("1", "1", "3g.71gb"): "p"})
    await divide(fleet, node, "all-1g.5gb")  # which an H200 does not have
    await offers(fleet, node, "failed", gpu=4)


async def test_with_the_strategy_none_a_divided_card_is_one_gpu(fleet: Fleet) -> None:
    await fleet.configure("", default=two(strategy="none", config="all-3g.71gb"))
    node = await fleet.node("a")
    await fleet.start()
    seen = await offers(fleet, node, "success", gpu=2)
    assert seen.metadata.labels["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert not [name for name in seen.metadata.labels if name.startswith("nvidia.com/mig-")]
    await pod(fleet, "p", node, gpu=2)
    await fleet.running("p")
    await divide(fleet, node, "all-1g.18gb")  # though no pod has an instance
    await offers(fleet, node, "failed", gpu=2)


async def test_runais_annotation_gets_its_answer(fleet: Fleet) -> None:
    await fleet.configure("", default=two())
    node = await fleet.node("a")
    await fleet.start()
    await offers(fleet, node, "", gpu=2)
    text = "mig-configs: {selected: [{devices: [0], mig-enabled: true, mig-devices: [{name: 3g.71gb, position: 0}]}]}"
    await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"annotations": {"run.ai/mig.config": text}}})
    seen = await offers(fleet, node, "success", **{"gpu": 1, "mig-3g.71gb": 1})
    [[answer]] = json.loads(base64.b64decode(seen.metadata.annotations["run.ai/mig-mapping"])).values()
    assert (answer["position"], answer["gpu_instance_id"], answer["device_uuid"][:4]) == (0, 9, "MIG-")
    await fleet.client.merge_patch(resources.NODES, node, {"metadata": {"labels": {fleet.label: None}}})
    gone = await offers(fleet, node, "")
    assert "run.ai/mig-mapping" not in gone.metadata.annotations


@pytest.mark.parametrize("way", ["dra", "both"])
async def test_instances_are_devices_of_their_class(fleet: Fleet, way: str) -> None:
    await fleet.configure("", default={**two(config="all-3g.71gb"), "allocation": way})
    node = await fleet.node("a")
    await fleet.start()
    await offers(fleet, node, "success", **({"mig-3g.71gb": 4} if way == "both" else {}))
    selector = {"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '3g.71gb'"}}
    request = {"name": "mig", "exactly": {"deviceClassName": "mig.nvidia.com", "count": 2, "selectors": [selector]}}
    body = {"metadata": {"name": "two"}, "spec": {"devices": {"requests": [request]}}}
    await fleet.client.create(resources.RESOURCE_CLAIMS, body, namespace=fleet.namespace)
    spec: dict[str, Any] = {
        "nodeSelector": {HOSTNAME: node}, "tolerations": TOLERATE, "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "mig", "resourceClaimName": "two"}],
        "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "mig"}]}}],
    }  # fmt: skip
    await fleet.client.create(resources.PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace=fleet.namespace)

    async def used() -> list[tuple[str, str, str]] | None:
        series = await asyncio.to_thread(instances, fleet)
        mine = [key for key, (labels, _) in series.items() if labels.get("exported_pod") == "p"]
        return mine if len(mine) == 2 else None

    await eventually(used, seconds=30)
