"""MIG devices of fake nodes through claims: a GPU is divided into the instances that claims hold, while they do."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models, placing
from simgpu.controllers import publishing
from simgpu.dra import counters, node_devices
from simgpu.dra.node_devices import DevicePlace
from simgpu.identities import identity, render
from simgpu.kube import views
from simgpu.machines.fleet import Fleet
from simgpu.topology import allocating, inline, pools
from simgpu.topology.devices import Device, part_id
from tests.fixtures.claim_worlds import DEVICES, IDS, NODE, ClaimWorld

CATALOG = models.load()
GPUS = 2
CLAIMS, PODS = ("c", "d", "e"), ("p", "q", "r")
H200 = pools.build(inline.parse(f"h200:{GPUS}", CATALOG, field=""), NODE)
MIG = {  # names of MIG devices, by GPU, profile and first slice
    (index, profile.name, start): name
    for index in range(GPUS)
    for name, profile, start in counters.placements(H200[index], DEVICES[index])
}
TITLES = [*DEVICES[:GPUS], *MIG.values()]


class DividedWorld(ClaimWorld):
    """A node with two H200 that claims divide, at a time that goes on with each look."""

    def __init__(self, way: str = "both") -> None:
        self.now = 0.0
        self.energy = [0.0] * GPUS
        super().__init__("h200", dra={"dynamicMIG": True})
        self.gpus(GPUS, way)
        self.look()

    def restart(self) -> None:
        super().restart()
        self.now, self.energy = 0.0, [0.0] * GPUS

    def look(self) -> None:
        super().look()
        self.now += 1.0
        self.fleet.step(self.now, clock=self.now)

    @property
    def devices(self) -> list[Device]:
        return [card.device for card in self.fleet.nodes[NODE].cards]

    def instances(self, gpu: int = 0) -> dict[str, int]:
        """The profiles of a GPU's instances, and their numbers."""
        return {profile.name: place.number for place, profile in self.devices[gpu].mig_devices()}

    def users(self, gpu: int = 0) -> set[tuple[str, int | None]]:
        listed = self.fleet.nodes[NODE].users().get(IDS[gpu], ())
        return {(user.pod.name, user.part) for user in listed}

    def series(self, family: str) -> list[tuple[dict[str, str], float]]:
        page = render.Renderer(self.fleet.machine(), identity.load("dcgm")).page().decode()
        lines = re.findall(rf"^{family}{{(.*)}} (\S+)$", page, re.MULTILINE)
        return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in lines]

    def view(self) -> dict[str, Any]:
        return self.nodes._render(NODE)


def test_a_gpu_is_divided_into_the_instances_of_claims_until_the_last_one_is_left() -> None:
    world = DividedWorld()
    slices, written = world.server.bodies.copy(), world.server.writes
    world.claim_devices("c", [MIG[0, "3g.71gb", 4]], ["p"], admin=False)
    world.claim_devices("d", [MIG[0, "1g.18gb", 0]], ["q"], admin=False)
    world.pod("p", "Running", ["c"], 0)
    world.pod("q", "Running", ["d"], 0)
    world.look()
    assert world.instances() == {"3g.71gb": 2, "1g.18gb": 7}
    assert world.users() == {("p", 2), ("q", 7)}
    assert world.instances(1) == {}
    world.unclaim("c")
    world.gone("p")
    world.look()
    assert world.instances() == {"1g.18gb": 7}
    world.gone("q")
    world.look()
    assert world.instances() == {}
    assert not world.devices[0].mig_mode
    assert (world.server.bodies, world.server.writes) == (slices, written)


def test_series_are_those_of_the_instances_with_their_pods_while_power_is_the_cards() -> None:
    world = DividedWorld()
    world.look()
    idle = world.series("DCGM_FI_DEV_POWER_USAGE")[0][1]
    world.claim_devices("c", [MIG[0, "3g.71gb", 4], MIG[0, "1g.18gb", 0]], ["p"], admin=False)
    world.pod("p", "Running", ["c"], 0)
    for _ in range(30):
        world.look()
    memory = {
        item.get("GPU_I_PROFILE", ""): (item.get("GPU_I_ID"), item.get("pod"), value)
        for item, value in world.series("DCGM_FI_DEV_FB_USED")
    }
    assert {profile: found[:2] for profile, found in memory.items()} == {
        "3g.71gb": ("2", "p"), "1g.18gb": ("7", "p"), "": (None, None),
    }  # fmt: skip
    assert memory["3g.71gb"][2] == pytest.approx(71424, rel=0.02)
    assert [item["gpu"] for item, _ in world.series("DCGM_FI_DEV_GPU_UTIL")] == ["1"]
    busy = {item.get("GPU_I_PROFILE"): value for item, value in world.series("DCGM_FI_PROF_GR_ENGINE_ACTIVE")}
    assert busy["3g.71gb"] > 0.9
    card = world.fleet.machine().column("usage")[0]
    sm = CATALOG.models["h200"].sm_count or 1
    assert card <= 100 * (60 + 16) / sm + 1
    power = [value for item, value in world.series("DCGM_FI_DEV_POWER_USAGE") if item["gpu"] == "0"]
    assert power == [power[0]] * 2  # the card's, on each instance
    assert power[0] > idle + 50
    energy = world.series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[0][1]
    world.gone("p")
    world.look()
    assert [item["gpu"] for item, _ in world.series("DCGM_FI_DEV_GPU_UTIL")] == ["0", "1"]
    assert not [item for item, _ in world.series("DCGM_FI_DEV_FB_USED") if "GPU_I_ID" in item or item.get("pod")]
    assert world.series("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")[0][1] > energy


