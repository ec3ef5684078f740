"""Any sequence of pod, node and configuration events leaves the fleet as a start from the same objects would."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.controllers import claimed, publishing
from simgpu.controllers.fake_nodes import FleetStores, growth
from simgpu.controllers.node_views import SAVE_EVERY
from simgpu.identities import identity, render
from simgpu.kube import errors, resources, views
from simgpu.kube.lease_time import LeaseTime
from simgpu.kube.operations import Target
from simgpu.kube.queue import WorkQueue
from simgpu.machines.fleet import Fleet, candidate_addresses, pod_usage
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import inline
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import STRICT
from tests.fixtures.fake_worlds import (
    CAPACITY,
    CATALOG,
    LABEL,
    LABELS_AND_MORE,
    LOOP,
    MINE,
    NODES,
    Api,
    World,
    container,
)

PODS = ("p", "q", "r", "s")

PHASES = st.sampled_from(["Pending", "Running", "Succeeded"])
COUNTS = st.lists(st.integers(1, 2), min_size=1, max_size=2).map(tuple)
INIT = st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=3)
PODS_CHANGE = st.one_of(st.none(), st.tuples(st.sampled_from(NODES), PHASES, COUNTS, INIT))
LABELS = st.fixed_dictionaries(
    {}, optional={LABEL: st.sampled_from([None, "x", "y", "unknown"]), **{key: st.just(MINE[key]) for key in MINE}}
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "simgpu.dev/gpus": st.sampled_from([None, "t4:2", "k80:1,t4:2", "nonsense"]),
        "kwok.x-k8s.io/node": st.sampled_from([None, "fake"]),
    },
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.sampled_from(PODS), PODS_CHANGE),
        st.tuples(st.just("written"), st.just(""), st.none()),
        st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from([None, "x", "y", "unknown"])),
        st.tuples(
            st.just("edit"), st.sampled_from(NODES),
            st.fixed_dictionaries({"labels": LABELS, "annotations": ANNOTATIONS}),
        ),
        st.tuples(
            st.just("config"), st.just(""), st.fixed_dictionaries({"x": st.integers(0, 4), "y": st.integers(0, 3)})
        ),
        st.tuples(st.just("named"), st.sampled_from(NODES), st.none() | st.integers(0, 100)),
        st.tuples(st.just("broken"), st.just(""), st.sampled_from(["nodePools: [", "nodePools: 5", ""])),
    ),
    max_size=20,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(events=EVENTS, marked=st.booleans())
def test_whatever_happens_the_fleet_is_consistent(events: list[tuple[str, str, Any]], *, marked: bool) -> None:
    world = World()
    if marked:  # as a controller that was there before has left it
        left: dict[str, str | None] = {vocabulary.FAKE_GPU_LABEL: "true", "nvidia.com/gpu.count": "5"}
        world._edit("a", {"labels": left, "annotations": {"kwok.x-k8s.io/node": "fake"}})
        world.api._merge("a", {"status": {part: {"nvidia.com/gpu": "5"} for part in CAPACITY}})
    world.apply("config", "", {"x": 2, "y": 3})
    for event in events:
        world.apply(*event)
        world.check()
    world.settle()
    world.check_writings()
    world.check_against_a_fresh_start()


SHARES = st.lists(
    st.one_of(
        st.tuples(
            st.just("pod"), st.sampled_from(PODS),
            st.none() | st.tuples(st.just("a"), PHASES, st.lists(st.integers(1, 3), min_size=1, max_size=2).map(tuple)),
        ),
        st.tuples(st.just("sliced"), st.just(""), st.sampled_from([1, 2, 4])),
        st.tuples(st.just("written"), st.just(""), st.none()),
    ),
    max_size=12,
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(events=SHARES)
@example(
    events=[
        ("sliced", "", 1), ("pod", "r", ("a", "Pending", (3,))), ("written", "", None), ("sliced", "", 4),
        ("pod", "q", ("a", "Pending", (3,))), ("written", "", None), ("pod", "r", ("a", "Running", (1,))),
        ("sliced", "", 1),
    ]
)  # fmt: skip
def test_no_share_of_a_gpu_has_two_users_and_a_start_keeps_them_all(events: list[tuple[str, str, Any]]) -> None:
    world = World()
    world.apply("sliced", "", 2)
    world.apply("node", "a", "x")
    replicas = 2
    for kind, name, value in events:
        world.apply(kind, name, value)
        replicas = value if kind == "sliced" else replicas
        held = [item for mine in world.nodes._records["a"].held.values() for item in mine if item]
        assert len(held) == len(set(held)) == min(world.wanted("a"), 3 * replicas)
        for card in world.fleet.nodes["a"].cards:
            assert sum(user.memory_mib for user in card.users) <= card.device.model.memory_mib.usable
    world.settle()
    assert world.on("a")[1] == {"nvidia.com/gpu": str(3 * replicas)}
    LOOP.run(world.nodes.save())
    world._written("", None)
    again = World(world.stores)
    again.look()
    # A view does not say which of a container's GPUs is lacking, nor their order where they are not shared.
    held_by, kept_by = (
        {uid: sorted(filter(None, mine)) for uid, mine in made.nodes._records["a"].held.items()}
        for made in (world, again)
    )
    assert kept_by == held_by
    assert again.holders() == world.holders()


def test_a_pod_leaves_a_shared_gpu_that_a_claim_owns_and_is_reported_if_there_is_no_other() -> None:
    world = World()
    world.apply("sliced", "", 2)
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    ids = world.fleet.nodes["a"].ids
    assert world.holders()["a"] == {ids[0]: ("uid-p-a", "c0")}
    events: list[str] = []
    world.nodes._recorder.record = lambda _on, _kind, reason, _message: events.append(reason)  # type: ignore[assignment]
    claiming = (User(PodRef("q", "ns", "c0", "uid-q")),)

    def claim(gpus: Sequence[str]) -> dict[str, tuple[str, str]]:
        owners = claimed.ClaimedUsers(dict.fromkeys(gpus, claiming))
        world.nodes._dra.users = lambda *_arguments: owners  # type: ignore[method-assign]
        world.apply("nothing", "", None)
        return world.holders()["a"]

    assert claim(ids[:1]) == {ids[0]: ("uid-q", "c0"), ids[1]: ("uid-p-a", "c0")}
    assert world.nodes._records["a"].missing == 0
    for _ in range(3):
        assert claim(ids) == dict.fromkeys(ids, ("uid-q", "c0"))
    assert world.nodes._records["a"].missing == 1
    assert events == ["GpusOvercommitted"]


def test_shares_of_an_unhealthy_gpu_stay_with_their_pods_and_go_to_no_other() -> None:
    world = World()
    world.apply("sliced", "", 2)
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    ids = world.fleet.nodes["a"].ids
    world.apply("edit", "a", {"annotations": {"simgpu.dev/failures": "{unhealthy: [0]}"}})
    world.settle()
    assert world.holders()["a"] == {ids[0]: ("uid-p-a", "c0")}
    world._pod("p", None)
    world.apply("pod", "q", ("a", "Running", (1,)))  # at once
    assert world.holders()["a"] == {ids[1]: ("uid-q-a", "c0")}


def test_a_start_finds_every_container_on_the_gpu_that_was_published() -> None:
    world = World()
    world.apply("config", "", {"x": 4, "y": 0})
    world.apply("node", "a", "x")
    for name in ("p", "q", "r"):
        world.apply("pod", name, ("a", "Running", (1,)))
    world.apply("pod", "p", None)
    world.apply("pod", "s", ("a", "Running", (1, 1)))
    world.settle()
    world.check_against_a_fresh_start()
    fresh = World(world.stores)
    fresh.look()
    placed = fresh.fleet.nodes["a"]
    found = [(user.pod.name, user.pod.container) for card in placed.cards for user in card.users]
    assert found == [("s", "c0"), ("q", "c0"), ("r", "c0"), ("s", "c1")]


def test_what_a_named_node_shows_follows_the_configuration() -> None:
    world = World()

    def shown(**metrics: Any) -> tuple[float, float]:
        gpu = {"id": "g", **({"metrics": metrics} if metrics else {})}
        node = {"gpu-product": "Tesla-K80", "gpu-memory": 1000, "gpus": [gpu]}
        world.apply("topology", "", {"nodes": {"a": node}})
        for _ in range(4):
            world.apply("nothing", "", None)
        numbers = [card.number for card in world.fleet.nodes["a"].cards]
        usage, memory = (world.fleet.engine.read(quantity, numbers)[0] for quantity in ("usage", "memory_used"))
        return round(usage), round(memory)

    world.apply("topology", "", {"nodes": {}})
    world.apply("node", "a", "x")
    assert shown(**{"utilization": 10, "fb-used": 100}) == (10, 100)
    assert shown(**{"utilization": 90, "fb-used": 300}) == (90, 300)
    assert shown() == (0, 0)
    world.apply("pod", "p", ("a", "Running", (1,)))
    assert shown(utilization=50)[0] == 100
    told = world.nodes.configuration.describe()
    assert told is not None
    assert told["Nodes"] == {"a": {"GpuCount": 1, "GpuMemory": 1000, "GpuProduct": "Tesla-K80", "OtherDevices": None}}


def test_a_node_that_leaves_before_it_was_written_keeps_nothing() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world._edit("a", {"labels": {LABEL: None}})
    world.settle()
    assert world.on("a") == ({}, {})
    world.check_writings()


def test_a_node_that_is_no_longer_fake_keeps_nothing_of_ours() -> None:
    for restarted in (False, True):
        world = World()
        world.apply("config", "", {"x": 2})
        world.apply("node", "a", "x")
        world.settle()
        assert world.on("a")[1] == {"nvidia.com/gpu": "2"}
        world._edit("a", {"annotations": {"kwok.x-k8s.io/node": None}})
        if restarted:
            world = World(world.stores)
        world.settle()
        assert world.on("a") == ({}, {})
        world.check_writings()


def test_a_failure_that_goes_on_across_a_restart_is_one_error() -> None:
    def errors_of(world: World) -> tuple[list[float], set[str]]:
        placed = world.fleet.nodes["a"]
        counted = world.fleet.engine.read("uncorrected", [card.number for card in placed.cards])
        return counted.tolist(), set(world.fleet.faults(placed))

    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.apply("edit", "a", {"annotations": {"simgpu.dev/failures": "{unhealthy: [1]}"}})
    world.settle()
    bad = {world.fleet.nodes["a"].ids[1]}
    assert errors_of(world) == ([0.0, 1.0], bad)
    LOOP.run(world.nodes.save())
    world.settle()

    world = World(world.stores)
    world.settle()
    assert errors_of(world) == ([0.0, 1.0], bad)

    world = World(world.stores)
    world._edit("a", {"annotations": {"simgpu.dev/failures": None}})
    world.settle()
    assert errors_of(world) == ([0.0, 1.0], set())


def test_labels_that_others_wrote_stay() -> None:
    world = World()
    unknown = {"gpuProduct": "Mystery", "gpuCount": 1, "gpuMemory": 1000}
    known = {"gpuProduct": "Tesla-K80", "gpuCount": 1, "gpuMemory": 1000}
    world.apply("topology", "", {"nodePools": {"x": unknown, "y": known}})
    world.apply("node", "a", "x")
    world.apply("edit", "a", {"labels": MINE})
    for _ in range(2):
        world.settle()
        assert world.on("a")[0]["nvidia.com/gpu.family"] == "mine"
        world = World(world.stores)
    world.apply("edit", "a", {"labels": {LABEL: None}})
    world.settle()
    assert world.on("a") == (MINE, {})
    world.apply("edit", "a", {"labels": {LABEL: "y"}})
    world.settle()
    assert world.on("a")[0]["nvidia.com/gpu.family"] == "kepler"
    world.apply("edit", "a", {"labels": {LABEL: "x"}})
    world.settle()
    assert "nvidia.com/gpu.family" not in world.on("a")[0]
    world.apply("edit", "a", {"labels": MINE})
    world.settle()
    assert world.on("a")[0]["nvidia.com/gpu.family"] == "mine"


def test_what_others_give_to_a_node_that_left_is_theirs() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.settle()
    world.apply("edit", "a", {"labels": {LABEL: None}})
    world.apply("written", "", None)
    assert world.on("a") == ({}, {})
    world.apply("edit", "a", {"labels": {"nvidia.com/gpu.count": "8"}})
    world.settle()
    assert world.on("a")[0] == {"nvidia.com/gpu.count": "8"}


@pytest.mark.parametrize(
    "typo",
    [
        {"labels": {LABEL: "xx"}},
        {"annotations": {"simgpu.dev/gpus": "h2000:8"}},
        {"labels": {LABEL: "xx"}, "annotations": {"simgpu.dev/gpus": "h200"}},
    ],
)
def test_a_typing_mistake_takes_no_gpus_from_a_node(typo: dict[str, dict[str, str | None]]) -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (2,)))
    world.settle()
    before = world.holders(), world.on("a")
    assert before[1][1] == {"nvidia.com/gpu": "2"}
    world.apply("edit", "a", typo)
    for _ in range(2):
        world.settle()
        assert (world.holders(), world.on("a")) == before
        world = World(world.stores)
    world.settle()
    world.apply("edit", "a", {"labels": {LABEL: None}, "annotations": {"simgpu.dev/gpus": None}})
    world.settle()
    assert world.on("a") == ({}, {})


def test_a_node_that_never_had_gpus_gets_none_from_a_typing_mistake() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "xx")
    world.settle()
    assert world.on("a") == ({}, {})


def test_all_views_tell_the_same_of_a_pods_memory() -> None:
    world = World()
    listed = [{"type": "h200"}, {"type": "Tesla K80", "memory": "12GB"}, {"type": "Mystery", "memory": 1001}]
    world.apply("topology", "", {"nodePools": {"x": {"gpus": listed}}})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (3,)))
    world.settle()
    page = render.Renderer(world.fleet.machine(), identity.load("dcgm")).page().decode()
    shown = [float(value) for value in re.findall(r"^DCGM_FI_DEV_FB_USED{.*} (.*)$", page, re.MULTILINE)]
    assert shown[0] == 143771 - 616
    assert [used / 2**20 for _, _, _, used in pod_usage(world.fleet.machine())] == shown
    view = world.stores.config_maps.get("topology-a", namespace="ns")
    assert view is not None
    gpus = yaml.safe_load(view.data["topology.yml"])["gpus"]
    assert [gpu["status"]["podGpuUsageStatus"]["uid-p-a"]["fbUsed"] for gpu in gpus] == shown
    told = world.nodes.describe_node("a")
    assert told is not None
    assert [gpu["Status"]["PodGpuUsageStatus"]["uid-p-a"]["FbUsed"] for gpu in told["Gpus"]] == shown


def test_the_topology_api_tells_of_a_real_node_what_its_agent_published() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    assert world.nodes.describe_node("real") is None
    spec = inline.parse("h200:1", CATALOG, field="x")
    uses = {"g0": (User(PodRef("train", "team", "main", "uid-1"), Range(10, 30), 500),)}
    body = publishing.view("real", ["g0"], spec, strategy="none", users=uses, counters={}, fake=False)
    meta = world.api.meta("topology-real", namespace="ns", **{key: body["metadata"][key] for key in LABELS_AND_MORE})
    world.stores.config_maps.put(views.ConfigMap(metadata=meta, data=body["data"]))
    world.settle()
    told = world.nodes.describe_node("real")
    assert told is not None
    assert (told["GpuProduct"], told["MigStrategy"]) == ("NVIDIA H200", "none")
    assert told["Gpus"][0]["Status"]["AllocatedBy"]["Pod"] == "train"


def test_a_start_writes_only_what_differs() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    for node in NODES:
        world.apply("node", node, "x")
    world.apply("pod", "p", ("a", "Running", (2,)))
    world.settle()
    fresh = World(world.stores, clock=ManualClock(100.0))  # nobody's turn
    fresh.settle()
    assert fresh.writer.counters.written == 0
    world.stores.pods.remove("ns/p")
    third = World(world.stores, clock=ManualClock(100.0))
    third.settle()
    assert third.writer.counters.written == 1  # the view of node a


def test_a_node_that_comes_back_before_its_view_was_deleted_has_one() -> None:
    world = World()
    world.apply("config", "", {"x": 0})
    world.apply("node", "a", "x")
    world.settle()
    world.apply("config", "", {"y": 0})  # its pool is gone
    world.apply("written", "", None)
    world.apply("config", "", {"x": 0})
    world.settle()
    world.check_writings()


def enqueued(world: World) -> set[str]:
    """The nodes that wait to be reconciled, for the last time."""
    found = set(world.nodes._queue._ready)
    world.nodes._queue._ready.clear()
    return found


def test_a_change_of_the_configuration_costs_a_look_only_at_nodes_that_it_concerns() -> None:
    world = World()
    world.apply("config", "", {"x": 1, "y": 2})
    for node, pool in zip(NODES, ("x", "y"), strict=True):
        world.apply("node", node, pool)
    world.settle()
    enqueued(world)
    for counts, concerned in (({"x": 1, "y": 3}, {"b"}), ({"x": 2, "y": 3}, {"a"}), ({"x": 2}, {"b"})):
        world._config("", counts)
        world.nodes.configure()
        assert enqueued(world) == concerned
    world.settle()
    world._edit("a", {"labels": {}, "annotations": {"simgpu.dev/gpus": "t4:2"}})
    world.look()  # what it wants to write is not written yet
    enqueued(world)
    world._config("", {"x": 2, "y": 1})
    world.nodes.configure()
    assert enqueued(world) == {"a", "b"}


@pytest.mark.parametrize("busy", [True, False])
def test_every_node_saves_its_counters_at_a_time_of_its_own(*, busy: bool) -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    for node in NODES:
        world._node(node, "x")
        if busy:
            world._pod(f"on-{node}", (node, "Running", (1,)))
    world.settle()
    every = SAVE_EVERY / growth(world.fleet.nodes["a"])
    assert (every == SAVE_EVERY) == busy
    saved: dict[str, list[float]] = {node: [] for node in NODES}
    before = {item.metadata.name: item.data["counters.json"] for item in world.nodes.configuration.views()}
    pause = every / 300  # of an hour every second would take long
    while world.clock.now < 2.5 * every:
        world.clock.now += pause
        world.apply("written", "", None)
        for item in world.nodes.configuration.views():
            if item.data["counters.json"] != before[item.metadata.name]:
                before[item.metadata.name] = item.data["counters.json"]
                saved[item.metadata.name.removeprefix("topology-")].append(world.clock.now)
    for times in saved.values():
        assert len(times) in (2, 3)
        assert all(
            after - earlier == pytest.approx(every, abs=4 + 2 * pause) for earlier, after in itertools.pairwise(times)
        )
    assert set(saved["a"]).isdisjoint(saved["b"])


@pytest.mark.parametrize("stepped", [-3600.0, 3600.0, -1e9])
def test_a_wall_clock_that_is_set_holds_up_no_view_and_writes_none_too_often(stepped: float) -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.settle()
    world.clock.skew = stepped
    world.apply("pod", "p", ("a", "Running", (1,)))
    world.settle()
    [view] = world.nodes.configuration.views()
    assert list(publishing.read_previous(view).held) == ["uid-p-a"]
    before = world.writer.counters.written
    for _ in range(10):
        world.settle()
    assert world.writer.counters.written <= before + 1  # the turn of its counters may come


class _Stubborn(Api):
    """An API that rejects deletions at first."""

    rejections = 2

    async def delete(self, resource: Any, name: str, *, namespace: str) -> None:
        if self.rejections:
            self.rejections -= 1
            raise errors.Forbidden(403, "Forbidden", "not now")
        await super().delete(resource, name, namespace=namespace)


@pytest.mark.parametrize("leaves", ["node", "label"])
def test_a_view_whose_deletion_was_given_up_is_deleted_later(leaves: str) -> None:
    world = World()
    world.api.__class__ = _Stubborn
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.settle()
    assert world.nodes.configuration.views()
    if leaves == "node":
        world._node("a", None)
    else:
        world._edit("a", {"labels": {LABEL: None}})
    world.nodes.configure()
    while world.nodes.configuration.views():
        looked_at_again = LOOP.run(world.nodes.reconcile("a")) is not None
        world._written("", None)
        assert looked_at_again or world.nodes._queue._later or not world.nodes.configuration.views()
    assert world.api.rejections == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", [63, 64, 244, 245, 253])
def test_a_node_whose_name_is_long_has_a_view_too(length: int) -> None:
    name = ("a" * 50 + "." + "b" * 300)[:length]
    world = World()
    world.apply("config", "", {"x": 2})
    world._node(name, "x")
    LOOP.run(world.nodes.reconcile(name))
    world._written("", None)
    [view] = world.nodes.configuration.views()
    assert len(view.metadata.name) <= 253
    assert all(len(value) <= 63 for value in view.metadata.labels.values())
    assert publishing.node_of(view) == name
    fresh = World(world.stores)
    fresh.nodes.start()
    assert name in fresh.nodes.unseen
    assert fresh.nodes.describe_node(name) is not None
    fresh.nodes.watch()
    fresh.stores.nodes.remove(name)
    LOOP.run(fresh.nodes.reconcile(name))
    fresh._written("", None)
    assert not fresh.nodes.configuration.views()


def test_counters_go_on_from_what_was_published_and_never_fall() -> None:
    world = World()
    world.apply("config", "", {"x": 1, "y": 0})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    for _ in range(20):
        world.apply("nothing", "", None)
    before = world.fleet.counters(world.fleet.nodes["a"])
    world.settle()
    LOOP.run(world.nodes.save())
    world.apply("written", "", None)
    fresh = World(world.stores)
    fresh.look()
    after = fresh.fleet.counters(fresh.fleet.nodes["a"])
    assert before.keys() == after.keys()
    assert any(value > 0 for values in before.values() for value in values)
    for gpu, values in before.items():
        assert all(new >= old for old, new in zip(values, after[gpu], strict=True))


def test_no_two_nodes_exporters_have_one_address_and_a_restart_changes_none() -> None:
    seen: dict[str, str] = {}
    first, second = "", ""
    for number in range(100_000):
        name = f"node-{number}"
        address = next(candidate_addresses(name, ""))
        if address in seen:
            first, second = seen[address], name
            break
        seen[address] = name
    assert second, "no two names whose first choice is the same"
    fleet = Fleet(seed=1)
    addresses = {name: fleet.address(name) for name in (first, second)}
    assert len(set(addresses.values())) == 2
    restarted = Fleet(seed=1)
    assert {name: restarted.address(name, addresses[name]) for name in (second, first)} == addresses
    restarted.remove(first)
    assert restarted.address("another", addresses[first]) == addresses[first]
    assert restarted.address("broken", "10.evil") != "10.evil"


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [(vocabulary.TOPOLOGY_KEY, "gpuMemory: 1000", "gpuMemory: .inf"), (vocabulary.COUNTERS_KEY, "{", "[" * 100_000)],
)
def test_a_start_goes_on_over_a_view_that_somebody_broke(key: str, old: str, new: str) -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.settle()
    [view] = world.nodes.configuration.views()
    meta = msgspec.structs.replace(view.metadata, resource_version="99999")
    data = {**view.data, key: view.data[key].replace(old, new)}
    world.stores.config_maps.put(views.ConfigMap(metadata=meta, data=data))
    fresh = World(world.stores)
    fresh.apply("broken", "", "nodePools: [")
    fresh.nodes.start()
    fresh.apply("config", "", {"x": 2})
    assert len(fresh.fleet.nodes["a"].cards) == 2


def labelled(world: World, namespace: str, name: str) -> None:
    """A pod on node `a` that calls itself an exporter."""
    meta = world.api.meta(name, namespace=namespace, uid=f"uid-{name}", labels={"app": "nvidia-dcgm-exporter"})
    spec = views.PodSpec(containers=(views.Container(name="main"),), node_name="a")
    world.stores.pods.put(views.Pod(metadata=meta, spec=spec, status=views.PodStatus("Running", pod_ip="10.1.1.1")))


def test_only_a_pod_of_our_own_namespace_names_the_exporter_of_a_node() -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    made_up_one = list(world.fleet.exporters())
    world.nodes.watch()
    queue: WorkQueue[str] = world.nodes._queue
    while len(queue):
        queue.done(LOOP.run(queue.get()))
    labelled(world, "team", "a-forged-one")
    assert not len(queue)
    world.look()
    assert list(world.fleet.exporters()) == made_up_one
    labelled(world, "ns", "exporter")
    assert len(queue) == 1
    world.look()
    assert list(world.fleet.exporters()) == [("a", "exporter", "10.1.1.1:9400")]


def test_a_claim_that_was_made_for_another_node_keeps_no_pod_from_gpus_by_count() -> None:
    """The scheduler could not bind the pod to that node, deleted the claim, and left its name in the pod's status."""
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    [pod] = world.stores.pods
    mapping = views.RequestMapping("main", "nvidia.com/gpu", "container-0-request-0")
    left = views.ExtendedClaimStatus("p-extended-resources-x", (mapping,))
    status = msgspec.structs.replace(pod.status, extended_resource_claim_status=left)
    meta = msgspec.structs.replace(pod.metadata, resource_version="1000")
    world.stores.pods.put(msgspec.structs.replace(pod, metadata=meta, status=status))
    world.settle()
    assert len(world.holders()["a"]) == 1


