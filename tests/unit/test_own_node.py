"""What an agent makes of its node's annotations, and when it writes about the node."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.controllers.node_views import SAVE_EVERY
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.dra import grants
from simgpu.kube import views
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.users import CpuSource, User
from simgpu.pods.holding import Held
from simgpu.topology import failures, mig_files, pools
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import share

CATALOG = models.load()
BEFORE = pools.NodeGpus(
    (pools.NodeGpu(CATALOG.models["h200"]),) * 2, failures=failures.Failures(unhealthy=(1,)),
    mig=mig_files.MigSettings("mixed"),
)  # fmt: skip
TOPOLOGY = "nodePools: {x: {gpus: [{type: h200, count: 2}]}}"


class Cluster:
    """A node's agent over objects; what it writes is kept."""

    def __init__(self, topology: str, **annotations: str) -> None:
        stores = NodeStores(Store(), Store(), Store(), Store())
        labels = {vocabulary.POOL_LABEL: "x"}
        meta = views.ObjectMeta(name="n", uid="u", resource_version="1", labels=labels, annotations=annotations)
        stores.nodes.put(views.Node(metadata=meta))
        named = views.ObjectMeta(name="topology", namespace="ns", resource_version="1")
        stores.config_maps.put(views.ConfigMap(metadata=named, data={"topology.yml": topology}))
        self.config_maps, self.pods, self.views = stores.config_maps, stores.pods, stores.views
        self.written: list[dict[str, Any]] = []
        client: Any = self
        self.writer = Writer(client, manager="test")
        self.recorder = Recorder(client, component="test")
        self.clock = ManualClock()
        self.node = OwnNode(
            "n", stores, self.writer, self.recorder, namespace="ns", catalog=CATALOG, clock=self.clock, before=BEFORE
        )
        self.node.configure()

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(item.reason, item.message) for item in self.recorder._waiting]

    async def patch(self, _resource: Any, name: str, data: bytes, **_more: Any) -> bytes:
        if name == "topology-n":
            document = msgspec.json.decode(data)
            self.written.append(document)
            meta = views.ObjectMeta(name=name, namespace="ns", resource_version="2")
            self.config_maps.put(views.ConfigMap(metadata=meta, data=document["data"]))
        return msgspec.json.encode({"metadata": {"name": name, "resourceVersion": "7"}})

    async def publish(self, counters: int) -> float:
        spec = self.node.spec()
        again = self.node.publish(spec, ["g0", "g1"][: len(spec.gpus)], {}, lambda: {"g0": [counters]})
        writing = asyncio.create_task(self.writer.run())
        await self.writer.drained()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        return again


@pytest.mark.parametrize(
    "text", ["{after: 2024-13-45}", "[" * 3000, "explode: true", "flap: 0.1", "delay: 1" + " " * 4089]
)
def test_failures_that_make_no_sense_are_an_event_and_those_of_the_pool_hold(text: str) -> None:
    cluster = Cluster(TOPOLOGY, **{vocabulary.FAILURES_ANNOTATION: text})
    for _ in range(2):
        assert cluster.node.failures(BEFORE) == BEFORE.failures
    [(reason, message)] = cluster.events
    assert reason == "InvalidFailures"
    assert message.startswith(f"{vocabulary.FAILURES_ANNOTATION}: ")


def test_the_pool_of_the_node_is_that_of_its_label() -> None:
    assert Cluster(TOPOLOGY).node.pool == "x"
    assert Cluster("nodePoolLabelKey: example.com/pool\n" + TOPOLOGY).node.pool == ""


def test_gpus_of_an_annotation_that_is_too_long_are_an_event_and_those_from_before_stay() -> None:
    cluster = Cluster(TOPOLOGY, **{vocabulary.GPUS_ANNOTATION: "h200:1," * 1000})
    assert cluster.node.spec() == BEFORE
    [(reason, message)] = cluster.events
    assert reason == "InvalidGpus"
    assert message.startswith(f"{vocabulary.GPUS_ANNOTATION}: 'h200:1,")
    assert message.endswith("has 7000 characters; at most 4096 are allowed")


