"""The controller of a real node: what it does while the kubelet's own records are late, and with several users."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
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
from simgpu.dra.node_devices import MigPart
from simgpu.kube import resources, views
from simgpu.kube.operations import Target
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines import inventory
from simgpu.machines.health import DeviceFaults
from simgpu.machines.saved import Known
from simgpu.pods.holding import Held
from simgpu.topology import failures, mig_by_hand, pools
from simgpu.topology.devices import Device, part_id
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import CATALOG, IDS, STRICT, equipment, share, spec


class Kubelet:
    """Takes what it is offered, and lists what a test says."""

    def __init__(self) -> None:
        self.listed: list[Held] | None = []
        self.offered: list[str] = []
        self.claims: list[PreparedClaim] = []
        self.divided: list[list[int]] = []
        self.asked: Callable[[], object] = bool  # while it is asked for the containers

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
        self.divided = [sorted(place.number for place, _ in device.mig_devices()) for device in devices]

    async def forget(self, claim: PreparedClaim) -> None:
        self.claims.remove(claim)

    async def held(self, _devices: Collection[str]) -> list[Held] | None:
        self.asked()
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


# MIG.

VERSIONS = itertools.count(2)
BOTH = "{1g.18gb: 2, 3g.71gb: 1}"  # instances 7 and 8, and 2


async def divide(node: RealNode, layout: str, *, label: str = "own", pool: str = "settable: true") -> str:
    """Choose a layout by the node's label, and follow the cluster until it is dealt with; return the state."""
    stores, state = node._node._stores, ""
    named = views.ObjectMeta(name="topology", namespace="ns", resource_version=str(next(VERSIONS)))
    text = f"{{nodePools: {{x: {{gpus: [{{type: h200, count: 2}}], {pool}}}}}, mig-configs: {{own: {layout}}}}}"
    stores.config_maps.put(views.ConfigMap(metadata=named, data={"topology.yml": text}))
    for _ in range(4):
        labels = {vocabulary.POOL_LABEL: "x", vocabulary.MIG_CONFIG: label, vocabulary.MIG_CONFIG_STATE: state}
        version = str(next(VERSIONS))
        stores.nodes.put(
            views.Node(metadata=views.ObjectMeta("node-a", uid="u", resource_version=version, labels=labels))
        )
        node.follow_cluster()
        await node.reconcile()
        state = node._node.divisions.labels("node-a").get(vocabulary.MIG_CONFIG_STATE, "")
    return state


def run_pod(node: RealNode, kubelet: Kubelet, *ids: str) -> None:
    """A pod on the node with these devices."""
    meta = views.ObjectMeta(name="p", namespace="ns", uid="p", resource_version="1")
    spec_of = views.PodSpec(node_name="node-a", containers=(views.Container("main"),))
    node._node._stores.pods.put(views.Pod(metadata=meta, spec=spec_of, status=views.PodStatus(phase="Running")))
    kubelet.listed = [Held("main", ids, namespace="ns", pod="p")]


def claim_of(gpu: str, part: MigPart) -> PreparedClaim:
    return PreparedClaim("u", "ns", "c", (GrantedDevice("mig", "node-a", "d", gpu, part=part),))


async def test_a_pod_with_a_divided_gpu_keeps_its_first_instance_busy(node: RealNode, kubelet: Kubelet) -> None:
    assert await divide(node, BOTH, pool="mig: {strategy: none}, settable: true") == "success"
    run_pod(node, kubelet, IDS[0])
    await node.reconcile()
    box = node._equipment.box
    box.step(30.0, clock=30.0)

    used = {(part.device, part.id): box.engine.read_part(part.handle) for part in box.machine.parts}
    assert {place for place, state in used.items() if state.usage or state.memory_mib} == {(0, 2)}
    assert used[0, 2].memory_mib == 71424
    labelled = {part.id: box.machine.part_pods.get(part.handle) for part in box.machine.parts if part.device == 0}
    assert {number for number, pod in labelled.items() if pod is not None} == {2}
    assert not box.machine.pods
    assert await divide(node, BOTH, label="all-disabled") == "failed"