def test_a_pod_on_a_fake_node_has_no_gpu_that_another_was_given_whatever_it_names() -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    world.settle()
    (held,) = world.holders()["a"].items()
    meta = world.api.meta(
        "claims", namespace="team", uid="uid-claims", creation_timestamp="2020-01-01T00:00:00Z",
        labels={"runai-gpu-group": "x"}, annotations={"runai-gpu": held[0]},
    )  # fmt: skip
    spec = views.PodSpec(containers=(container("main", 1),), node_name="a")
    world.stores.pods.put(views.Pod(metadata=meta, spec=spec, status=views.PodStatus("Running")))
    for controller in (world, World(world.stores)):
        controller.look()
        assert controller.holders()["a"] == dict([held])


def test_counters_never_fall_after_a_kill_though_the_clock_was_set_back() -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    world.settle()
    for _ in range(20):
        world.apply("nothing", "", None)
    (seen,) = world.fleet.counters(world.fleet.nodes["a"]).values()
    fresh = World(world.stores, clock=ManualClock(skew=-3600.0))
    fresh.look()
    (after,) = fresh.fleet.counters(fresh.fleet.nodes["a"]).values()
    assert all(new >= old for old, new in zip(seen, after, strict=True))


def test_counters_never_fall_where_a_clock_that_was_ahead_is_right_again() -> None:
    def controller(stores: FleetStores, now: float, skew: float) -> tuple[World, LeaseTime]:
        made = World(stores, clock=ManualClock(now, skew))
        time = LeaseTime(made.clock.wall, made.clock.steady)
        made.nodes._time = time.now
        return made, time

    def counters(world: World) -> list[float]:
        (found,) = world.fleet.counters(world.fleet.nodes["a"]).values()
        return [*found]

    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    world.settle()
    ahead, time = controller(world.stores, world.clock.now, 3600.0)
    ahead.nodes.start()
    ahead.look()  # and it is killed before it has saved anything
    right, after = controller(world.stores, world.clock.now + 1, 0.0)
    renewed = time.utc_now().isoformat()
    after.follow(views.Lease(metadata=views.ObjectMeta(), spec=views.LeaseSpec(renew_time=renewed)))
    right.nodes.start()
    right.look()
    assert counters(ahead) > counters(world)
    assert all(new >= old for old, new in zip(counters(ahead), counters(right), strict=True))


