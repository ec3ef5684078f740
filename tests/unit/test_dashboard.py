"""The event stream's parts: cells as bytes, viewers that fall behind, the page's files."""

from __future__ import annotations

import asyncio
import base64
import functools
import re
from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.dashboard import (
    channels,
    encoding,
    files,
    fleet_channel,
    hub,
    openapi,
    queries,
    reading,
    sources,
    waiting_pods,
)
from simgpu.dashboard.channels import StreamMessage
from simgpu.dashboard.frames import POOLS_SECONDS, FleetFrame, FrameKeeper
from simgpu.errors import InputError
from simgpu.kube.errors import ServerError
from simgpu.kube.views import Pod, PodStatus
from simgpu.machines import documents
from simgpu.machines.box import Box
from simgpu.machines.fleet import Fleet, pod_usage
from simgpu.machines.health import DeviceFailure
from simgpu.machines.machine import Machine
from simgpu.machines.users import PodRef, User
from simgpu.topology import inline
from simgpu.topology.devices import BoxConfig, GpuEntry, StaticMetrics, build
from tests.fixtures.dashboards import ServedFleet, divided_fleet, places


@given(st.sets(st.integers(0, 3000), max_size=200), st.integers(1, 255))
def test_changed_cells_are_found_again_from_their_bytes(changed: set[int], value: int) -> None:
    before = np.zeros(3001, np.uint8)
    after = before.copy()
    after[sorted(changed)] = value
    found = encoding.changes(before, after)
    if not changed:
        assert found is None
        return
    assert found is not None
    assert places(found[0]) == sorted(changed)
    assert base64.b64decode(found[1]) == bytes([value]) * len(changed)


class Fixed:
    """A channel whose snapshots are numbered."""

    def __init__(self) -> None:
        self.snapshots = 0

    def change(self, frame: FleetFrame) -> StreamMessage | None:
        raise NotImplementedError

    def snapshot(self) -> StreamMessage | None:
        self.snapshots += 1
        return StreamMessage(("cells", self.snapshots))


async def test_a_viewer_that_falls_behind_gets_one_new_snapshot_and_holds_no_more_than_a_few_messages() -> None:
    viewer = hub.Viewer(Fixed())
    assert [item.text for item in await viewer.next()] == [b"event: cells\ndata: 1\n\n"]
    viewer.offer(StreamMessage(("change", 1)))
    viewer.offer(StreamMessage(("change", 2)))
    assert len(await viewer.next()) == 2
    for number in range(1000):
        viewer.offer(StreamMessage(("change", number)))
        assert len(viewer._waiting) <= hub._MAX_WAITING
    assert [item.text for item in await viewer.next()] == [b"event: cells\ndata: 2\n\n"]
    viewer.offer(StreamMessage(("change", 3)))
    assert [item.text for item in await viewer.next()] == [b"event: change\ndata: 3\n\n"]


class Failing(Fixed):
    """A channel that fails at its second frame."""

    def change(self, frame: FleetFrame) -> StreamMessage | None:  # noqa: ARG002 - as all have it
        if self.snapshots:
            raise ZeroDivisionError
        return self.snapshot()


async def test_a_view_that_fails_ends_its_own_streams_and_others_go_on() -> None:
    fleet = ServedFleet(2)
    fleet.step()
    viewers = fleet.dashboard.hub
    lost = viewers.join("failing", Failing)
    shown = viewers.join("fleet", lambda: fleet_channel.FleetChannel("power", pool="", model=""))
    for expected in (b"event: layout", b"event: change", b"event: change"):
        message, *_ = await shown.next()
        assert message.text.startswith(expected)
        fleet.step()
        viewers.tick()
        assert lost.closed
    assert viewers.join("failing", Failing).behind
    viewers.leave("failing", lost)
    assert viewers.viewers == 2
    fleet.dashboard.close()


