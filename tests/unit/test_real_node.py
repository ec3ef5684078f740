"""The controller of a real node: what it does while the kubelet's own records are late, and with several users."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from simgpu.catalog import models
from simgpu.controllers import real_node
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.controllers.own_slices import OwnSlices
from simgpu.controllers.real_node import RealNode
from simgpu.dra.grants import PreparedClaim
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.health import DeviceFaults
from simgpu.machines.saved import Known
from simgpu.pods.holding import Held
from simgpu.topology import failures, pools
from simgpu.topology.devices import Device
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import IDS, equipment, share, spec


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
    ) -> None:
        assert elapsed >= 0
        assert not faults
        self.offered = [device.uuid for device in devices]

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
        Recorder(client, component="test"), namespace="ns", catalog=models.load(), clock=clock, before=known.spec,
    )  # fmt: skip
    slices = OwnSlices(client, Recorder(client, component="test"), "node-a")
    return RealNode(own, made, kubelet, slices, working=tuple, known=known, reservations="r", clock=clock)


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