def test_counters_of_an_idle_node_never_fall_after_two_kills_between_two_saves() -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    world.settle()
    seen: list[float] = []
    for later in (SAVE_EVERY + 100, 2 * SAVE_EVERY):
        fresh = World(world.stores, clock=ManualClock(world.clock.now + later))
        fresh.look()
        (found,) = fresh.fleet.counters(fresh.fleet.nodes["a"]).values()
        assert all(new >= old for old, new in zip(seen, found, strict=bool(seen)))
        for seconds in range(2, 200, 2):  # it runs for a while, and is killed before it has saved anything
            fresh.fleet.step(float(seconds), clock=0.0)
        (found,) = fresh.fleet.counters(fresh.fleet.nodes["a"]).values()
        seen = [*found]


def test_errors_of_a_gpu_are_saved_when_they_occur() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.settle()
    world.apply("edit", "a", {"annotations": {"simgpu.dev/failures": "{unhealthy: [1]}"}})
    world.apply("written", "", None)
    fresh = World(world.stores)
    fresh._edit("a", {"annotations": {"simgpu.dev/failures": None}})
    fresh.settle()
    cards = fresh.fleet.nodes["a"].cards
    assert fresh.fleet.engine.read("uncorrected", [card.number for card in cards]).tolist() == [0.0, 1.0]