def test_instances_that_stay_keep_what_runs_on_them() -> None:
    world = DividedWorld()
    for name, pod, start in (("c", "p", 0), ("d", "q", 1)):
        world.claim_devices(name, [MIG[0, "1g.18gb", start]], [pod], admin=False)
        world.pod(pod, "Running", [name], 0)
        world.look()
    before = {item.what.pod.name: item.number for item in world.fleet.nodes[NODE].cards[0].playing}  # type: ignore[union-attr]
    world.gone("p")
    world.look()
    [left] = world.fleet.nodes[NODE].cards[0].playing
    assert left.number == before["q"]


def test_a_pod_that_is_held_up_by_an_instance_in_its_place_runs_on_its_own_once_that_is_gone() -> None:
    """The scheduler allocates no two that overlap, but anybody may write the status of a claim."""
    world = DividedWorld()
    for name, pod, profile in (("c", "p", "1g.18gb"), ("d", "q", "1g.18gb+me")):
        world.claim_devices(name, [MIG[0, profile, 0]], [pod], admin=False)
        world.pod(pod, "Running", [name], 0)
    world.look()
    assert world.instances() == {"1g.18gb": 7}
    world.gone("p")
    world.look()
    world.look()
    assert world.instances() == {"1g.18gb+me": 7}
    [(labels, value)] = [item for item in world.series("DCGM_FI_DEV_FB_USED") if "GPU_I_ID" in item[0]]
    assert (labels["pod"], value > 1000) == ("q", True)


def test_a_view_lists_the_instances_and_their_pods_and_none_of_them_becomes_a_layout() -> None:
    world = DividedWorld("dra")
    world.claim_devices("c", [MIG[1, "2g.35gb", 2]], ["p"], admin=False)
    world.pod("p", "Running", ["c"], 0)
    world.look()
    [first, second] = (world.nodes.describe_node(NODE) or {})["Gpus"]
    assert "Mig" not in first
    identity_of = part_id(IDS[1], 4)
    assert second["Mig"] == {"Instances": [{"Id": identity_of, "Profile": "2g.35gb", "Start": 2}]}
    body = world.view()
    text = body["data"]["topology.yml"]
    assert f"- id: {identity_of}" in text
    assert "pod: p" in text.partition("mig:")[2]
    meta = views.ObjectMeta(
        name=f"topology-{NODE}", labels=body["metadata"]["labels"], annotations=body["metadata"]["annotations"]
    )
    saved = views.ConfigMap(metadata=meta, data=body["data"])
    assert not publishing.published([saved], CATALOG).nodes[NODE].divided
    assert publishing.read_previous(saved).resources == ("nvidia.com/gpu",)


def test_administrative_access_divides_no_gpu_that_another_pod_has() -> None:
    world = DividedWorld()
    world.claim_devices("c", [MIG[0, "1g.18gb", 0], MIG[1, "1g.18gb", 0]], ["p"], admin=True)
    world.pod("p", "Running", ["c"], 0)
    world.pod("q", "Running", [], 1)
    world.look()
    assert world.users() == {("q", None), ("p", 7)}
    assert [world.instances(gpu) for gpu in range(GPUS)] == [{}, {"1g.18gb": 7}]
    world.claim_devices("d", [MIG[1, "1g.18gb", 0]], ["r"], admin=False)
    world.pod("r", "Running", ["d"], 0)
    world.look()
    assert world.instances(1) == {"1g.18gb": 7}
    labelled = [item.get("pod") for item, _ in world.series("DCGM_FI_DEV_FB_USED") if "GPU_I_ID" in item]
    assert labelled == ["r"]  # an administrator comes last