async def test_a_step_is_sent_once_also_after_a_viewer_has_joined() -> None:
    fleet = ServedFleet(2)
    fleet.step()
    viewers = fleet.dashboard.hub
    read = functools.partial(reading.gpu_detail, fleet.dashboard._source, node="training-0000", index=0)
    channel = channels.GpuChannel(read)
    viewer = viewers.join("gpu", lambda: channel)
    await viewer.next()
    viewers.tick()
    assert not viewer._waiting
    assert len(channel._rows) == 1
    fleet.step()
    viewers.tick()
    viewers.tick()
    assert len(viewer._waiting) == 1
    assert len(channel._rows) == 2
    fleet.dashboard.close()


def test_who_has_the_gpus_of_a_box_is_read_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(build(BoxConfig((GpuEntry("h200", 50),)), models.load(), node="n"), seed=1, hostname="n")
    wanted = documents.read(
        {"Name": "all", "Profile": [{"Load": 50, "Seconds": 0}], "Devices": [str(at) for at in range(50)]}
    )
    box.admit(wanted.profile, wanted.devices, pod=PodRef("p", "team", "main", "u"))
    source, calls, places = sources.BoxSource(lambda: box, role="exporter"), list[int](), box.workload_places

    def counted() -> Iterator[tuple[int, int | None, PodRef]]:
        calls.append(box.steps)
        return places()

    monkeypatch.setattr(box, "workload_places", counted)
    for step in (1, 2):
        box.step(float(step), clock=float(step))
        frame = FrameKeeper(source).frame()
        assert frame is not None
        detail = reading.node_detail(source, frame, "n")
        assert detail is not None
        assert [gpu.owners[0].pod for gpu in detail.gpus] == ["p"] * 50
        assert [(pod.name, pod.gpus) for pod in detail.pods] == [("p", 50)]
        assert len(calls) == step


class SlowToAnswer(sources.FleetSource):
    """A source whose API server is scripted: the pods of each answer, or None for one that never comes."""

    def __init__(self, answers: list[Sequence[Pod] | None]) -> None:
        super().__init__(lambda: None)
        self._answers = answers

    async def pending(self) -> Sequence[Pod]:
        answer = self._answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if not answer:
            raise ServerError(500, "", "down")
        return answer


async def test_pending_pods_are_those_of_the_last_answer_until_it_is_too_old() -> None:
    now, pods = 100.0, ServedFleet(2).pending
    waiting = waiting_pods.WaitingPods(SlowToAnswer([pods, (), None]), clock=lambda: now)
    assert await waiting.current() == pods
    now += waiting_pods.EVERY_SECONDS
    assert await waiting.current() == pods
    now += waiting_pods.EVERY_SECONDS
    assert await waiting.current(wait_seconds=0) == pods
    now += waiting_pods.KEPT_SECONDS
    assert await waiting.current(wait_seconds=0) == ()
    waiting.close()


def test_a_pod_is_listed_once_and_by_the_phase_that_it_is_shown_in() -> None:
    fleet = ServedFleet(10)
    fleet.step(1.0)
    source = fleet.dashboard._source
    frame = FrameKeeper(source).frame()
    assert frame is not None
    before = reading.pods(source, frame, (), {"phase": "Running"}, limit=50, offset=0)[1]
    name = f"{before[0].namespace}/{before[0].name}"
    starting = msgspec.structs.replace(fleet._pods[name], status=PodStatus("Pending"))
    fleet._pods[name] = starting
    for phase, expected in (("Pending", 1), ("Running", len(before) - 1), ("", len(before))):
        total, shown = reading.pods(source, frame, [starting], {"phase": phase}, limit=50, offset=0)
        assert total == len(shown) == expected
        assert {pod.phase for pod in shown} == ({phase} if phase else {"Pending", "Running"})


