"""The controller of a real node: what it does while the kubelet's own records are late, and with several users."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.controllers import real_node
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.controllers.own_slices import OwnSlices
from simgpu.controllers.real_node import RealNode
from simgpu.dra.grants import GrantedDevice, PreparedClaim
from simgpu.kube import resources, views
from simgpu.kube.operations import Target
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.health import DeviceFaults
from simgpu.machines.saved import Known
from simgpu.pods.holding import Held
from simgpu.topology import failures, pools
from simgpu.topology.devices import Device
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import CATALOG, IDS, STRICT, equipment, share, spec


class Kubelet:
    """Takes what it is offered, and lists what a test says."""

    def __init__(self) -> None:
        self.listed: list[Held] | None = []
        self.offered: list[str] = []
        self.claims: list[PreparedClaim] = []

    def offer(
        self,
        _spec: pools.NodeGpus,
        devices: Sequence[Device],
        _failing: failures.Failures,
        *,
        elapsed: float,
        faults: Mapping[str, DeviceFaults],
        occupied: Collection[str] = (),
    ) -> None:
        assert elapsed >= 0
        assert not faults
        self.offered = [device.uuid for device in devices if device.uuid not in occupied]

    async def forget(self, claim: PreparedClaim) -> None:
        self.claims.remove(claim)

    async def held(self, _devices: Collection[str]) -> list[Held] | None:
        return self.listed


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def node(tmp_path: Path, kubelet: Kubelet, clock: ManualClock) -> RealNode:
    """A node of two GPUs whose cluster is not seen yet, and on whose first GPU a pod was."""
    made = equipment(tmp_path)
    made.equip(spec(2))
    client: Any = None
    known = Known(spec(2), {IDS[0]: (share("p", 40),)})
    own = OwnNode(
        "node-a", NodeStores(Store(), Store(), Store(), Store()), Writer(client, manager="test"),
        Recorder(client, component="test"), namespace="ns", clock=clock, before=known.spec,
        catalog=models.Catalog({"h200": CATALOG.models["h200"], "strict": STRICT}),
    )  # fmt: skip
    slices = OwnSlices(client, Recorder(client, component="test"), "node-a")
    return RealNode(own, made, kubelet, slices, working=tuple, known=known, reservations="r", clock=clock)


def configure(node: RealNode, pool: str, model: str = "h200") -> None:
    """The node's pool in the cluster, which the node follows from now on."""
    stores = node._node._stores
    labels = {vocabulary.POOL_LABEL: "x"}
    meta = views.ObjectMeta(name="node-a", uid="u", resource_version="1", labels=labels)
    stores.nodes.put(views.Node(metadata=meta))
    named = views.ObjectMeta(name="topology", namespace="ns", resource_version="1")
    text = f"nodePools: {{x: {{gpus: [{{type: {model}, count: 2}}], {pool}}}}}"
    stores.config_maps.put(views.ConfigMap(metadata=named, data={"topology.yml": text}))
    node.follow_cluster()


def events(node: RealNode) -> list[str]:
    return [f"{item.reason}: {item.message}" for item in node._node.configuration._recorder._waiting]


def pod(name: str, **annotations: str) -> views.Pod:
    named = {f"simgpu.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return views.Pod(
        metadata=views.ObjectMeta(name=name, namespace="ns", uid=name, resource_version="1", annotations=named),
        spec=views.PodSpec(node_name="node-a", containers=(views.Container("main"),)),
        status=views.PodStatus(phase="Running"),
    )


async def test_after_an_allocation_it_looks_often_until_the_kubelet_lists_the_device(
    node: RealNode, kubelet: Kubelet
) -> None:
    assert await node.reconcile() == real_node.RECONCILE_SECONDS
    node.expect([f"{IDS[1]}::3"])
    assert await node.reconcile() == real_node.EXPECT_SECONDS
    kubelet.listed = [Held("main", (f"{IDS[1]}::2",), uid="other")]
    assert await node.reconcile() == real_node.EXPECT_SECONDS
    kubelet.listed += [Held("main", (f"{IDS[1]}::3",), uid="u")]
    assert await node.reconcile() == real_node.RECONCILE_SECONDS


