"""NUMA zones of a real node: what schedulers and programs that know NUMA read of them."""

from __future__ import annotations

import json

import msgspec

from simgpu.kube.views import NodeResourceTopology
from simgpu.node import messages, rpc
from tests.fixtures import zones
from tests.fixtures.agent import ZONE_VIEW, Gpus
from tests.fixtures.machine import wait_for


def free(gpus: Gpus) -> list[str] | None:
    """What is available in the zones of the node; None without an object."""
    found = gpus.node.kubectl("get", "noderesourcetopologies", gpus.node.name, "-o", "json", "--ignore-not-found")
    return zones.free(msgspec.json.decode(found, type=NodeResourceTopology)) if found else None


def test_zones_follow_pods_where_their_type_is_served(gpus: Gpus) -> None:
    document = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", **zones.TYPE}
    gpus.node.kubectl("create", "-f", "-", stdin=json.dumps(document))
    try:
        gpus.node.kubectl("wait", "--for=condition=Established", f"crd/{zones.TYPE['metadata']['name']}")
        gpus.configure({"gpus": [{"type": "h200", "count": 8}], "numa": {"zones": 2, "distances": {"remote": 21}}})
        wait_for(lambda: free(gpus) == ["4", "4"], "the zones", seconds=30)
        name = gpus.pod(gpus=3)
        wait_for(lambda: free(gpus) == ["1", "4"], "three of them to be taken", seconds=15)
        gpus.delete(name)
        wait_for(lambda: free(gpus) == ["4", "4"], "all to be free", seconds=15)
        gpus.configure({"gpus": [{"type": "h200", "count": 8}]})
        wait_for(lambda: free(gpus) is None, "the object to go with the zones", seconds=15)
    finally:
        gpus.node.kubectl("delete", "crd", zones.TYPE["metadata"]["name"])


async def test_a_pod_resources_interface_shows_pods_in_the_zones_of_the_pool(gpus: Gpus) -> None:
    gpus.configure({"gpus": [{"type": "h200", "count": 8}], "numa": {"zones": 2, "cpuPerZone": "16"}})
    name = gpus.pod(gpus=2, requests={"cpu": "100m", "memory": "64Mi"})
    gpus.running(name)
    mine = gpus.holds(name, 2)
    folder = gpus.node.machine.path(ZONE_VIEW)
    assert (folder / "sys/devices/system/node/node1/cpulist").read_text() == "16-31\n"
    answer = await rpc.call(
        folder / "pod-resources" / "kubelet.sock", f"{messages.POD_RESOURCES}/List", messages.Empty(),
        messages.ListPodResourcesResponse, seconds=10,
    )  # fmt: skip
    (pod,) = answer.pods
    assert (pod.namespace, pod.name) == ("default", name)
    ((devices,), memory) = pod.containers[0].devices, pod.containers[0].memory
    assert sorted(devices.ids) == mine
    assert devices.topology == messages.TopologyInfo((messages.NumaNode(0),))
    assert [item.size for item in memory] == [64 << 20]
