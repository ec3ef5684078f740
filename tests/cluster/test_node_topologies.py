"""NUMA zones of fake nodes: what a scheduler that knows NUMA reads of them."""

from __future__ import annotations

import signal
from typing import Any

from simgpu.kube import errors, resources
from simgpu.kube.views import NodeResourceTopology
from tests.fixtures import served_types, zones
from tests.fixtures.cluster import eventually
from tests.fixtures.controller import Fleet

NUMA: dict[str, Any] = {
    "zones": 2, "gpusPerZone": [3, 5], "topologyManagerPolicy": "restricted", "topologyManagerScope": "pod",
    "cpuPerZone": "3500m", "distances": {"remote": 32},
}  # fmt: skip
POOL: dict[str, Any] = {"gpus": [{"type": "h200", "count": 8}]}
OBJECTS = resources.NODE_RESOURCE_TOPOLOGIES


async def find(fleet: Fleet, node: str) -> NodeResourceTopology | None:
    try:
        return await fleet.client.get(OBJECTS, node)
    except errors.NotFound:
        return None


async def shows(fleet: Fleet, node: str, free: list[str]) -> NodeResourceTopology:
    """The object of a node, once that many GPUs are available in its zones."""

    async def look() -> NodeResourceTopology | None:
        found = await find(fleet, node)
        return found if found is not None and zones.free(found) == free else None

    found: NodeResourceTopology = await eventually(look, seconds=40)
    return found


async def gone(fleet: Fleet, node: str) -> None:
    async def look() -> bool:
        return await find(fleet, node) is None

    await eventually(look, seconds=30)


async def test_zones_of_fake_nodes_are_published_once_their_type_is_served_and_follow_pods(fleet: Fleet) -> None:
    await fleet.configure("", zoned=POOL | {"numa": NUMA}, plain=POOL)
    node, plain = await fleet.node("a", "zoned"), await fleet.node("b", "plain")
    await fleet.start()
    await fleet.gpus(node, 8)
    async with served_types.served(fleet.client, zones.TYPE):
        found = await shows(fleet, node, ["3", "5"])
        assert found.topology_policies == ("RestrictedPodLevel",)
        assert found.attributes == (
            {"name": "topologyManagerPolicy", "value": "restricted"}, {"name": "topologyManagerScope", "value": "pod"},
        )  # fmt: skip
        assert [(owner.kind, owner.name) for owner in found.metadata.owner_references] == [("Node", node)]
        assert found.zones[1] == {
            "name": "node-1", "type": "Node",
            "costs": [{"name": "node-0", "value": 32}, {"name": "node-1", "value": 10}],
            "resources": [
                {"name": "nvidia.com/gpu", "capacity": "5", "allocatable": "5", "available": "5"},
                {"name": "cpu", "capacity": "3500m", "allocatable": "3500m", "available": "3500m"},
                {"name": "memory", "capacity": "64Gi", "allocatable": "64Gi", "available": "64Gi"},
            ],
        }  # fmt: skip
        await fleet.pod("four", node, 4)
        await shows(fleet, node, ["0", "4"])
        assert await find(fleet, plain) is None
        fleet.controller.stop(signal.SIGKILL)
        await fleet.client.delete(resources.PODS, "four", namespace=fleet.namespace)
        await fleet.start()
        before = await shows(fleet, node, ["3", "5"])
        await fleet.client.delete(OBJECTS, node)  # by somebody else
        assert (await shows(fleet, node, ["3", "5"])).metadata.uid != before.metadata.uid
        failing = {"metadata": {"annotations": {"simgpu.dev/failures": "unhealthy: [0]"}}}
        await fleet.client.merge_patch(resources.NODES, node, failing)
        assert (await shows(fleet, node, ["2", "5"])).zones[0]["resources"][0]["capacity"] == "3"
        fleet.controller.stop(signal.SIGKILL)
        await fleet.configure("", zoned=POOL, plain=POOL)
        await fleet.start()
        await gone(fleet, node)