def test_each_further_error_of_a_gpu_is_saved_when_it_occurs() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.settle()
    for _ in range(2):
        world.fleet.engine.strike(world.fleet.nodes["a"].cards[1].number, "uncorrected")
        world.apply("nothing", "", None)
        world.nodes.stepped()
        world.look()
        world.apply("written", "", None)
    fresh = World(world.stores)
    fresh.settle()
    cards = fresh.fleet.nodes["a"].cards
    assert fresh.fleet.engine.read("uncorrected", [card.number for card in cards]).tolist() == [0.0, 2.0]


def test_heartbeats_and_saved_counters_are_no_work() -> None:
    world = World()
    meta = world.api.meta("a", labels={LABEL: "p"})
    node = views.Node(metadata=meta, status=views.NodeStatus(capacity={"cpu": "4"}))
    data = {vocabulary.TOPOLOGY_KEY: "gpus: []", vocabulary.COUNTERS_KEY: "{}"}
    view = views.ConfigMap(metadata=world.api.meta("topology-a", namespace="ns"), data=data)
    world.stores.nodes.put(node)
    world.stores.config_maps.put(view)
    queue: WorkQueue[str] = world.nodes._queue
    world.nodes.watch()
    while len(queue):
        queue.done(LOOP.run(queue.get()))

    def newer(old: views.ObjectMeta, **more: Any) -> views.ObjectMeta:
        return msgspec.structs.replace(world.api.meta(old.name, namespace=old.namespace, labels=old.labels), **more)

    beat = views.NodeStatus(capacity={"cpu": "4"}, conditions=(views.Condition(type="Ready", status="True"),))
    world.stores.nodes.put(views.Node(metadata=newer(meta), status=beat))
    saved = {**data, vocabulary.COUNTERS_KEY: '{"time": 1}'}
    world.stores.config_maps.put(views.ConfigMap(metadata=newer(view.metadata), data=saved))
    assert not len(queue)
    world.stores.config_maps.put(
        views.ConfigMap(metadata=newer(view.metadata), data={**saved, vocabulary.TOPOLOGY_KEY: "x"})
    )
    assert len(queue) == 1
    queue.done(LOOP.run(queue.get()))
    world.stores.nodes.put(views.Node(metadata=newer(meta, labels={LABEL: "q"}), status=beat))
    assert len(queue) == 1


