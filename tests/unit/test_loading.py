"""Events about what pods' annotations say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from simgpu.catalog import models
from simgpu.controllers.configuring import Configuration
from simgpu.controllers.loading import PodLoads
from simgpu.kube import views
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.users import ALL, NONE, PodRef, Range, User
from simgpu.pods.holding import Holder

CATALOG = models.load()
REF = PodRef("p", "ns", "main", "u")
LIMITED = json.dumps({"Profile": [{"Load": 5}], "Limits": {"runtime": 1}})


class Events:
    """A recorder that keeps reasons and messages."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def record(self, _subject: object, _kind: str, reason: str, message: str) -> None:
        self.found.append((reason, message))


class World:
    def __init__(self) -> None:
        self.events = Events()
        recorder: Any = self.events
        client: Any = None
        configuration = Configuration(Store(), recorder, namespace="ns", catalog=CATALOG)
        self.writer = Writer(client, manager="test")
        self.loads = PodLoads(configuration, self.writer)


@pytest.fixture
def world() -> World:
    return World()


def pod(labels: dict[str, str] | None = None, name: str = "p", **annotations: str) -> views.Pod:
    named = {f"simgpu.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return views.Pod(
        metadata=views.ObjectMeta(name=name, namespace="ns", uid="u", annotations=named, labels=labels or {}),
        spec=views.PodSpec(containers=(views.Container(name="main"),), node_name="n"),
        status=views.PodStatus(phase="Running", start_time="2026-01-01T00:00:00Z"),
    )


def test_a_bad_value_is_reported_once_however_often_it_is_read_and_the_default_stays(world: World) -> None:
    bad = pod(shape="gaming", utilization_timeline="80", gpu_memory="lots", activity_profile="x")
    for _ in range(3):
        assert world.loads.of(bad).of("main").utilization == ALL
    assert [reason for reason, _ in world.events.found] == [
        "InvalidActivityProfile", "InvalidTimeline", "InvalidShape", "InvalidGpuMemory",
    ]  # fmt: skip


def test_more_memory_than_there_is_is_reported_once(world: World) -> None:
    greedy = pod(gpu_memory="20Gi")
    for _ in range(3):
        user = world.loads.holder_user(Holder(greedy, "main", 0.5), 20000, works=True)
        assert user.memory_mib == 10000
    assert [reason for reason, _ in world.events.found] == ["GpuMemoryExceeded"]


def test_a_pod_that_only_names_a_reservation_takes_mebibytes(world: World) -> None:
    sharing = pod()
    sharing.metadata.annotations["gpu-memory"] = "500"
    assert world.loads.holder_user(Holder(sharing, "main", claims=True), 20000, works=True).memory_mib == 500
    sharing.metadata.annotations["gpu-memory"] = "half"
    for _ in range(2):
        assert world.loads.holder_user(Holder(sharing, "main", claims=True), 20000, works=True).memory_mib == 20000
    assert [reason for reason, _ in world.events.found] == ["InvalidSharedMemory"]


def test_requests_drive_an_inference_pod_unless_it_says_something_else(world: World) -> None:
    kind = {"workloadKind": "InferenceWorkload"}
    assert world.loads.of(pod(kind)).of("main").full_load == 100
    assert world.loads.of(pod(kind, requests_at_full_load="20")).of("main").full_load == 20
    assert world.loads.of(pod(kind, shape="memcopy")).of("main").full_load == 0
    busy = pod(kind)
    busy.metadata.annotations["run.ai/simulated-gpu-utilization"] = "30"
    assert world.loads.of(busy).of("main") == world.loads.of(busy).of("main")
    assert (world.loads.of(busy).of("main").utilization, world.loads.of(busy).full_load) == (Range(30, 30), 0)
    assert world.loads.of(pod(kind, requests_at_full_load="0")).of("main").full_load == 100
    assert [reason for reason, _ in world.events.found] == ["InvalidRequestsAtFullLoad"]


def test_a_pod_that_only_holds_gpus_is_idle(world: World) -> None:
    assert world.loads.of(pod(name="runai-idle-gpu-1")).of("main").utilization == NONE


def test_a_crossed_limit_is_reported_and_only_on_request_the_pod_fails(world: World) -> None:
    pods: Store[views.Pod] = Store()
    user = User(REF)
    pods.put(pod(activity_profile=LIMITED))
    world.loads.report_ended(pods, user, "Limit runtime reached")
    assert world.events.found == [("GpuLimitReached", "container main: Limit runtime reached")]
    assert world.writer.pending == 0
    pods = Store()
    pods.put(pod(activity_profile=LIMITED, on_limit="fail"))
    world.loads.report_ended(pods, user, "Limit runtime reached")
    assert world.writer.pending == 1
    world.loads.report_ended(pods, User(PodRef("p", "ns", "main", "another")), "Limit runtime reached")
    world.loads.report_ended(Store(), user, "Limit runtime reached")
    assert len(world.events.found) == 1