def test_a_gpu_that_claims_divide_keeps_its_place_and_has_the_first_of_its_pods_as_owner() -> None:
    fleet = Fleet(seed=1)
    node = fleet.place("n", inline.parse("h200:2", models.load(), field=""))
    source = sources.FleetSource(lambda: fleet)
    keeper = FrameKeeper(source)
    fleet.step(1.0, clock=1.0)
    before = keeper.frame()
    fleet.divide(node, {node.ids[1]: (("3g.71gb", 0), ("1g.18gb", 4))})
    users = [User(PodRef(name, "team", "main", name), part=number) for name, number in (("p", 1), ("q", 11))]
    fleet.use(node, {node.ids[1]: tuple(users)})
    fleet.step(2.0, clock=2.0)
    frame = keeper.frame()
    assert frame is not None
    assert before is not None
    assert frame.layout is before.layout  # nothing is sent anew but what changed
    assert frame.owners == {1: users[0].pod}
    assert frame.totals().allocated == 1
    detail = reading.node_detail(source, frame, "n")
    assert detail is not None
    assert [item.profile for item in detail.instances[node.ids[1]]] == ["3g.71gb", "1g.18gb"]
    assert [owner.pod for owner in detail.gpus[1].owners] == ["p", "q"]
    assert [pod.name for pod in detail.pods] == ["p", "q"]
    fleet.place("m", node.spec)
    assert keeper.frame() is not None
    assert keeper.frame().layout is not frame.layout  # type: ignore[union-attr]


def test_every_pod_with_a_part_of_a_gpu_is_found_by_name_and_namespace() -> None:
    _, source = divided_fleet()
    frame = FrameKeeper(source).frame()
    assert frame is not None
    for query in ({"q": "team/p"}, {"q": "others/q"}, {"namespace": "team"}, {"namespace": "others"}):
        total, shown = reading.gpus(source, frame, query, limit=10, offset=0)
        assert (total, [gpu.index for gpu in shown]) == (1, [1]), query
    found = reading.search(source, frame, {"q": "others", "pool": "", "model": ""})
    assert (found.total, places(found.places), found.hits[0].name) == (1, [1], "others/q")


def test_a_pod_with_several_instances_is_as_busy_as_they_are_on_a_node_and_in_a_fleet() -> None:
    _, of_fleet = divided_fleet()
    (device,) = build(BoxConfig((GpuEntry("h200", 1, mig=("3g.71gb", "1g.18gb", "1g.18gb")),)), models.load(), node="n")
    box = Box([device], seed=1, hostname="n")
    for name, number in (("p", 0), ("p", 1), ("q", 2)):
        load = documents.read(
            {"Name": name, "Profile": [{"Load": 40, "Seconds": 0}], "Devices": [box.places()[number]]}
        )
        box.admit(load.profile, load.devices, pod=PodRef(name, "team", f"c{number}", name))
    alone = documents.read({"Name": "alone", "Profile": [{"Load": 30, "Seconds": 0}], "Devices": [box.places()[2]]})
    box.admit(alone.profile, alone.devices)
    for now in (1.0, 2.0):
        box.step(now, clock=now)
    shown = {}
    for source in (of_fleet, sources.BoxSource(lambda: box, role="agent")):
        frame = FrameKeeper(source).frame()
        assert frame is not None
        shown[source.role] = reading.pods(source, frame, (), {}, limit=10, offset=0)[1]
    assert {(pod.name, pod.gpus, pod.instances) for pod in shown["controller"]} == {("p", 1, 2), ("q", 1, 1)}
    assert {pod.utilization for pod in shown["controller"]} == {40.0}
    found = {pod.name: pod for pod in shown["agent"]}
    assert (found["p"].gpus, found["p"].instances) == (1, 2)
    assert found["p"].utilization == pytest.approx(40, abs=2)
    assert (found["q"].instances, found["alone"].instances) == (1, 1)
    assert found["alone"].utilization == pytest.approx(70, abs=4)  # what the instance does


def test_a_node_that_moves_to_another_pool_with_the_same_gpus_is_shown_there_soon() -> None:
    fleet, now, reads = ServedFleet(4), 100.0, list[str]()

    def pool_of(node: str) -> str:
        reads.append(node)
        return fleet._pool[node]

    source = sources.FleetSource(lambda: fleet.fleet, sources.ClusterFacts(pool_of=pool_of))
    keeper = FrameKeeper(source, clock=lambda: now)

    def shown() -> FleetFrame:
        fleet.step()
        frame = keeper.frame()
        assert frame is not None
        return frame

    before = shown()
    assert reading.nodes(source, before, {"pool": "spare"}, limit=9, offset=0)[0] == 0
    fleet._pool["training-0001"] = "spare"
    reads.clear()
    for _ in range(5):
        assert shown().layout is before.layout
    assert not reads  # there may be thousands of nodes
    now += POOLS_SECONDS
    after = shown()
    assert after.layout is not before.layout  # viewers get it
    assert [node.name for node in reading.nodes(source, after, {"pool": "spare"}, limit=9, offset=0)[1]] == [
        "training-0001"
    ]
    now += POOLS_SECONDS
    assert shown().layout is after.layout


