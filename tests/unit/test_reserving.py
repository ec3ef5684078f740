"""GPUs that Run:ai's reservation pods hold, and the pods that share them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.kube import views
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.users import User
from simgpu.pods import reserving
from simgpu.pods.holding import Held, Holder
from simgpu.topology import pools, sharing
from tests.fixtures.clocks import ManualClock

CATALOG = models.load()
RESERVATIONS = "runai-reservation"


def pod(
    name: str, *, namespace: str = "team", group: str = "", phase: str = "Running", **annotations: str
) -> views.Pod:
    named = {
        "index": vocabulary.RUNAI_INDEX,
        "reserved": vocabulary.RUNAI_RESERVED,
        "fraction": vocabulary.FRACTION_ANNOTATION,
    }
    meta = views.ObjectMeta(
        name=name, namespace=namespace, uid=f"uid-{name}", resource_version="1",
        labels={vocabulary.RUNAI_GROUP: group} if group else {},
        annotations={named.get(key, key): value for key, value in annotations.items()},
    )  # fmt: skip
    spec = views.PodSpec(containers=(views.Container(name="main"),), node_name="n")
    return views.Pod(metadata=meta, spec=spec, status=views.PodStatus(phase=phase))


def reservation(name: str, **more: str) -> views.Pod:
    return pod(name, namespace=RESERVATIONS, **more)


def lent(pods: list[views.Pod], **held: str) -> dict[str, list[str]]:
    """Names of those that have each GPU, from the name of the pod that the kubelet gave it to."""
    by_name = {item.metadata.name: item for item in pods}
    holders = {gpu: (Holder(by_name[name], "main"),) for gpu, name in held.items()}
    found = reserving.lend(pods, holders, namespace=RESERVATIONS)
    return {gpu: [item.pod.metadata.name for item in items] for gpu, items in found.items()}


def test_pods_of_a_group_share_the_gpu_of_its_reservation() -> None:
    pods = [pod("a", group="x"), pod("b", group="x"), pod("c", group="y"), reservation("r", group="x")]
    assert lent(pods, g0="r") == {"g0": ["r", "a", "b"]}


def test_a_reservation_comes_before_those_that_have_the_gpu_by_time_slicing() -> None:
    pods = [pod("a"), reservation("r", group="x"), pod("b", group="x")]
    holders = {"g0": (Holder(pods[0], "main", 0.5), Holder(pods[1], "main", 0.5))}
    found = reserving.lend(pods, holders, namespace=RESERVATIONS)
    assert [item.pod.metadata.name for item in found["g0"]] == ["r", "a", "b"]


def test_older_pods_name_the_index_that_a_reservation_says() -> None:
    pods = [reservation("r", reserved="0"), reservation("s", reserved="1"), pod("a", index="1")]
    assert lent(pods, g4="r", g5="s") == {"g4": ["r"], "g5": ["s", "a"]}


def test_an_index_that_no_reservation_says_leaves_the_group() -> None:
    pods = [reservation("r", reserved="GPU-1", group="x"), pod("a", index="3", group="x")]
    assert lent(pods, g0="r") == {"g0": ["r", "a"]}


def test_a_pod_shares_the_first_gpu_of_one_reservation() -> None:
    pods = [reservation("r", group="x"), reservation("s", group="x"), pod("a", group="x")]
    assert lent(pods, g0="s", g1="s", g2="r") == {"g0": ["s", "a"], "g1": ["s"], "g2": ["r"]}


def test_nobody_shares_without_a_reservation_or_after_the_end() -> None:
    ended = pod("a", group="x", phase="Succeeded")
    assert lent([ended, pod("b"), reservation("r", group="x")], g0="r") == {"g0": ["r"]}
    assert lent([pod("a", group="x"), pod("whole")], g0="whole") == {"g0": ["whole"]}
    assert lent([reservation("r", group="x"), reservation("s", group="x")], g0="r") == {"g0": ["r"]}


def test_the_id_of_a_gpu_which_all_can_read_gives_nobody_a_share_of_it() -> None:
    assert lent([reservation("r", reserved="GPU-1"), pod("a", index="GPU-1")], g0="r") == {"g0": ["r"]}


names, indices = st.sampled_from(["", "x", "y"]), st.sampled_from(["", "0", "1"])


@given(st.lists(st.tuples(indices, names), max_size=6), st.lists(st.tuples(indices, names), max_size=4))
def test_each_pod_shares_one_gpu_at_most_whoever_came_first(
    sharing: list[tuple[str, str]], reserved: list[tuple[str, str]]
) -> None:
    guests = [pod(f"p{number}", index=index, group=group) for number, (index, group) in enumerate(sharing)]
    hosts = [reservation(f"r{number}", reserved=index, group=group) for number, (index, group) in enumerate(reserved)]
    held = {f"g{number}": f"r{number}" for number in range(len(hosts))}
    found = lent([*guests, *hosts], **held)
    assert [items[0] for items in found.values()] == list(held.values())
    assert {gpu: sorted(items) for gpu, items in lent([*hosts, *reversed(guests)], **held).items()} == {
        gpu: sorted(items) for gpu, items in found.items()
    }
    placed = [name for items in found.values() for name in items[1:]]
    assert len(placed) == len(set(placed))
    for guest, (index, group) in zip(guests, sharing, strict=True):
        named = any((index and index == other) or (group and group == team) for other, team in reserved)
        assert (guest.metadata.name in placed) == bool(named)


@pytest.mark.parametrize(
    ("text", "value"), [("0.5", 0.5), ("1", 1.0), (" .25 ", 0.25), ("1.0", 1.0), ("0.000001", 1e-6)]
)
def test_a_fraction_is_a_number_up_to_one(text: str, value: float) -> None:
    assert reserving.fraction(pod("a", fraction=text)) == value


@pytest.mark.parametrize("text", ["", "half", "0", "0.0", "-0.5", "1.5", "50%", "nan", "inf", "0,5"])
def test_a_fraction_that_makes_no_sense_is_an_error_with_the_annotation(text: str) -> None:
    with pytest.raises(errors.InputError, match=r"gpu-fraction: .*above 0 and at most 1"):
        reserving.fraction(pod("a", fraction=text))


class Cluster:
    """A node's agent over objects; what it writes is kept."""

    def __init__(self, *pods: views.Pod) -> None:
        self.stores = NodeStores(Store(), Store(), Store(), Store())
        for item in pods:
            self.stores.pods.put(item)
        self.written: list[tuple[str, str, Any]] = []
        client: Any = self
        self.writer = Writer(client, manager="test")
        self.recorder = Recorder(client, component="test")
        self.node = OwnNode(
            "n", self.stores, self.writer, self.recorder, namespace="ns", catalog=CATALOG, clock=ManualClock()
        )

    async def patch(self, _resource: Any, name: str, data: bytes, *, namespace: str, **_more: Any) -> bytes:
        self.written.append((namespace, name, msgspec.json.decode(data)))
        return msgspec.json.encode({"metadata": {"name": name, "resourceVersion": "7"}})

    async def publish(self, *held: Held) -> dict[str, list[tuple[str, int, int, int]]]:
        spec = pools.NodeGpus((pools.NodeGpu(CATALOG.models["h200"]),) * 2)
        users = self.node.users(spec, held, {"g0": 1000, "g1": 1000}, reservations=RESERVATIONS, before={})
        self.node.publish(spec, ["g0", "g1"], users, dict)
        writing = asyncio.create_task(self.writer.run())
        await self.writer.drained()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        return {
            gpu: [(item.pod.name, item.utilization.low, item.utilization.high, item.memory_mib) for item in items]
            for gpu, items in users.items()
        }