async def test_a_layout_that_is_edited_changes_no_gpu_of_a_pod_after_a_change_by_hand(
    node: RealNode, kubelet: Kubelet
) -> None:
    assert await divide(node, BOTH) == "success"
    assert kubelet.divided == [[2, 7, 8]] * 2
    known = len(node._node.divisions._applied)
    await node.reconcile()
    assert len(node._node.divisions._applied) == known  # the layout is computed once
    assert node.set(IDS[0], "destroy_compute_instance", [7, 0]) == 0
    run_pod(node, kubelet, part_id(IDS[1], 8))
    assert await divide(node, "{7g.141gb: 1}") == "failed"
    assert kubelet.divided == [[2, 8], [2, 7, 8]]
    assert await divide(node, BOTH, label="nonsense") == "failed"  # what cannot be changes nothing either
    assert node._equipment.box.devices[0].bare == (7,)
    node._node._stores.pods.remove("ns/p")
    kubelet.listed = []
    assert await divide(node, BOTH, label="all-7g.141gb") == "success"
    assert kubelet.divided == [[0]] * 2


async def test_by_hand_nothing_is_taken_from_pods_and_nothing_done_before_the_nodes_layout_is_known(
    node: RealNode, kubelet: Kubelet
) -> None:
    node._equipment.equip(spec(2, settable=True))
    assert node.set(IDS[1], "mig_mode", [1, 0]) == mig_by_hand.NOT_READY
    run_pod(node, kubelet, IDS[0])
    configure(node, "settable: true")
    await node.reconcile()
    node._equipment.use({})  # the pod is idle: no program has the GPU open
    assert node.set(IDS[0], "mig_mode", [1, 0]) == mig_by_hand.IN_USE
    assert node.set(IDS[1], "mig_mode", [1, 0]) == 0
    before = node._equipment.box.device_states()[IDS[1]].kind
    assert node.set(IDS[1], "create_gpu_instance", [19, 255]) == 0
    changed = node._equipment.box.device_states()[IDS[1]].kind
    assert before != changed == inventory.kind_of(inventory.Card(node._equipment.box.devices[1], 0))
    assert node.set(IDS[1], "create_compute_instance", [7, 0]) == 0
    await node.reconcile()
    assert kubelet.divided == [[], [7]]
    node.expect([part_id(IDS[1], 7)])  # the kubelet gives it to a pod
    assert node.set(IDS[1], "destroy_compute_instance", [7, 0]) == mig_by_hand.IN_USE


async def test_a_change_by_hand_that_cannot_be_made_is_an_error_and_changes_nothing(
    node: RealNode, tmp_path: Path
) -> None:
    configure(node, "settable: true")
    await node.reconcile()
    pages, blocked = node._equipment.pages, tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    node._equipment.pages = blocked
    assert node.set(IDS[0], "mig_mode", [1, 0]) == mig_by_hand.UNKNOWN
    node._equipment.pages = pages
    await node.reconcile()
    assert not any(device.mig_mode for device in node._equipment.box.devices)


async def test_what_is_changed_by_hand_during_a_reconcile_is_not_offered(node: RealNode, kubelet: Kubelet) -> None:
    await divide(node, BOTH)
    kubelet.asked = lambda: node.set(IDS[0], "destroy_compute_instance", [7, 0])
    await node.reconcile()
    assert kubelet.divided == [[2, 8], [2, 7, 8]]


async def test_instances_of_prepared_claims_block_a_layout_and_outlive_changes_by_hand(
    node: RealNode, kubelet: Kubelet
) -> None:
    pool = "settable: true, allocation: dra"
    assert await divide(node, BOTH, pool=pool) == "success"
    kubelet.claims = [claim_of(IDS[0], MigPart("3g.71gb", 4, 2, 71424))]  # whose pod is not known yet
    node.claims_changed()
    assert await divide(node, BOTH, label="all-7g.141gb", pool=pool) == "failed"
    assert node.set(IDS[0], "destroy_compute_instance", [2, 0]) == mig_by_hand.IN_USE
    assert node.set(IDS[0], "destroy_compute_instance", [7, 0]) == 0
    kubelet.claims = []
    node.claims_changed()
    await node.reconcile()
    assert kubelet.divided == [[2, 8], [2, 7, 8]]