def test_a_lost_gpu_and_its_instances_do_nothing() -> None:
    fleet, source = divided_fleet()
    keeper = FrameKeeper(source)
    before = keeper.frame()
    assert before is not None
    energy, busy = before.totals().energy_j, before.totals().busy
    fleet.fail(fleet.nodes["n"], {1: DeviceFailure.LOST})
    fleet.step(3.0, clock=3.0)
    frame = keeper.frame()
    assert frame is not None
    node = reading.node_detail(source, frame, "n")
    assert node is not None
    assert (busy, frame.totals().busy, node.summary.busy) == (1, 0, 0)
    assert node.summary.power_w == node.gpus[0].power_w == pytest.approx(frame.totals().power_w, abs=0.1)
    assert frame.totals().energy_j >= energy
    assert {(item.utilization, item.memory_used_mib) for item in node.instances[node.gpus[1].id]} == {(0.0, 0.0)}


def test_a_gpu_with_static_metrics_and_no_pod_is_free() -> None:
    (device,) = build(BoxConfig((GpuEntry("h200", 1),)), models.load(), node="n")
    box = Box([msgspec.structs.replace(device, static=StaticMetrics(40.0, 2000.0))], seed=1, hostname="n")
    box.use({})
    for now in (1.0, 2.0):
        box.step(now, clock=now)
    source = sources.BoxSource(lambda: box, role="agent")
    frame = FrameKeeper(source).frame()
    assert frame is not None
    detail = reading.node_detail(source, frame, "n")
    assert detail is not None
    assert detail.gpus[0].utilization == 40.0
    assert (detail.gpus[0].owners, detail.summary.allocated, detail.pods) == ([], 0, [])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": "0"}, "limit"), ({"limit": "1001"}, "limit"), ({"limit": "ten"}, "limit"), ({"limit": ""}, "limit"),
        ({"limit": "٣"}, "limit"), ({"offset": "-1"}, "offset"), ({"offset": "9" * 40}, "offset"),
        ({"health": "fine"}, "health"), ({"q": "x" * 254}, "q"), ({"nodes": "a"}, "nodes"),
    ],
)  # fmt: skip
def test_an_invalid_query_is_rejected_by_the_name_of_its_parameter(query: dict[str, str], field: str) -> None:
    known = next(path for path in openapi.PATHS if path.name == "gpus").parameters
    with pytest.raises(InputError) as caught:
        queries.read(query, known)
    assert caught.value.field == field


def test_the_page_loads_nothing_from_outside_and_makes_no_markup_from_text() -> None:
    for name, file in files.load().items():
        text = file.plain.decode()
        assert not re.search(r"https?://(?!www\.w3\.org)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style=|onclick=", text), (
            name
        )


def test_the_page_is_small() -> None:
    assert sum(len(file.packed) for file in files.load().values()) < 300_000


def test_what_pods_use_is_read_once_for_all_that_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, calls = ServedFleet(10), list[int]()
    fleet.step(1.0)
    source = fleet.dashboard._source
    frame = FrameKeeper(source).frame()
    assert frame is not None

    def counted(machine: Machine, places: Collection[int]) -> Iterator[tuple[str, int, float, float]]:
        calls.append(len(places))
        return pod_usage(machine, places)

    monkeypatch.setattr(sources, "pod_usage", counted)
    _, shown = reading.pods(source, frame, (), {}, limit=50, offset=0)
    assert len(calls) == 1
    assert calls[0] == sum(pod.gpus for pod in shown) > 10
    alone = {uid: memory for uid, _, _, memory in pod_usage(frame.machine)}
    uid = {(pod.namespace, pod.name): pod.uid for pod in source.pod_places(frame.machine)}
    assert all(pod.memory_used_mib == round(pod.gpus * alone[uid[pod.namespace, pod.name]] / 2**20, 1) for pod in shown)
