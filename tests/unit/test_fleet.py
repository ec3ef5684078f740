"""Fake nodes' GPUs with several users each, and counters of GPUs that go and come back."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.identities import identity, render
from simgpu.machines.fleet import Fleet, NodeCards, pod_usage
from simgpu.machines.users import Plan, PodRef, Range, User
from simgpu.sim import activity
from simgpu.topology import allocating, inline, pools

CATALOG = models.load()


def user(name: str, percent: int, share: float = 0.5, container: str = "main") -> User:
    memory = int(CATALOG.models["h200"].memory_mib.usable * share)
    return User(PodRef(name, "team", container, f"uid-{name}"), Range(percent, percent), memory, share)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(seed=1)


@pytest.fixture
def node(fleet: Fleet) -> NodeCards:
    return fleet.place("n", inline.parse("h200:2", CATALOG, field="gpus"))


def test_users_of_one_gpu_add_up_and_the_first_is_named(fleet: Fleet, node: NodeCards) -> None:
    assert fleet.use(node, {node.ids[0]: (user("a", 30), user("b", 20, 0.25))})
    fleet.step(5.0, clock=0.0)
    machine = fleet.machine()
    assert machine.column("usage").tolist() == pytest.approx([50, 0], abs=1)
    assert machine.column("memory_used")[0] == pytest.approx(0.75 * CATALOG.models["h200"].memory_mib.usable, rel=0.02)
    assert machine.pods == {0: PodRef("a", "team", "main", "uid-a")}


def test_gpus_that_pods_get_in_another_way_are_the_same_gpus(fleet: Fleet, node: NodeCards) -> None:
    """So thousands of nodes can be changed to claims quickly, and their pages do not begin anew."""
    before, machine = list(node.cards), fleet.machine()
    claimed = msgspec.structs.replace(node.spec, allocation=allocating.GpuAllocation(vocabulary.DRA))
    assert fleet.place("n", claimed) is node
    assert (node.cards, node.spec) == (before, claimed)
    assert fleet.machine() is machine


def test_each_pod_on_a_gpu_has_its_part_of_the_utilisation(fleet: Fleet, node: NodeCards) -> None:
    sharing = (user("a", 40, 0.5), user("b", 10, 0.25), user("b", 10, 0.125, "second"))
    fleet.use(node, {node.ids[0]: sharing})
    fleet.step(5.0, clock=0.0)
    found = {uid: (index, percent, round(memory / 2**20)) for uid, index, percent, memory in pod_usage(fleet.machine())}
    total = round(float(fleet.machine().column("usage")[0]))
    assert found == {
        "uid-a": (0, round(total * 2 / 3), sharing[0].memory_mib),
        "uid-b": (0, round(total / 3), sharing[1].memory_mib + sharing[2].memory_mib),
    }


def test_the_part_of_a_pod_with_a_plan_follows_the_plan(fleet: Fleet, node: NodeCards) -> None:
    made = activity.Profile("w", (activity.Activity({"usage": activity.constant(0.25)}, seconds=900.0),), repeat=0)
    planned = msgspec.structs.replace(user("a", 90), plan=Plan(made))
    fleet.use(node, {node.ids[0]: (planned, user("b", 10))})
    fleet.step(5.0, clock=0.0)

    def parts() -> dict[str, float]:
        return {uid: percent for uid, _, percent, _ in pod_usage(fleet.machine())}

    assert parts() == {"uid-a": 25, "uid-b": 10}
    fleet.use(node, {node.ids[0]: (user("a", 30), user("b", 10))})
    fleet.step(10.0, clock=5.0)
    assert parts() == {"uid-a": 30, "uid-b": 10}
    fleet.use(node, {node.ids[0]: (planned, user("b", 10))})
    fleet.remove("n")
    assert fleet._demands() == {}


def test_the_view_of_a_node_lists_all_users_of_a_gpu(fleet: Fleet, node: NodeCards) -> None:
    fleet.use(node, {node.ids[1]: (user("a", 30), user("b", 20))})
    body = publishing.view("n", node.ids, node.spec, strategy="mixed", users=node.users(), counters={})
    first, second = yaml.safe_load(body["data"]["topology.yml"])["gpus"]
    assert first["status"]["podGpuUsageStatus"] == {}
    assert second["status"]["allocatedBy"]["pod"] == "a"
    assert list(second["status"]["podGpuUsageStatus"]) == ["uid-a", "uid-b"]


def test_one_user_that_goes_leaves_the_others_as_they_are(fleet: Fleet, node: NodeCards) -> None:
    fleet.use(node, {node.ids[0]: (user("a", 30), user("b", 20))})
    before = {item.what: item.number for item in node.cards[0].playing}
    assert fleet.use(node, {node.ids[0]: (user("b", 20),)})
    assert {item.what: item.number for item in node.cards[0].playing} == {user("b", 20): before[user("b", 20)]}
    assert not fleet.use(node, {node.ids[0]: (user("b", 20),)})
    assert fleet.use(node, {})
    assert fleet.engine.workloads() == {}


def test_counters_of_a_gpu_that_comes_back_never_fall(fleet: Fleet, node: NodeCards) -> None:
    fleet.use(node, {node.ids[0]: (user("a", 100),)})
    fleet.step(60.0, clock=0.0)
    before = fleet.counters(node)
    fleet.remove("n")
    fleet.step(61.0, clock=0.0)
    after = fleet.counters(fleet.place("n", node.spec))
    assert after[node.ids[0]][0] >= before[node.ids[0]][0] > 1000


def test_counters_resume_at_no_less_than_a_gpu_that_starts_to_work_reaches(fleet: Fleet, node: NodeCards) -> None:
    fleet.use(node, {node.ids[0]: (user("a", 100),)})
    saved = fleet.counters(node)
    for tick in range(1, 21):
        fleet.step(now := tick * 0.1, clock=now)
        fresh = Fleet(seed=2)
        again = fresh.place("n", node.spec)
        fresh.resume(again, saved, now)
        assert fresh.counters(again)[node.ids[0]][0] >= fleet.counters(node)[node.ids[0]][0]


def test_a_container_that_is_listed_twice_is_one_user(fleet: Fleet, node: NodeCards) -> None:
    for _ in range(3):
        fleet.use(node, {node.ids[0]: (user("a", 30), user("b", 20), user("a", 30))})
    assert [item.what for item in node.cards[0].playing] == [user("a", 30), user("b", 20)]
    fleet.use(node, {})
    assert fleet.engine.workloads() == {}


@pytest.mark.parametrize("mhz", [1e-4, 1e9])
def test_a_profile_made_for_a_card_that_there_cannot_be_runs_all_the_same(
    fleet: Fleet, node: NodeCards, mhz: float
) -> None:
    busy = activity.Activity({"usage": activity.constant(0.5)}, seconds=9.0)
    made = activity.Profile("w", (busy,), repeat=0, reference=activity.Reference(mhz, 1e-4 if mhz < 1 else 1e9))
    fleet.use(node, {node.ids[0]: (msgspec.structs.replace(user("a", 0), plan=Plan(made)),)})
    fleet.step(5.0, clock=5.0)
    assert fleet.machine().column("usage").tolist() == pytest.approx([50, 0], abs=1)


def test_users_before_one_that_cannot_start_leave_nothing_behind(fleet: Fleet, node: NodeCards) -> None:
    broken = msgspec.structs.replace(user("c", 0), plan=Plan(activity.Profile("w", ())))
    fleet.use(node, {node.ids[0]: (user("a", 30),)})
    before = fleet.engine.workloads()
    for _ in range(2):
        with pytest.raises(errors.InputError, match="at least one activity"):
            fleet.use(node, {node.ids[0]: (user("a", 30), user("b", 20), broken)})
        assert fleet.engine.workloads() == before
        assert node.users() == {node.ids[0]: (user("a", 30),)}
    fleet.use(node, {})
    assert fleet.engine.workloads() == {}


def test_of_counters_that_are_kept_for_absent_gpus_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simgpu.machines.fleet._MAX_GONE", 2)
    fleet = Fleet(seed=1)
    for name in "abc":
        fleet.remember({f"GPU-{name}": [float(ord(name))] * 12}, 0.0)
    assert list(fleet._inventory._gone) == ["GPU-b", "GPU-c"]


def test_gpus_of_fake_nodes_are_whole_whatever_they_are_made_of(fleet: Fleet) -> None:
    """As an exporter shows them that knows no tiles."""
    fleet.place("tiled", inline.parse("mi300x:2", CATALOG, field="gpus"))
    fleet.step(1.0, clock=0.0)
    page = render.Renderer(fleet.machine(), identity.load("dcgm")).page().decode()
    assert page.count("DCGM_FI_DEV_GPU_UTIL{") == 2
    assert "GPU_I_ID" not in page


def test_a_model_that_cannot_be_added_changes_nothing(fleet: Fleet, node: NodeCards) -> None:
    other = msgspec.structs.replace(CATALOG.models["h200"], product="Another")
    with pytest.raises(errors.InputError, match="another model named h200"):
        fleet.place("other", pools.NodeGpus((pools.NodeGpu(other),)))
    with pytest.raises(errors.InputError, match="another model named h200"):
        fleet.place("n", pools.NodeGpus((pools.NodeGpu(other),)))
    fleet.step(1.0, clock=0.0)
    assert len(fleet.machine().column("usage")) == len(node.cards) == 2