async def test_an_allocation_that_the_kubelet_never_lists_is_not_expected_for_ever(
    node: RealNode, clock: ManualClock
) -> None:
    node.expect([IDS[1]])
    assert await node.reconcile() == real_node.EXPECT_SECONDS
    clock.now += real_node.MAX_EXPECT_SECONDS
    assert await node.reconcile() == real_node.RECONCILE_SECONDS


async def test_before_the_cluster_is_seen_gpus_have_the_users_that_they_had(node: RealNode, kubelet: Kubelet) -> None:
    kubelet.listed = None
    await node.reconcile()
    assert kubelet.offered == IDS[:2]
    box = node._equipment.box
    assert {index: pod.name for index, pod in box.machine.pods.items()} == {0: "p"}
    kubelet.listed = []
    await node.reconcile()
    assert not box.machine.pods


@pytest.mark.parametrize("before", ["extended", "nothing"])
async def test_both_acts_as_extended_while_device_classes_cannot_be_read(
    node: RealNode, clock: ManualClock, before: str
) -> None:
    if before == "nothing":
        node._equipment.equip(pools.NodeGpus(()))
    configure(node, "allocation: both")
    await node.reconcile()
    allocation = node._equipment.spec.allocation
    assert allocation.way == {"extended": "extended", "nothing": "both"}[before]
    assert not events(node)
    clock.now += real_node.MAX_UNDECIDED_SECONDS
    await node.reconcile()
    assert node._equipment.spec.allocation.way == "extended"
    [event] = events(node)
    assert event.endswith(
        "GPUs of this node are allocated by extended; DeviceClass gpu.nvidia.com could not be read: "
        "the API server did not answer"
    )
    node._slices._classes.replace([])
    await node.reconcile()
    assert events(node)[1].endswith("GPUs of this node are allocated by extended")


async def test_gpus_of_claims_are_not_allocatable_until_they_are_released(node: RealNode, kubelet: Kubelet) -> None:
    configure(node, "allocation: extended")
    owned = GrantedDevice("gpu", "node-a", IDS[0].lower(), IDS[0])
    watched = GrantedDevice("gpu", "node-a", IDS[1].lower(), IDS[1], admin=True)
    kubelet.claims = [PreparedClaim("u", "ns", "c", (owned, watched))]
    await node.reconcile()
    assert kubelet.offered == [IDS[1]]
    [event] = events(node)
    assert event.startswith("GpusHeld: allocation was changed while GPUs are in use: 1 are not allocatable")
    kubelet.claims = []
    await node.reconcile()
    assert kubelet.offered == IDS[:2]


async def test_gpus_that_the_kubelet_allocated_are_not_for_claims_until_their_pods_end(
    node: RealNode, kubelet: Kubelet
) -> None:
    configure(node, "allocation: dra, dra: {dynamicMIG: true}")
    pods = node._node._stores.pods
    pods.put(pod("p"))
    kubelet.listed = [Held("main", (IDS[1],), namespace="ns", pod="p")]
    await node.reconcile()
    assert kubelet.offered == [IDS[0]]
    assert [event.partition(":")[0] for event in events(node)] == ["GpusHeld"]
    pods.remove("ns/p")
    await node.reconcile()
    assert kubelet.offered == IDS[:2]


async def test_a_pod_that_a_limit_of_its_gpu_ends_is_reported_once_and_does_not_start_again(
    node: RealNode, kubelet: Kubelet
) -> None:
    configure(node, "", model="strict")
    node._node._stores.pods.put(pod("p", on_limit="fail"))
    kubelet.listed = [Held("main", (IDS[0],), namespace="ns", pod="p")]
    box = node._equipment.box
    for second in (1.0, 2.0, 3.0):
        await node.reconcile()
        box.step(second, clock=second)
        node.stepped()
        assert box.machine.column("usage").tolist() == [0, 0]
    assert events(node) == ["GpuLimitReached: container main: Limit usage reached, terminated"]
    failing = Target(resources.PODS, "p", "ns")
    assert not node._node._writer.settled(failing, None)  # the pod is to fail, as it asks for