def test_a_pod_that_comes_and_goes_before_its_view_is_written_costs_no_write() -> None:
    world = World()
    world.apply("config", "", {"x": 2})
    world.apply("node", "a", "x")
    world.clock.now = 100.0  # nobody's turn
    world.settle()
    before = world.writer.counters.written
    for pod in PODS:
        world.apply("pod", pod, ("a", "Running", (1,)))
        world.apply("pod", pod, None)
    world.settle()
    assert world.writer.counters.written == before


def test_a_pod_that_is_about_to_run_is_looked_at_once() -> None:
    world = World()
    world.nodes.watch()
    queue: WorkQueue[str] = world.nodes._queue

    async def placed_and_running() -> tuple[int, int]:
        world._pod("p", ("a", "Pending", (1,)))
        placed = queue.depth, len(queue)
        world._pod("p", ("a", "Running", (1,)))
        assert placed == (0, 1)
        return queue.depth, len(queue)

    assert LOOP.run(placed_and_running()) == (1, 1)


def _falls_after_a_kill(world: World) -> bool:
    """Whether a counter of the one GPU is lower for a controller that starts from what is saved."""
    (seen,) = world.fleet.counters(world.fleet.nodes["a"]).values()
    fresh = World(world.stores, clock=ManualClock(world.clock.now))
    fresh.look()
    (after,) = fresh.fleet.counters(fresh.fleet.nodes["a"]).values()
    return any(new < old for old, new in zip(seen, after, strict=True))


