"""MIG devices of fake nodes through claims: a GPU is divided into the instances that claims hold, while they do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simgpu.catalog import models, placing
from simgpu.controllers import claimed, publishing
from simgpu.dra import counters, node_devices
from simgpu.dra.claims import AllocatedClaim
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


def test_of_a_whole_gpu_and_a_mig_device_of_it_the_older_pod_has_its_own_and_the_other_is_reported() -> None:
    world = DividedWorld()
    world.claim_devices("c", [DEVICES[0]], ["p"], admin=False)
    world.claim_devices("d", [MIG[0, "1g.18gb", 0], DEVICES[1]], ["q"], admin=False)
    world.pod("p", "Running", ["c"], 0)
    world.pod("q", "Running", ["d"], 0)
    world.look()
    assert [world.users(gpu) for gpu in range(GPUS)] == [{("p", None)}, set()]
    assert world.instances() == {}
    assert [item.get("pod") for item, _ in world.series("DCGM_FI_DEV_GPU_UTIL")] == ["p", None]
    assert world.nodes.overcommitted == 1
    world.clock.now += claimed.PATIENCE
    world.look()
    [event] = [item for item in world.recorder._waiting if item.subject.name == "q"]
    assert event.reason == "FailedPrepareDynamicResources"
    assert event.message == f"device {MIG[0, '1g.18gb', 0]} overlaps with device {DEVICES[0]}, which pod ns/p holds"
    world.gone("p")
    world.look()
    assert [world.users(gpu) for gpu in range(GPUS)] == [{("q", 7)}, {("q", None)}]
    assert world.nodes.overcommitted == 0


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


def memory(place: DevicePlace) -> set[tuple[str, int]]:
    """The slices of memory of a device, with the GPU that they are of."""
    if place.part is None:
        return {(place.gpu, at) for at in range(8)}
    [profile] = [item for item in CATALOG.models["h200"].mig if item.name == place.part.profile]
    slices = placing.placed(profile, CATALOG.models["h200"], place.part.start).slices
    return {(place.gpu, at) for at in slices}


def conflict(one: DevicePlace, other: DevicePlace) -> bool:
    return one != other and not memory(one).isdisjoint(memory(other))


def check(world: DividedWorld) -> None:
    """Each GPU is divided into what claims of its pods hold, and these pods are its users, the oldest one first."""
    wanted: list[dict[tuple[str, int], None]] = [{} for _ in range(GPUS)]
    expected: list[set[tuple[str, int | None]]] = [set() for _ in range(GPUS)]
    held: set[DevicePlace] = set()
    missing = 0
    for pod in sorted(world.stores.pods, key=lambda pod: pod.metadata.uid):
        if pod.status.phase == "Succeeded":
            continue
        listed = [world.results(pod, entry.name) for entry in pod.spec.resource_claims]
        there = dict.fromkeys(PLACES[item.device] for one in listed for item in one or ())
        lacking = 0
        for place in there:
            if any(conflict(place, other) for other in held):
                lacking += 1
                continue
            held.add(place)
            if place.part is not None:
                wanted[IDS.index(place.gpu)][place.part.profile, place.part.start] = None
        missing += lacking
        for place in there if None not in listed and not lacking else ():
            number = place.part.number if place.part is not None else None
            expected[IDS.index(place.gpu)].add((pod.metadata.name, number))
    assert world.nodes.overcommitted == missing
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
@example([("unclaim", "c"), ("pod", "p", "Pending", set(), 0), ("pod", "q", "Pending", set(), 0),
          ("pod", "p", "Pending", {"d", "c"}, 0)])  # fmt: skip
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


LOADS = DividedWorld().nodes.loads


def pod_of(name: str, second: int, wanted: Iterable[str]) -> views.Pod:
    refs = [{"name": claim} for claim in wanted]
    body = {
        "metadata": {
            "name": name, "namespace": "ns", "uid": f"{name}-uid", "creationTimestamp": f"2026-01-01T00:00:0{second}Z",
        },
        "spec": {
            "nodeName": NODE, "containers": [{"name": "main", "resources": {"claims": refs}}],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in wanted],
        },
        "status": {"phase": "Running"},
    }  # fmt: skip
    return msgspec.convert(body, views.Pod)


def claim_of(name: str, devices: Iterable[tuple[str, bool]]) -> AllocatedClaim:
    """A claim of devices, some with administrative access, that is reserved for every pod."""
    results = [
        {"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": device, "adminAccess": admin}
        for device, admin in devices
    ]
    users = [{"resource": "pods", "name": pod, "uid": f"{pod}-uid"} for pod in PODS]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    return msgspec.convert({"metadata": {"name": name, "namespace": "ns"}, "status": status}, AllocatedClaim)


def users_of(pods: Iterable[views.Pod], allocated: Mapping[str, AllocatedClaim]) -> claimed.ClaimedUsers:
    return claimed.users_of(
        NODE, pods, lambda _namespace, name: allocated[name], places=PLACES,
        devices={device.uuid: device for device in H200}, loads=LOADS,
    )  # fmt: skip


@settings(max_examples=200)
@given(
    st.tuples(*(st.lists(st.tuples(st.sampled_from(TITLES), st.booleans()), max_size=3) for _ in CLAIMS)),
    st.tuples(*(st.tuples(st.integers(0, 1), st.sets(st.sampled_from(CLAIMS))) for _ in PODS)),
)
def test_no_claims_make_pods_owners_of_devices_that_overlap(
    allocations: tuple[list[tuple[str, bool]], ...], references: tuple[tuple[int, set[str]], ...]
) -> None:
    """A pod has all its devices, or an event has the reason. Any number of pods have one claim, or one device."""
    devices = dict(zip(CLAIMS, allocations, strict=True))
    allocated = {name: claim_of(name, listed) for name, listed in devices.items()}
    pods = [pod_of(name, second, sorted(wanted)) for name, (second, wanted) in zip(PODS, references, strict=True)]
    found = users_of(pods, allocated)
    for gpu, parts in found.parts.items():
        held = [DevicePlace(gpu, part) for part in parts]
        assert not any(conflict(one, other) for one in held for other in held)
    for gpu, users in found.owners.items():
        numbers: set[int | None] = {part.number for part in found.parts.get(gpu, ())}
        assert {user.part for user in users} <= (numbers or {None})
    reported = {item.pod.metadata.name for item in found.problems}
    using = {user.pod.name for of in (found.owners, found.observers) for users in of.values() for user in users}
    assert (
        using
        == {name for name, (_, wanted) in zip(PODS, references, strict=True) if any(devices[claim] for claim in wanted)}
        - reported
    )
    first = min(pods, key=lambda pod: (pod.metadata.seniority, pod.metadata.uid))
    mine = [PLACES[name] for claim in first.spec.resource_claims for name, admin in devices[claim.name] if not admin]
    overlap = any(conflict(one, other) for one in mine for other in mine)
    assert (first.metadata.name in reported) == overlap  # the oldest can only be in its own way
    again = users_of(pods[::-1], allocated)
    assert {item.message for item in again.problems} == {item.message for item in found.problems}


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