HELD = Held("main", ("g1", "g0"), uid="uid-r")


async def test_a_reservation_is_told_its_first_gpu_once() -> None:
    cluster = Cluster(reservation("r", group="x"))
    for _ in range(3):
        assert await cluster.publish(HELD) == {"g0": [("r", 0, 0, 0)], "g1": [("r", 0, 0, 0)]}
    assert cluster.written == [(RESERVATIONS, "r", {"metadata": {"annotations": {vocabulary.RUNAI_RESERVED: "g0"}}})]


async def test_what_a_reservation_says_already_stays() -> None:
    cluster = Cluster(reservation("r", reserved="0"))
    await cluster.publish(HELD)
    assert cluster.written == []


async def test_a_reservation_uses_nothing_and_each_that_shares_it_its_own_part() -> None:
    busy = {"run.ai/simulated-gpu-utilization": "10-30"}
    starting = pod("b", group="x", phase="Pending", fraction="0.3333", **busy)
    cluster = Cluster(reservation("r", group="x"), pod("a", group="x", fraction="0.5", **busy), starting)
    uses = await cluster.publish(Held("main", ("g1",), uid="uid-r"))
    assert uses == {"g1": [("r", 0, 0, 0), ("a", 10, 30, 500), ("b", 0, 0, 333)]}


def test_who_names_a_reservation_never_comes_before_those_that_the_kubelet_gave_the_gpu_to() -> None:
    slicing = sharing.TimeSlicing(resources=(sharing.Replicated(vocabulary.GPU_RESOURCE, 3),))
    spec = pools.NodeGpus((pools.NodeGpu(CATALOG.models["h200"]),), slicing=slicing)
    cluster = Cluster(reservation("r", group="x"), pod("claims", group="x"), pod("new"), pod("newer"))
    held = [Held("main", (f"g0::{place}",), uid=f"uid-{name}") for place, name in enumerate(("r", "new", "newer"))]
    before: dict[str, tuple[User, ...]] = {}
    named = []
    for given_out in (1, 2, 3):
        before = cluster.node.users(spec, held[:given_out], {"g0": 1000}, reservations=RESERVATIONS, before=before)
        named.append([user.pod.name for user in before["g0"]])
    assert named == [["r", "claims"], ["r", "new", "claims"], ["r", "new", "newer", "claims"]]


async def test_a_fraction_that_cannot_be_read_is_an_event_and_the_pod_takes_all() -> None:
    cluster = Cluster(reservation("r", group="x"), pod("a", group="x", fraction="half"))
    assert (await cluster.publish(HELD))["g0"][1] == ("a", 100, 100, 1000)
    [event] = cluster.recorder._waiting
    assert (event.subject.name, event.reason) == ("a", "InvalidFraction")
    assert "gpu-fraction: 'half'" in event.message


async def test_a_pod_that_came_before_its_reservation_has_its_part_when_that_comes() -> None:
    cluster = Cluster(pod("a", group="x"))
    assert await cluster.publish() == {}
    cluster.stores.pods.put(reservation("r", group="x"))
    assert [name for name, *_ in (await cluster.publish(HELD))["g0"]] == ["r", "a"]
    cluster.stores.pods.remove(f"{RESERVATIONS}/r")
    assert await cluster.publish(HELD) == {}