def test_counters_that_are_saved_between_two_steps_never_fall_after_a_kill() -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    world.settle()
    world.clock.now += 10.0
    world.step()
    world.clock.now += 0.44
    LOOP.run(world.nodes.save())
    world._written("", None)
    world.step()
    assert not _falls_after_a_kill(world)


def test_counters_that_were_resumed_twice_between_two_steps_never_fall() -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    world.settle()
    for _ in range(20):
        world.apply("nothing", "", None)
    second = World(world.stores, clock=ManualClock(world.clock.now))
    second.clock.now += 5.0  # a node is looked at long after the last step, which the next one goes on from
    second.look()
    for _ in range(20):
        second.apply("nothing", "", None)  # and nothing can be saved
    assert not _falls_after_a_kill(second)


def test_counters_of_an_idle_node_that_becomes_busy_never_fall_though_its_controllers_are_killed_unsaved() -> None:
    world = World()
    world.apply("config", "", {"x": 1})
    world.apply("node", "a", "x")
    world.settle()
    now, seen = world.clock.now + 3 * SAVE_EVERY, [0.0]
    for term in (1, 2, 3):
        fresh = World(world.stores, clock=ManualClock(now), term=term)
        if term == 1:
            fresh._pod("p", ("a", "Running", (1,)))
        fresh.look()
        (found,) = fresh.fleet.counters(fresh.fleet.nodes["a"]).values()
        assert all(new >= old for old, new in zip(seen, found, strict=False))
        for _ in range(40):
            fresh.apply("nothing", "", None)  # and nothing can be saved
        (found,) = fresh.fleet.counters(fresh.fleet.nodes["a"]).values()
        now, seen = fresh.clock.now, [*found]


