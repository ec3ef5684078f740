"""A node's MIG layout changes as NVIDIA's MIG manager does it, and pods get its instances."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.controllers import claimed, publishing
from simgpu.dra.node_devices import MigPart
from simgpu.identities import identity, render
from simgpu.kube import views
from simgpu.machines.fleet import pod_usage
from simgpu.machines.users import PodRef, User
from simgpu.topology.devices import device, part_id
from tests.fixtures.fake_worlds import LABEL, LOOP, World

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
RUNAI, MAPPING = "run.ai/mig.config", "run.ai/mig-mapping"
GPU = device("a", 0, models.load().models["h200"]).uuid


class MigWorld(World):
    """One node with two cards; `states` are those of its layout, as users see them, and `events` the reasons."""

    def __init__(self, world: World | None = None, *, gpus: str = "h200", **mig: Any) -> None:
        super().__init__(world.stores if world is not None else None)
        self.states: list[str] = []
        self.events: list[str] = []
        self.nodes._recorder.record = lambda *event: self.events.append(f"{event[2]}: {event[3]}")  # type: ignore[method-assign]
        self.stores.nodes.listen(lambda change: self._watch(change.new))
        if world is None:
            self._topology("", {"nodePools": {"x": {"gpus": [{"type": gpus, "count": 2}], "mig": mig}}})
            self.apply("node", "a", "x")
        self.settle()

    def _watch(self, node: views.Node | None) -> None:
        state = node.metadata.labels.get(STATE, "") if node is not None else ""
        if not self.states or self.states[-1] != state:
            self.states.append(state)

    def label(self, name: str | None) -> None:
        """Choose a layout, and wait until it is dealt with."""
        self.states.clear()
        self.apply("edit", "a", {"labels": {CONFIG: name}})
        self.settle()

    def write_unseen(self) -> None:
        """All writes reach the API; the controller does not look again yet."""

        async def unseen(_node: str) -> None:
            pass

        seen, self.api.changed = self.api.changed, unseen
        self._written("", None)
        self.api.changed = seen

    def add(self, name: str, requests: dict[str, int], containers: int = 1, namespace: str = "ns", **more: Any) -> None:
        """A pod whose containers request these devices each, running on the node; `more` is of its metadata."""
        limits = {resource: str(count) for resource, count in requests.items()}
        made = tuple(
            views.Container(name=f"c{number}", resources=views.Resources(limits=limits)) for number in range(containers)
        )
        meta = self.api.meta(
            name, namespace=namespace, uid=f"uid-{name}", creation_timestamp="2026-01-01T00:00:00Z", **more
        )
        spec = views.PodSpec(containers=made, node_name="a")
        self.stores.pods.put(views.Pod(metadata=meta, spec=spec, status=views.PodStatus(phase="Running")))
        self.settle()

    @property
    def capacity(self) -> dict[str, str]:
        return self.on("a")[1]

    @property
    def node(self) -> views.Node:
        found = self.stores.nodes.get("a")
        assert found is not None
        return found

    def profiles(self) -> list[list[str]]:
        return [[name for _, name, _ in card.parts] for card in self.fleet.nodes["a"].cards]

    def parts(self) -> dict[str, list[tuple[int, int | None]]]:
        """GPU and number of the instances of each pod."""
        found: dict[str, list[tuple[int, int | None]]] = {}
        for card in self.fleet.nodes["a"].cards:
            for user in card.users:
                found.setdefault(user.pod.name, []).append((card.device.index, user.part))
        return found


def test_a_pools_layout_is_there_at_once() -> None:
    world = MigWorld(config="all-balanced")
    assert world.capacity == {
        "nvidia.com/mig-1g.18gb": "4",
        "nvidia.com/mig-2g.35gb": "2",
        "nvidia.com/mig-3g.71gb": "2",
    }
    assert world.states == ["", "success"]


def test_the_label_changes_a_node_step_by_step_and_its_removal_brings_the_pools_layout_back() -> None:
    world = MigWorld()
    assert (world.capacity, world.states) == ({"nvidia.com/gpu": "2"}, [""])
    world.label("all-1g.35gb")
    assert world.states == ["", "pending", "success"]
    assert world.capacity == {"nvidia.com/mig-1g.35gb": "8"}
    assert world.node.metadata.labels["nvidia.com/mig-1g.35gb.count"] == "8"
    world.label("all-3g.71gb")
    assert world.states == ["success", "pending", "success"]
    assert not [name for name in world.node.metadata.labels if "1g.35gb" in name]
    world.label(None)
    assert world.states == ["success", "pending", ""]
    assert world.capacity == {"nvidia.com/gpu": "2"}
    assert not [name for name in world.node.metadata.labels if "mig-" in name or "slices" in name]


def test_a_card_whose_mode_changes_only_with_a_restart_is_rebooted() -> None:
    world = MigWorld(gpus="a100")
    world.label("all-1g.5gb")
    assert world.states == ["", "pending", "rebooting", "success"]
    world.label("all-2g.10gb")  # the mode stays
    assert world.states == ["success", "pending", "success"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [("all-1g.5gb", "'all-1g.5gb': no such layout for NVIDIA H200"), ("nonsense", "there are: all-")],
)
def test_a_layout_that_cannot_be_fails_with_an_event_and_the_node_keeps_what_it_had(name: str, problem: str) -> None:
    world = MigWorld(config="all-3g.71gb")
    world.label(name)
    assert world.states == ["success", "pending", "failed"]
    assert world.capacity == {"nvidia.com/mig-3g.71gb": "4"}
    assert len(world.events) == 1
    assert problem in world.events[0]
    assert world.events[0].endswith("the node keeps what it had")
    again = MigWorld(world)  # a controller that starts now
    assert again.profiles() == world.profiles()
    world.label("all-balanced")
    assert world.states == ["failed", "pending", "success"]


def test_instances_in_use_block_the_change_of_their_card() -> None:
    world = MigWorld(config="all-3g.71gb")
    world.add("p", {"nvidia.com/mig-3g.71gb": 1})
    world.label("all-1g.18gb")
    assert world.states == ["success", "pending", "failed"]
    assert world.events == [f"MigConfigFailed: {CONFIG}: GPU 0 is in use by ns/p; the node keeps what it had"]
    world.apply("pod", "p", None)
    world.settle()
    assert world.states[-1] == "failed"  # until it is asked for again
    world.label("all-balanced")
    assert world.states[-1] == "success"


PROFILED = [{"system": {"driver_version": "550.1.2"}}, {"device_defaults": {"name": "NVIDIA H200 of our own"}}]


@pytest.mark.parametrize("overrides", PROFILED)
def test_instances_in_use_stay_when_the_controller_restarts_in_a_pool_with_a_profile_of_its_own(
    overrides: dict[str, Any],
) -> None:
    def configure(**more: Any) -> None:
        gpu = {"profile": "h200", "overrides": {"device_count": 2, **overrides, **more}}
        world._topology("", {"nodePools": {"x": {"gpu": gpu, "mig": {"config": "all-3g.71gb"}}}})

    world = MigWorld()
    configure()
    world.settle()
    world.add("p", {"nvidia.com/mig-3g.71gb": 1})
    world.label("all-1g.18gb")
    assert world.states[-1] == "failed"
    _save(world)
    again = MigWorld(world)
    assert (again.states[-1], again.parts()) == ("failed", {"p": [(0, 1)]})
    world = again
    configure(system={"driver_version": "560.1.2"})  # the cards stay what they are
    world.settle()
    assert (world.states[-1], world.parts()) == ("failed", {"p": [(0, 1)]})


@pytest.mark.parametrize("writes", range(5))
@pytest.mark.parametrize("gpus", ["h200", "a100"])
def test_a_change_that_was_interrupted_is_finished_by_the_next_controller(gpus: str, writes: int) -> None:
    world = MigWorld(gpus=gpus)
    world.apply("edit", "a", {"labels": {CONFIG: "all-balanced"}})
    for _ in range(writes):
        world.look()
        world.write_unseen()  # and the controller is gone before it looks again
    again = MigWorld(world)
    assert again.node.metadata.labels[STATE] == "success"
    assert "nvidia.com/gpu" not in again.capacity


def test_a_label_that_changes_while_a_change_is_pending_is_followed() -> None:
    world = MigWorld()
    world.apply("edit", "a", {"labels": {CONFIG: "all-balanced"}})
    world.write_unseen()
    world.apply("edit", "a", {"labels": {CONFIG: "all-7g.141gb"}})
    world.settle()
    assert world.node.metadata.labels[STATE] == "success"
    assert world.capacity == {"nvidia.com/mig-7g.141gb": "2"}


@pytest.mark.parametrize(("gone", "left"), [(CONFIG, {"nvidia.com/gpu": "2"}), (LABEL, {})])
def test_the_state_of_a_change_that_was_taken_back_goes_whoever_wrote_it(gone: str, left: dict[str, str]) -> None:
    world = MigWorld()
    world.apply("edit", "a", {"labels": {CONFIG: "all-balanced"}})
    world.write_unseen()
    world._edit("a", {"labels": {gone: None}})  # and the controller is gone before its view lists the state
    again = World(world.stores)
    again.settle()
    assert STATE not in world.node.metadata.labels
    assert world.capacity == left


def test_pods_get_instances_packed_on_cards_and_keep_them_over_a_restart() -> None:
    world = MigWorld(config="all-3g.71gb")
    for name in ("p", "q", "r"):
        world.add(name, {"nvidia.com/mig-3g.71gb": 1})
    assert world.parts() == {"p": [(0, 1)], "q": [(0, 2)], "r": [(1, 1)]}
    world.apply("pod", "p", None)
    world.add("s", {"nvidia.com/mig-3g.71gb": 1})
    assert world.parts() == {"q": [(0, 2)], "r": [(1, 1)], "s": [(0, 1)]}
    _save(world)
    assert MigWorld(world).parts() == world.parts()


def test_pods_get_instances_of_cards_where_pods_or_claims_have_others_of_any_profile() -> None:
    world = MigWorld(config="all-balanced")
    for name in ("p", "q"):
        world.add(name, {"nvidia.com/mig-3g.71gb": 1})
    world.apply("pod", "p", None)
    world.add("r", {"nvidia.com/mig-1g.18gb": 1})
    world.add("s", {"nvidia.com/mig-1g.18gb": 1, "nvidia.com/mig-2g.35gb": 1})
    assert world.parts() == {"q": [(1, 2)], "r": [(1, 7)], "s": [(1, 8), (1, 4)]}
    world.add("t", {"nvidia.com/mig-1g.18gb": 1, "nvidia.com/mig-3g.71gb": 1})
    assert sorted(world.parts()["t"]) == [(0, 2), (0, 7)]
    for name in "qrst":
        world.apply("pod", name, None)
    gpu = world.fleet.nodes["a"].ids[1]
    claiming = User(PodRef("c", "ns", "main", "uid-c"), part=2)
    owners = claimed.ClaimedUsers({gpu: (claiming,)}, parts={gpu: (MigPart("3g.71gb", 4, 2, 71424),)})
    world.nodes._dra.users = lambda *_arguments: owners  # type: ignore[method-assign]
    world.add("u", {"nvidia.com/mig-2g.35gb": 1})
    assert world.parts() == {"c": [(1, 2)], "u": [(1, 4)]}


def _save(world: MigWorld) -> None:
    LOOP.run(world.nodes.save())
    world._written("", None)


def test_a_pod_may_have_instances_of_several_profiles_and_each_container_its_own() -> None:
    world = MigWorld(config="all-balanced")
    world.add("p", {"nvidia.com/mig-1g.18gb": 1, "nvidia.com/mig-2g.35gb": 1}, containers=2)
    gpus = world.fleet.nodes["a"].cards
    users = [(user.pod.container, card.device.index, user.part) for card in gpus for user in card.users]
    assert sorted(users) == [("c0", 0, 4), ("c0", 0, 7), ("c1", 0, 8), ("c1", 1, 4)]
    memory = {user.part: user.memory_mib for card in gpus for user in card.users}
    assert memory == {4: 33280, 7: 16384, 8: 16384}


def test_with_the_strategy_single_pods_request_instances_as_gpus() -> None:
    world = MigWorld(strategy="single", config="all-1g.18gb")
    assert world.capacity == {"nvidia.com/gpu": "14"}
    world.add("p", {"nvidia.com/gpu": 2})
    assert world.parts() == {"p": [(0, 7), (0, 8)]}


def test_with_the_strategy_none_a_pod_keeps_the_first_instance_of_its_card_busy() -> None:
    world = MigWorld(strategy="none", config="all-balanced")
    assert world.capacity == {"nvidia.com/gpu": "2"}
    for name in ("p", "q"):
        world.add(name, {"nvidia.com/gpu": 1})
    assert world.parts() == {"p": [(0, 2)], "q": [(1, 2)]}
    world.apply("pod", "q", None)
    world.settle()
    world.fleet.step(30.0, clock=30.0)

    for family, value in (("DCGM_FI_DEV_FB_USED", 71424), ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1)):
        lines = _lines(world, family)
        [busy] = [line for line in lines if 'pod="p"' in line]
        assert 'gpu="0"' in busy
        assert 'GPU_I_PROFILE="3g.71gb",GPU_I_ID="2"' in busy
        assert float(busy.rpartition(" ")[2]) == value
        idle = [line for line in lines if line != busy]
        assert len(idle) == 7
        assert not [line for line in idle if "pod=" in line or float(line.rpartition(" ")[2])]
    [(uid, gpu, percent, memory)] = pod_usage(world.fleet.machine())
    assert (uid, gpu, percent, memory) == ("uid-p", 0, 100, 71424 * 2**20)
    _save(world)
    assert MigWorld(world).parts() == world.parts()


@pytest.mark.parametrize(
    ("strategy", "config", "held", "memory"),
    [
        ("single", "all-3g.71gb", part_id(GPU, 1), 71424),
        ("mixed", [{"devices": [1], "mig-enabled": True, "mig-devices": {"7g.141gb": 1}}],
         GPU, 143155),
        ("none", "all-3g.71gb", part_id(GPU, 1), 71424),
    ],
)  # fmt: skip
def test_pods_share_what_runais_reservation_pods_hold_of_a_divided_node(
    strategy: str, config: Any, held: str, memory: int
) -> None:
    world = MigWorld(strategy=strategy, config=config)
    group = {"runai-gpu-group": "g"}
    world.add("r", {"nvidia.com/gpu": 1}, namespace="runai-reservation", labels=group)
    for name, fraction in (("p", "0.25"), ("q", "0.5")):
        world.add(name, {}, labels=group, annotations={"gpu-fraction": fraction})

    card = world.fleet.nodes["a"].cards[0]
    part = 1 if held.startswith("MIG-") else None
    assert world.parts() == {name: [(0, part)] for name in ("r", "p", "q")}
    assert {user.pod.name: user.memory_mib for user in card.users} == {"r": 0, "p": memory // 4, "q": memory // 2}
    found = world.stores.pods.get("r", namespace="runai-reservation")
    assert found is not None
    assert found.metadata.annotations["run.ai/reserve_for_gpu_index"] == held


def test_instances_can_be_shared_by_time_slicing() -> None:
    world = MigWorld()
    slicing = {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-3g.71gb", "replicas": 2}]}}
    pool = {"gpus": [{"type": "h200", "count": 1}], "mig": {"config": "all-3g.71gb"}, "sharing": slicing}
    world._topology("", {"nodePools": {"x": pool}})
    world.settle()
    assert world.capacity == {"nvidia.com/mig-3g.71gb": "4"}
    for name in ("p", "q", "r"):
        world.add(name, {"nvidia.com/mig-3g.71gb": 1})
    assert world.parts() == {"p": [(0, 1)], "q": [(0, 2)], "r": [(0, 1)]}
    [first, *_] = world.fleet.nodes["a"].cards[0].users
    assert first.memory_mib == 71424 // 2


def test_pods_keep_their_instances_when_time_slicing_is_switched_on_and_off() -> None:
    def slice_into(replicas: int) -> None:
        slicing = {"resources": [{"name": "nvidia.com/mig-3g.71gb", "replicas": replicas}]} if replicas > 1 else {}
        pool = {"gpus": [{"type": "h200", "count": 2}], "mig": {"config": "all-3g.71gb"}}
        world._topology("", {"nodePools": {"x": {**pool, "sharing": {"timeSlicing": slicing}}}})
        world.settle()

    world = MigWorld(config="all-3g.71gb")
    for name in ("p", "q", "r"):
        world.add(name, {"nvidia.com/mig-3g.71gb": 1})
    world.apply("pod", "p", None)
    before = world.parts()
    for replicas in (3, 2, 1):
        slice_into(replicas)
        assert world.parts() == before == {"q": [(0, 2)], "r": [(1, 1)]}


def test_unhealthy_cards_and_claims_leave_their_instances_to_nobody_else() -> None:
    world = MigWorld(config="all-3g.71gb")
    world.add("p", {"nvidia.com/mig-3g.71gb": 1})
    world.apply("edit", "a", {"annotations": {"simgpu.dev/failures": "{unhealthy: [0]}"}})
    world.settle()
    assert world.node.status.allocatable == {"nvidia.com/mig-3g.71gb": "2"}
    world.add("q", {"nvidia.com/mig-3g.71gb": 1})
    assert world.parts() == {"p": [(0, 1)], "q": [(1, 1)]}
    gpu = world.fleet.nodes["a"].ids[1]
    claiming = User(PodRef("c", "ns", "main", "uid-c"), part=1)
    owners = claimed.ClaimedUsers({gpu: (claiming,)}, parts={gpu: (MigPart("3g.71gb", 0, 1, 71424),)})
    world.nodes._dra.users = lambda *_arguments: owners  # type: ignore[method-assign]
    world.apply("nothing", "", None)
    assert world.parts() == {"p": [(0, 1)], "c": [(1, 1)], "q": [(1, 2)]}


def test_another_strategy_of_the_topology_changes_the_resources_and_nothing_else() -> None:
    world = MigWorld(config="all-3g.71gb")
    pool = {"gpus": [{"type": "h200", "count": 2}], "mig": {"config": "all-3g.71gb"}}
    world._topology("", {"nodePools": {"x": pool}, "migStrategy": "single"})
    world.settle()
    assert world.capacity == {"nvidia.com/gpu": "4"}
    world.add("p", {"nvidia.com/gpu": 1})
    assert world.parts() == {"p": [(0, 1)]}
    world._topology("", {"nodePools": {"x": pool}, "migStrategy": "mixed"})
    world.settle()
    assert world.capacity == {"nvidia.com/mig-3g.71gb": "4"}
    assert world.states[-1] == "success"


def test_runais_annotation_divides_a_node_and_gets_its_answer() -> None:
    world = MigWorld()
    text = "mig-configs: {selected: [{devices: [1], mig-enabled: true, mig-devices: [{name: 3g.71gb, position: 4}]}]}"
    world.apply("edit", "a", {"annotations": {RUNAI: text}})
    world.settle()
    assert world.capacity == {"nvidia.com/gpu": "1", "nvidia.com/mig-3g.71gb": "1"}
    gpu = world.fleet.nodes["a"].ids[1]
    found = json.loads(base64.b64decode(world.node.metadata.annotations[MAPPING]))
    assert found == {"1": [{"position": 4, "device_uuid": part_id(gpu, 2), "gpu_instance_id": 9}]}
    world.apply("edit", "a", {"annotations": {RUNAI: None}})
    world.settle()
    assert MAPPING not in world.node.metadata.annotations
    assert world.capacity == {"nvidia.com/gpu": "2"}


FILE = """
version: v1
mig-configs:
  halves:
  - {devices: all, mig-enabled: true, mig-devices: {3g.71gb: 2}}