def places() -> dict[str, DevicePlace]:
    spec = inline.parse(f"h200:{GPUS}", CATALOG, field="")
    way = allocating.GpuAllocation("dra", allocating.DraOptions(dynamic_mig=True))
    return node_devices.places(H200, pools.NodeGpus(spec.gpus, allocation=way))


PLACES = places()


def check(world: DividedWorld) -> None:
    """Each GPU is divided into what claims of its pods hold, and these pods are its users."""
    wanted: list[dict[tuple[str, int], None]] = [{} for _ in range(GPUS)]
    expected: list[set[tuple[str, int | None]]] = [set() for _ in range(GPUS)]
    for pod in world.stores.pods:
        listed = [world.results(pod, entry.name) for entry in pod.spec.resource_claims]
        there = [PLACES[item.device] for one in listed for item in one or ()]
        for place in there if pod.status.phase != "Succeeded" else ():
            gpu = IDS.index(place.gpu)
            if place.part is not None:
                wanted[gpu][place.part.profile, place.part.start] = None
            if None not in listed:
                expected[gpu].add((pod.metadata.name, place.part.number if place.part is not None else None))
    machine, now = world.fleet.machine(), world.fleet.counters(world.fleet.nodes[NODE])
    for gpu, device in enumerate(world.devices):
        made = device.mig_devices()
        slices = [at for place, _ in made for at in place.slices]
        assert len(set(slices)) == len(slices)
        assert {(profile.name, place.start) for place, profile in made} <= wanted[gpu].keys()
        for name, start in wanted[gpu]:
            [profile] = [item for item in device.model.mig if item.name == name]
            assert set(placing.placed(profile, device.model, start).slices) & set(slices)
        assert world.users(gpu) == expected[gpu]
        labelled = {machine.part_pods[part.handle].name for part in machine.parts
                    if part.device == gpu and part.handle in machine.part_pods}  # fmt: skip
        assert labelled <= {name for name, _ in expected[gpu]}
        assert now[IDS[gpu]][0] >= world.energy[gpu]
        world.energy[gpu] = now[IDS[gpu]][0]
    bodies = world.server.bodies.values()
    names = [device["name"] for body in bodies for device in body["spec"].get("devices", ())]
    assert sorted(names) == sorted(TITLES)


OPERATIONS = st.one_of(
    st.tuples(
        st.just("claim"), st.sampled_from(CLAIMS), st.none() | st.sets(st.sampled_from(TITLES), min_size=1, max_size=4),
        st.sets(st.sampled_from(PODS)),
    ),
    st.tuples(st.just("unclaim"), st.sampled_from(CLAIMS)),
    st.tuples(
        st.just("pod"), st.sampled_from(PODS), st.sampled_from(["Pending", "Running", "Succeeded"]),
        st.sets(st.sampled_from(CLAIMS)), st.just(0),
    ),
    st.tuples(st.just("gone"), st.sampled_from(PODS)),
    st.tuples(st.sampled_from(["restart", "show", "look"])),
)  # fmt: skip


@settings(max_examples=40)
@given(st.lists(OPERATIONS, max_size=12))
def test_any_sequence_of_claims_leaves_the_right_instances_and_users(operations: list[tuple[Any, ...]]) -> None:
    world = DividedWorld("dra")
    world.claim_devices("c", [MIG[0, "3g.71gb", 4]], ["p"], admin=False)
    world.claim_devices("d", [MIG[0, "1g.18gb", 0], MIG[1, "1g.18gb", 0]], ["p", "q"], admin=False)
    world.pod("p", "Running", ["c", "d"], 0)
    world.pod("q", "Running", ["d"], 0)
    world.look()
    check(world)
    for kind, *arguments in operations:
        if kind == "claim":
            world.claim_devices(*arguments, admin=False)
        else:
            getattr(world, kind)(*arguments)
        world.look()
        check(world)


@settings(max_examples=60)
@given(
    st.sampled_from([model for model in CATALOG.models.values() if model.mig]),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 7)), max_size=9),
)
def test_a_card_can_have_any_instances_that_do_not_overlap(model: models.Model, picks: list[tuple[int, int]]) -> None:
    fleet = Fleet(seed=1)
    node = fleet.place("n", pools.NodeGpus((pools.NodeGpu(model),)))
    wanted = tuple((model.mig[pick % len(model.mig)].name, start) for pick, start in picks)
    fleet.divide(node, {node.ids[0]: wanted})
    fleet.step(1.0, clock=1.0)
    assert len(fleet.machine().parts) == len(node.cards[0].device.mig_devices())