@pytest.mark.parametrize("model", ["a30", "k80", "l4", "rtx-4090"])  # which draw much and little at rest
def test_counters_of_an_idle_node_never_fall_after_a_kill_just_before_its_next_save(model: str) -> None:
    world = World()
    world._edit("a", {"annotations": {"kwok.x-k8s.io/node": "fake", "simgpu.dev/gpus": f"{model}:1"}})
    world.apply("config", "", {"x": 1})
    world.settle()
    LOOP.run(world.nodes.save())
    world._written("", None)
    every = SAVE_EVERY / growth(world.fleet.nodes["a"])
    for _ in range(10):
        world.clock.now += every / 10
        world.step()
        assert not _falls_after_a_kill(world)


def test_a_resumed_counter_allows_for_what_idle_gpus_draw_between_two_saves() -> None:
    hungry = inline.parse("max-1550:1", CATALOG, field="gpus")
    fleet = Fleet(seed=1)
    power = CATALOG.models["max-1550"].power_w
    placed = fleet.place("a", hungry)
    assert placed.idle_share == power.idle / power.max == pytest.approx(0.25)
    assert growth(placed) == pytest.approx(1.1 * placed.idle_share)


def test_a_pod_that_a_limit_of_its_gpu_ends_is_reported_once_and_does_not_start_again() -> None:
    world = World(catalog=models.Catalog({"strict": STRICT}))
    world.apply("topology", "", {"nodePools": {"x": {"gpus": [{"type": "strict", "count": 1}]}}})
    world.apply("node", "a", "x")
    world.apply("pod", "p", ("a", "Running", (1,)))
    failing = {vocabulary.LIMIT_ANNOTATION: "fail"}
    plain = world.stores.pods.get("p", namespace="ns")
    assert plain is not None
    meta = msgspec.structs.replace(plain.metadata, annotations=failing, resource_version="again")
    world.stores.pods.put(msgspec.structs.replace(plain, metadata=meta))
    for _ in range(3):
        world.nodes.stepped()
        assert world.fleet.machine().column("usage").tolist() == [0]
        world.apply("nothing", "", None)
    found = [(item.reason, item.message) for item in world.nodes.configuration._recorder._waiting]
    assert found == [("GpuLimitReached", "container c0: Limit usage reached, terminated")]
    assert not world.writer.settled(Target(resources.PODS, "p", "ns"), None)  # the pod is to fail, as it asks for