"""


def test_a_mig_parted_file_in_its_config_map_names_layouts_and_a_wrong_one_changes_nothing() -> None:
    world = MigWorld()
    world.label("halves")
    assert world.states[-1] == "failed"

    def write(text: str) -> None:
        meta = world.api.meta("default-mig-parted-config", namespace="ns")
        world.stores.config_maps.put(views.ConfigMap(metadata=meta, data={"config.yaml": text}))
        world.settle()

    write(FILE)
    assert world.states[-1] == "success"
    assert world.capacity == {"nvidia.com/mig-3g.71gb": "4"}
    write("mig-configs: {halves: 7}")
    assert (
        "ConfigMap default-mig-parted-config: config.yaml.mig-configs.halves" in world.nodes.configuration.problems[0]
    )
    assert world.capacity == {"nvidia.com/mig-3g.71gb": "4"}
    assert MigWorld(world).capacity == world.capacity  # a controller that starts now
    pools = {"x": {"gpus": [{"type": "h200", "count": 3}]}, "y": {"gpus": [{"type": "t4", "count": 1}]}}
    world._topology("", {"nodePools": pools})  # which does not depend on the file
    world.apply("node", "b", "y")
    world.settle()
    assert world.on("b")[1] == {"nvidia.com/gpu": "1"}
    assert world.capacity == {"nvidia.com/mig-3g.71gb": "6"}  # with the layouts before


def test_a_node_that_leaves_loses_all_of_it() -> None:
    world = MigWorld(config="all-1g.18gb")
    world.apply("edit", "a", {"labels": {"run.ai/simulated-gpu-node-pool": None}})
    world.settle()
    assert world.capacity == {}
    assert list(world.node.metadata.labels) == []


def _lines(world: MigWorld, family: str, name: str = "dcgm-4.8.3") -> Sequence[str]:
    machine = world.fleet.machine()
    page = render.Renderer(machine, identity.load(name)).page().decode()
    return [line for line in page.splitlines() if line.startswith(f"{family}{{")]


def test_series_of_instances_have_their_profile_their_number_and_their_pod() -> None:
    world = MigWorld(config="all-3g.71gb")
    world.add("p", {"nvidia.com/mig-3g.71gb": 1})
    used, *free = _lines(world, "DCGM_FI_DEV_FB_USED")
    assert 'GPU_I_PROFILE="3g.71gb",GPU_I_ID="1"' in used
    assert 'pod="p"' in used
    assert len(free) == 3
    assert not [line for line in free if "pod=" in line]
    assert not _lines(world, "DCGM_FI_DEV_GPU_UTIL")
    assert len(_lines(world, "DCGM_FI_PROF_GR_ENGINE_ACTIVE")) == 4
    world.apply("pod", "p", None)
    world.settle()
    assert not [line for line in _lines(world, "DCGM_FI_DEV_FB_USED") if "pod=" in line]


def test_a_page_that_is_kept_up_to_date_is_the_page_that_a_new_one_would_be() -> None:
    world = MigWorld()
    shown = identity.load("dcgm-4.8.3")
    kept = render.Renderer(world.fleet.machine(), shown)

    def check() -> bytes:
        nonlocal kept
        machine = world.fleet.machine()
        kept = kept if kept.machine is machine else kept.on(machine)
        page = kept.page()
        assert page == render.Renderer(machine, shown).page()
        return page

    check()
    world.label("all-balanced")
    assert b"GPU_I_PROFILE" in check()
    for name, profile in (("p", "1g.18gb"), ("q", "3g.71gb"), ("r", "1g.18gb")):
        world.add(name, {f"nvidia.com/mig-{profile}": 1})
        assert f'pod="{name}"'.encode() in check()
    world.apply("pod", "p", None)
    world.apply("node", "b", "x")
    world.settle()
    check()
    world.apply("pod", "q", None)
    world.apply("pod", "r", None)
    world.label("all-disabled")
    assert b"GPU_I_PROFILE" not in check()


def test_runais_series_have_the_utilisation_of_a_pods_instances() -> None:
    world = MigWorld(config="all-1g.18gb")
    world.add("p", {"nvidia.com/mig-1g.18gb": 2})
    [(uid, gpu, percent, memory)] = pod_usage(world.fleet.machine())
    assert (uid, gpu, percent) == ("uid-p", 0, 100)
    assert memory == 2 * 16384 * 2**20


def test_runais_series_are_there_when_a_pod_and_its_instances_have_just_gone() -> None:
    world = MigWorld(config="all-1g.18gb")
    world.add("p", {"nvidia.com/mig-1g.18gb": 1})
    world._pod("p", None)
    world.look()
    world._edit("a", {"labels": {CONFIG: "all-disabled"}})
    for _ in range(3):
        world.look()
        world._written("", None)
    world.look()
    assert not list(pod_usage(world.fleet.machine()))  # before the next step


def test_a_view_has_the_instances_and_their_users() -> None:
    world = MigWorld(config="all-3g.71gb")
    world.add("p", {"nvidia.com/mig-3g.71gb": 1})
    _save(world)
    found = world.nodes.describe_node("a")
    assert found is not None
    first = found["Gpus"][0]
    assert first["Status"]["AllocatedBy"]["Pod"] == "p"
    assert [item["Start"] for item in first["Mig"]["Instances"]] == [0, 4]
    assert msgspec.json.encode(found)


NAMES = st.sampled_from(["all-disabled", "all-balanced", "all-1g.35gb", "all-3g.71gb", "all-enabled", "nonsense", None])
WANTED = st.sampled_from(["gpu", "mig-1g.18gb", "mig-1g.35gb", "mig-2g.35gb", "mig-3g.71gb"])
PODS = st.sampled_from(["p", "q", "r", "s"])
HISTORY = st.lists(
    st.one_of(
        st.tuples(st.just("label"), NAMES),
        st.tuples(st.just("add"), st.tuples(PODS, WANTED, st.integers(1, 2), st.integers(1, 2))),
        st.tuples(st.just("remove"), PODS),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("kill"), st.lists(st.one_of(NAMES, st.integers(0, 3)), max_size=4)),
    ),
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(HISTORY, st.sampled_from(["none", "single", "mixed"]))
def test_whatever_happens_each_instance_has_one_pod_and_pods_keep_theirs(history: list[Any], strategy: str) -> None:
    world = MigWorld(strategy=strategy)
    for kind, value in history:
        before = world.parts()
        if kind == "label":
            world.label(value)
            assert before == world.parts()  # what is in use is not changed
        elif kind == "add" and not world.stores.pods.get(value[0], namespace="ns"):
            name, resource, count, containers = value
            if count * containers <= _free(world, f"nvidia.com/{resource}"):  # as the scheduler sees to
                world.add(name, {f"nvidia.com/{resource}": count}, containers)
                assert len(world.parts()[name]) == count * containers
        elif kind == "remove":
            world.apply("pod", value, None)
            world.settle()
        elif kind == "restart":
            _save(world)
            world = MigWorld(world)
            assert world.parts() == before
        elif kind == "kill":  # at any point of changes: after a label, looks, writes, or both
            for step in value:
                if isinstance(step, int):
                    _go_on(world, looks=bool(step & 1), writes=bool(step & 2))
                else:
                    world._edit("a", {"labels": {CONFIG: step}})
            layouts = world.profiles()
            world = MigWorld(world)
            used = [bool(card.users) for card in world.fleet.nodes["a"].cards]
            assert all(old == new for old, new, busy in zip(layouts, world.profiles(), used, strict=True) if busy)
            assert world.parts().keys() == before.keys()
        _check(world)


def _go_on(world: MigWorld, *, looks: bool, writes: bool) -> None:
    """A part of what happens between a change and the end of its consequences."""
    if looks:
        world.look()
    if writes:
        world.write_unseen()


def _free(world: MigWorld, resource: str) -> int:
    used = sum(
        int(item.resources.limits.get(resource, "0")) for pod in world.stores.pods for item in pod.spec.containers or ()
    )
    return int(world.capacity.get(resource, "0")) - used


def _check(world: MigWorld) -> None:
    cards = world.fleet.nodes["a"].cards
    for card in cards:
        used = [user.part for user in card.users]
        assert len(used) == len(set(used))
        whole: set[int | None] = {None}
        assert set(used) <= ({number for number, _, _ in card.parts} or whole)
    spec = world.fleet.nodes["a"].spec
    strategy = world.nodes._strategy(spec)
    assert world.node.metadata.labels.get(STATE, "") in ("", "success", "failed")  # nothing is under way for ever
    assert world.capacity == publishing.amounts(spec, strategy)
    held = {pod.metadata.name for pod in world.stores.pods}
    assert held == world.parts().keys()
    assert len(world.fleet.engine.workloads()) == sum(len(card.users) for card in cards)