async def test_a_node_whose_counters_somebody_broke_is_published_again() -> None:
    cluster = Cluster(TOPOLOGY)
    meta = views.ObjectMeta(name="topology-n", namespace="ns", resource_version="1")
    cluster.views.put(views.ConfigMap(metadata=meta, data={"topology.yml": "gpus: []", "counters.json": "[" * 100_000}))
    await cluster.publish(1)
    assert len(cluster.written) == 1


def test_what_the_node_had_stays_where_the_topology_cannot_be_read() -> None:
    assert Cluster(TOPOLOGY).node.spec() != BEFORE
    assert Cluster("nodePools: {x: {gpus: 5}}").node.spec() == BEFORE


def starting(running: bool) -> views.Pod:
    """A pod whose init container has a GPU."""
    wish = {vocabulary.SOURCE_ANNOTATION: "cpu"}
    version = "2" if running else "1"
    meta = views.ObjectMeta(name="p", namespace="team", uid="uid-p", resource_version=version, annotations=wish)
    spec = views.PodSpec(
        containers=(views.Container(name="main"),), init_containers=(views.Container(name="first"),), node_name="n"
    )
    state = views.ContainerState(running={}) if running else views.ContainerState()
    status = views.ContainerStatus("first", container_id="containerd://3b", state=state)
    return views.Pod(
        metadata=meta, spec=spec, status=views.PodStatus(phase="Pending", init_container_statuses=(status,))
    )


def test_an_init_container_that_runs_keeps_its_gpu_busy() -> None:
    cluster = Cluster(TOPOLOGY)
    held = [Held("first", ("g0",), uid="uid-p")]
    found = []
    for running in (False, True):
        cluster.pods.put(starting(running))
        users = cluster.node.users(BEFORE, held, {"g0": 1000}, reservations="", before={})
        found.append([(user.pod.container, user.utilization.high, user.cpu) for user in users.get("g0", ())])
    assert found == [[], [("first", 100, CpuSource("uid-p", "3b", 1.0))]]


def test_an_inference_pod_that_follows_its_processors_does_not_follow_its_requests_too() -> None:
    labels, wish = {"workloadKind": "InferenceWorkload"}, {vocabulary.SOURCE_ANNOTATION: "cpu"}
    found = []
    for wishes in ({}, wish):
        cluster = Cluster(TOPOLOGY)
        pod = sharing("p")
        meta = msgspec.structs.replace(pod.metadata, labels=labels, annotations=wishes)
        cluster.pods.put(msgspec.structs.replace(pod, metadata=meta))
        held = [Held("main", ("g0",), uid="uid-p")]
        [user] = cluster.node.users(BEFORE, held, {"g0": 1000}, reservations="", before={})["g0"]
        found.append((user.cpu is not None, user.full_load))
    assert found == [(False, 100.0), (True, 0.0)]


def sharing(name: str) -> views.Pod:
    """A pod of the same second as all others."""
    meta = views.ObjectMeta(name=name, namespace="team", uid=f"uid-{name}", creation_timestamp="2024-01-01T00:00:00Z")
    spec = views.PodSpec(containers=(views.Container(name="main"),), node_name="n")
    return views.Pod(metadata=meta, spec=spec, status=views.PodStatus(phase="Running"))


def test_of_pods_of_one_second_the_one_that_was_seen_with_a_gpu_first_is_named() -> None:
    cluster = Cluster(TOPOLOGY)
    before: dict[str, tuple[User, ...]] = {}
    named = []
    for holding in (["z"], ["z", "a"], ["a"], ["m", "a"]):
        for name in holding:
            cluster.pods.put(sharing(name))
        held = [Held("main", (f"g0::{place}",), uid=f"uid-{name}") for place, name in enumerate(sorted(holding))]
        before = cluster.node.users(BEFORE, held, {"g0": 1000}, reservations="", before=before)
        named.append([user.pod.name for user in before["g0"]])
    assert named == [["z"], ["z", "a"], ["a"], ["a", "m"]]


