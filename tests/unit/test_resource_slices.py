"""Slices on a server that drops counters: GPUs that claims could divide are published whole."""

from __future__ import annotations

from typing import Any

import msgspec

from simgpu.catalog import models
from simgpu.controllers.own_slices import OwnSlices
from simgpu.dra.versions import ServedApi
from simgpu.kube import views
from simgpu.kube.recording import Recorder
from simgpu.topology import allocating, inline, pools
from tests.fixtures.claim_worlds import DEVICES, LOOP, NODE, ClaimWorld, SliceServer

GATE_OFF = (
    "the API server drops fields of slices: feature gate DRAPartitionableDevices is off; "
    "GPUs of nodes with dynamicMIG are published whole, without MIG devices"
)
WHOLE = DEVICES[:2]


class UncountedWorld(ClaimWorld):
    """A node with two H200 that claims could divide, on a server that drops counters."""

    def __init__(self, *, dry: bool = True) -> None:
        super().__init__("h200", dra={"dynamicMIG": True})
        self.server.counting, self.server.dry = False, dry
        self.gpus(2, "dra")

    def events(self) -> list[tuple[str, str]]:
        return [(item.reason, item.message) for item in self.recorder._waiting if item.reason == "FeatureGateOff"]


def test_where_counters_are_dropped_no_mig_device_is_ever_published() -> None:
    world = UncountedWorld()
    world.look()
    assert world.server.published == [WHOLE]
    [body] = world.server.bodies.values()
    assert body["spec"]["devices"][0]["capacity"].keys() == {"memory"}
    assert world.events() == [("FeatureGateOff", GATE_OFF)]
    for step in (world.show, world.restart, world.show):
        step()
        world.look()
        world.look()
    assert world.server.published == [WHOLE]  # nor is it written again, also after a restart


def test_mig_devices_that_were_written_without_counters_are_withdrawn_where_dry_runs_are_rejected() -> None:
    world = UncountedWorld(dry=False)
    world.look()
    assert len(world.server.devices()) > len(WHOLE)
    assert world.events() == [("FeatureGateOff", GATE_OFF)]
    assert world.dra.slices.queue.depth == 1
    world.look()
    assert world.server.devices() == WHOLE
    written = world.server.writes
    world.show()
    world.look()
    assert world.server.writes == written
    assert world.server.bodies.keys() == {f"kwok-{NODE}-gpu"}


def test_a_gpu_that_a_claim_has_divided_is_published_whole_too() -> None:
    world = UncountedWorld()
    world.claim_devices("c", [f"{DEVICES[0]}-mig-1g18gb-19-0"], ["p"], admin=False)
    world.pod("p", "Running", ["c"], 0)
    world.look()
    assert world.fleet.nodes[NODE].cards[0].device.mig_mode
    world.gpus(1, "dra")
    world.look()
    assert world.server.devices() == WHOLE[:1]


def test_mig_devices_are_published_once_the_server_is_of_a_version_that_keeps_counters() -> None:
    world = UncountedWorld()
    world.look()
    world.server.counting = True
    world.dra.slices.serve(ServedApi("v1", 36))
    world.look()
    assert len(world.server.devices()) == 2 * 26
    world.server.counting = False  # slices that have counters keep them
    world.restart()
    world.look()
    assert len(world.server.devices()) == 2 * 26
    assert not world.events()


def test_a_real_node_publishes_whole_gpus_where_counters_are_dropped() -> None:
    server: Any = SliceServer()
    server.counting = False
    recorder = Recorder(server, component="test")
    own = OwnSlices(server, recorder, NODE)
    way = allocating.GpuAllocation("dra", allocating.DraOptions(dynamic_mig=True))
    spec = msgspec.structs.replace(inline.parse("h200:2", models.load(), field=""), allocation=way)
    node = views.Node(metadata=views.ObjectMeta(name=NODE, uid="uid-n"))
    own._slices.serve(ServedApi("v1", 35))
    own.publish(node, spec, pools.build(spec, NODE), {})
    for _ in range(2):
        LOOP.run(own._slices.reconcile(NODE))
    assert server.published == [WHOLE]
    [event] = recorder._waiting
    assert (event.reason, event.message, event.subject.name) == ("FeatureGateOff", GATE_OFF, NODE)