def test_after_a_restart_of_the_agent_the_same_pod_is_named() -> None:
    cluster = Cluster(TOPOLOGY)
    for name in ("a", "z"):  # as a list of all pods has them
        cluster.pods.put(sharing(name))
    held = [Held("main", (f"g0::{place}",), uid=f"uid-{name}") for place, name in enumerate("az")]
    before = {"g0": (share("z"), share("a"))}
    users = cluster.node.users(BEFORE, held, {"g0": 1000}, reservations="", before=before)
    assert [user.pod.name for user in users["g0"]] == ["z", "a"]


async def test_the_view_is_written_whatever_is_done_to_the_clock() -> None:
    cluster = Cluster(TOPOLOGY)
    await cluster.publish(1)
    assert len(cluster.written) == 1
    cluster.clock.now += SAVE_EVERY + 1
    cluster.clock.skew = -3600
    assert 0 < await cluster.publish(2) <= SAVE_EVERY
    assert len(cluster.written) == 2


def claiming(name: str, *containers: str, init: str = "", running: bool = False) -> views.Pod:
    """A pod whose containers use the claim `c`."""
    body = {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {
            "nodeName": "n", "resourceClaims": [{"name": "mine", "resourceClaimName": "c"}],
            "containers": [{"name": item, "resources": {"claims": [{"name": "mine"}]}} for item in containers],
            "initContainers": [{"name": init, "resources": {"claims": [{"name": "mine"}]}}] if init else [],
        },
        "status": {
            "phase": "Pending" if init and running else "Running",
            "initContainerStatuses": [{"name": init, "state": {"running": {}} if running else {}}] if init else [],
        },
    }  # fmt: skip
    return msgspec.convert(body, views.Pod)


def claim_users(
    *pods: views.Pod, admin: bool = False, memory_mib: int | None = None
) -> list[tuple[str, str, int, int]]:
    """Pod, container, memory and utilisation of each user of a GPU that a claim has."""
    cluster = Cluster(TOPOLOGY)
    for pod in pods:
        cluster.pods.put(pod)
    device = grants.GrantedDevice("gpu", "n", "gpu-0", "g0", memory_mib=memory_mib, admin=admin)
    claim = grants.PreparedClaim("uid-c", "team", "c", (device,), tuple(pod.metadata.uid for pod in pods))
    users = cluster.node.users(BEFORE, [], {"g0": 1000}, reservations="", before={}, claims=[claim]).get("g0", ())
    return [(user.pod.name, user.pod.container, user.memory_mib, user.utilization.high) for user in users]


def test_containers_and_pods_on_one_claim_are_users_that_divide_its_memory() -> None:
    found = claim_users(claiming("p", "a", "b"), claiming("q", "main"))
    assert found == [("p", "a", 333, 100), ("p", "b", 333, 100), ("q", "main", 333, 100)]
    assert claim_users(claiming("p", "a", "b"), memory_mib=500) == [("p", "a", 250, 100), ("p", "b", 250, 100)]
    assert claim_users(claiming("p", "a", "b"), memory_mib=0) == claim_users(claiming("p", "a", "b"))


def test_an_init_container_has_a_claims_gpu_alone_while_it_runs() -> None:
    assert claim_users(claiming("p", "main", init="first", running=True)) == [("p", "first", 1000, 100)]
    assert claim_users(claiming("p", "main", init="first")) == [("p", "main", 1000, 100)]


def test_administrative_access_uses_nothing() -> None:
    assert claim_users(claiming("p", "main"), admin=True) == [("p", "main", 0, 0)]
