"""Any sequence of claims, pods, slices and restarts leaves no GPU with a wrong set of users, and no slice wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.controllers import dra_fleet
from simgpu.controllers.dra_fleet import DraFleet, discover
from simgpu.controllers.fake_nodes import FakeNodes, FleetStores
from simgpu.dra import names, slices
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.versions import ServedApi
from simgpu.kube import errors, permissions, views
from simgpu.kube.client import ApiResource
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.fleet import Fleet
from simgpu.topology import inline, pools
from tests.fixtures.clocks import ManualClock

CATALOG = models.load()
LOOP = asyncio.Runner()
NODE = "n"
CLAIMS, PODS = ("c", "d", "e"), ("p", "q", "r")
IDS = [device.uuid for device in pools.build(inline.parse("t4:4", CATALOG, field=""), NODE)]
DEVICES = list(names.of_gpus(IDS).values())
TOPOLOGY = yaml.safe_dump({"nodePools": {}, "allocation": "both"})


class Server:
    """The slices of an API server, which sends events only when a test says so."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.writes = 0

    async def create(self, _resource: Any, body: dict[str, Any], **_more: Any) -> slices.PublishedSlice:
        name = body["metadata"]["name"]
        if name in self.bodies:
            raise errors.AlreadyExists(409, "AlreadyExists", name)
        return self._keep(name, body)

    async def merge_patch(self, _resource: Any, name: str, body: dict[str, Any], **_more: Any) -> slices.PublishedSlice:
        if name not in self.bodies:
            raise errors.NotFound(404, "NotFound", name)
        spec = {key: value for key, value in body["spec"].items() if value is not None}
        before = self.bodies[name]["spec"]
        if (before.get("driver"), before["pool"]["name"]) != (spec["driver"], spec["pool"]["name"]):
            raise errors.Invalid(422, "Invalid", "field is immutable")
        return self._keep(name, {**body, "spec": spec})

    async def delete(self, _resource: Any, name: str, **_more: Any) -> bool:
        self.writes += 1
        return self.bodies.pop(name, None) is not None

    def _keep(self, name: str, body: dict[str, Any]) -> slices.PublishedSlice:
        self.version += 1
        self.writes += 1
        meta = {**body["metadata"], "resourceVersion": str(self.version), "uid": name}
        self.bodies[name] = {"metadata": meta, "spec": body["spec"]}
        return self.read(name)

    def read(self, name: str) -> slices.PublishedSlice:
        return msgspec.json.decode(msgspec.json.encode(self.bodies[name]), type=slices.PublishedSlice)


class World:
    """A node, its pods and claims, and a controller over them."""

    def __init__(self) -> None:
        self.server = Server()
        pods: Store[views.Pod] = Store({"node": lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()})
        self.stores = FleetStores(Store(), pods, Store())
        self.claims: dict[str, AllocatedClaim] = {}
        self.version = 0
        topology = views.ConfigMap(metadata=self._meta("topology", "gpu"), data={"topology.yml": TOPOLOGY})
        self.stores.config_maps.put(topology)
        self.gpus(4, "both")
        self.restart()

    def _meta(self, name: str, namespace: str = "", **more: Any) -> views.ObjectMeta:
        self.version += 1
        return views.ObjectMeta(
            name=name, namespace=namespace, uid=f"{name}-uid", resource_version=str(self.version), **more
        )

    def restart(self) -> None:
        client: Any = self.server
        recorder = Recorder(client, component="test")
        self.fleet = Fleet(seed=1)
        self.dra = DraFleet(client, recorder, self.stores.pods, changed=lambda _node: None, namespace="gpu")
        self.dra.known = self.dra._on = True
        self.dra.claims.replace(self.claims.values())
        self.nodes = FakeNodes(
            self.stores, self.fleet, WorkQueue(), Writer(client, manager="test"), recorder,
            namespace="gpu", catalog=CATALOG, clock=ManualClock(), dra=self.dra,
        )  # fmt: skip
        self.nodes.configure()
        self.show()
        self.dra.slices.start()

    def gpus(self, count: int, way: str) -> None:
        marks = {"kwok.x-k8s.io/node": "fake", "simgpu.dev/gpus": f"t4:{count}", "simgpu.dev/allocation": way}
        self.stores.nodes.put(views.Node(metadata=self._meta(NODE, annotations=marks)))

    def claim(self, name: str, indices: Iterable[int] | None, reserved: Iterable[str], *, admin: bool) -> None:
        results = [
            {"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": DEVICES[i], "adminAccess": admin}
            for i in indices or ()
        ]
        allocation = None if indices is None else {"devices": {"results": results}}
        users = [{"resource": "pods", "name": pod, "uid": f"{pod}-uid"} for pod in reserved]
        body = {"metadata": msgspec.to_builtins(self._meta(name, "ns")), "status": {"reservedFor": users}}
        if allocation is not None:
            body["status"]["allocation"] = allocation
        self.claims[name] = msgspec.convert(body, AllocatedClaim)
        self.dra.claims.put(self.claims[name])

    def unclaim(self, name: str) -> None:
        self.claims.pop(name, None)
        self.dra.claims.remove(f"ns/{name}")

    def pod(self, name: str, phase: str, wanted: Iterable[str], gpus: int) -> None:
        refs = [{"name": claim} for claim in wanted]
        container = {"name": "main", "resources": {"claims": refs, "limits": {"nvidia.com/gpu": str(gpus)}}}
        spec = {
            "nodeName": NODE, "containers": [container],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in wanted],
        }  # fmt: skip
        body = {"metadata": msgspec.to_builtins(self._meta(name, "ns")), "spec": spec, "status": {"phase": phase}}
        self.stores.pods.put(msgspec.convert(body, views.Pod))

    def gone(self, name: str) -> None:
        self.stores.pods.remove(f"ns/{name}")

    def show(self) -> None:
        """The watch shows all slices."""
        self.dra.slices.store.replace([self.server.read(name) for name in self.server.bodies])

    def wipe(self) -> None:
        """Somebody empties the slices."""
        self.show()
        for name in list(self.server.bodies):
            self.server._keep(name, {**self.server.bodies[name], "spec": {"pool": {"name": "x"}, "nodeName": NODE}})
        self.show()

    def purge(self) -> None:
        """Somebody deletes the slices."""
        self.show()
        self.server.bodies.clear()
        self.show()

    def look(self) -> None:
        LOOP.run(self.nodes.reconcile(NODE))
        LOOP.run(self.dra.slices.reconcile(NODE))

    def check(self) -> None:
        [node] = list(self.stores.nodes)
        way, text = (node.metadata.annotations[f"simgpu.dev/{key}"] for key in ("allocation", "gpus"))
        count = int(text.partition(":")[2])
        pods = [pod for pod in self.stores.pods if pod.status.phase != "Succeeded"]
        expected: dict[str, set[str]] = {gpu: set() for gpu in IDS[:count]}
        held: set[str] = set()
        for pod in pods if way != "extended" else ():
            listed = [self._results(pod, entry.name) for entry in pod.spec.resource_claims]
            there = [(IDS[DEVICES.index(item.device)], item.admin_access) for one in listed for item in one or ()]
            held |= {gpu for gpu, admin in there if gpu in expected and not admin}
            if None not in listed and all(gpu in expected for gpu, _ in there):
                for gpu, _ in there:
                    expected[gpu].add(pod.metadata.uid)
        placed = self.fleet.nodes[NODE]
        found = {gpu: {user.pod.uid for user in placed.users().get(gpu, ())} for gpu in placed.ids}
        asked = {
            pod.metadata.uid: int((pod.spec.containers or ())[0].resources.limits["nvidia.com/gpu"]) for pod in pods
        }
        extra = {gpu: found[gpu] - expected[gpu] for gpu in found}
        assert all(expected[gpu] <= found[gpu] for gpu in found)
        assert all(not extra[gpu] for gpu in held)
        assert all(len(others) <= 1 for others in extra.values())
        taken = self.nodes._records[NODE].held
        assert sum(len([gpu for gpu in mine if gpu]) for mine in taken.values()) == min(
            sum(asked.values()), count - len(held)
        )
        assert self.nodes.overcommitted == max(0, sum(asked.values()) - (count - len(held)))
        self._check_slices(count if way != "extended" else 0)

    def _results(self, pod: views.Pod, name: str) -> tuple[views.DeviceAllocation, ...] | None:
        """The devices of a claim that is in order."""
        known = self.claims.get(name)
        if known is None or known.status.allocation is None:
            return None
        reserved = {item.uid for item in known.status.reserved_for}
        return known.status.allocation.devices.results if pod.metadata.uid in reserved else None

    def _check_slices(self, count: int) -> None:
        listed = [device["name"] for body in self.server.bodies.values() for device in body["spec"]["devices"]]
        assert sorted(listed) == sorted(DEVICES[:count])
        before = self.server.writes
        LOOP.run(self.dra.slices.reconcile(NODE))
        assert self.server.writes == before


OPERATIONS = st.one_of(
    st.tuples(
        st.just("claim"), st.sampled_from(CLAIMS), st.none() | st.sets(st.integers(0, 3), min_size=1),
        st.sets(st.sampled_from(PODS)), st.booleans(),
    ),
    st.tuples(st.just("unclaim"), st.sampled_from(CLAIMS)),
    st.tuples(
        st.just("pod"), st.sampled_from(PODS), st.sampled_from(["Pending", "Running", "Succeeded"]),
        st.sets(st.sampled_from(CLAIMS)), st.integers(0, 3),
    ),
    st.tuples(st.just("gone"), st.sampled_from(PODS)),
    st.tuples(st.just("gpus"), st.integers(1, 4), st.sampled_from(["extended", "dra", "both"])),
    st.tuples(st.sampled_from(["restart", "show", "wipe", "purge"])),
)  # fmt: skip


@settings(max_examples=60)
@given(st.lists(OPERATIONS, max_size=12))
def test_any_sequence_leaves_the_right_users_and_slices(operations: list[tuple[Any, ...]]) -> None:
    world = World()
    world.claim("c", {0}, ["p"], admin=False)
    world.claim("d", {1}, ["p", "q"], admin=False)
    world.pod("p", "Running", ["c", "d"], 0)
    world.pod("q", "Running", ["d"], 1)
    world.pod("r", "Running", [], 1)
    world.look()
    world.check()
    for kind, *arguments in operations:
        if kind == "claim":
            name, indices, reserved, admin = arguments
            world.claim(name, indices, reserved, admin=admin)
        else:
            getattr(world, kind)(*arguments)
        world.look()
        world.check()


def test_an_error_of_the_simulation_taints_the_gpu_of_a_fake_node() -> None:
    world = World()
    world.look()
    world.nodes.stepped()
    card = world.fleet.nodes[NODE].cards[2]
    world.fleet.engine.strike(card.number, "uncorrected")
    world.nodes.stepped()
    assert len(world.nodes._queue) == 1
    world.look()
    [body] = world.server.bodies.values()
    listed = [(device["name"], taint) for device in body["spec"]["devices"] for taint in device.get("taints", ())]
    assert listed == [(DEVICES[2], {"key": "gpu.nvidia.com/xid", "value": "48", "effect": "NoSchedule"})]
    assert world.fleet.struck() == set()


class Discovered:
    """A server of some versions."""

    def __init__(self, *served: str, minor: str = "36") -> None:
        self.served, self.minor = served, minor
        self.allowed = True  # whether the account may do what it asks about

    async def create(self, resource: Any, _body: Any) -> Any:
        assert resource is permissions.REVIEWS
        return permissions.AccessReview(views.ObjectMeta(), permissions.ReviewStatus(self.allowed))

    async def discover(self, api_version: str) -> list[ApiResource]:
        if api_version.rpartition("/")[2] not in self.served:
            raise errors.NotFound(404, "NotFound", api_version)
        return [ApiResource("resourceclaims", "ResourceClaim", namespaced=True)]

    async def apply(self, *_what: Any, **_more: Any) -> Any:
        raise errors.Forbidden(403, "Forbidden", "deviceclasses")

    async def list(self, *_what: Any, **_more: Any) -> Any:
        return ()

    async def raw(self, _path: str) -> bytes:
        return msgspec.json.encode({"major": "1", "minor": self.minor})


def test_the_newest_served_version_is_used() -> None:
    def found(*served: str, minor: str = "36") -> Any:
        client: Any = Discovered(*served, minor=minor)
        return LOOP.run(discover(client))

    assert found("v1", "v1beta2", "v1beta1").version == "v1"
    assert found("v1beta1", "v1beta2").version == "v1beta2"
    assert found("v1beta1", "v1alpha3").version == "v1beta1"
    assert found("v1alpha3") is None
    assert not found("v1", minor="34+").splits_counters
    assert found("v1", minor="35").splits_counters


def test_an_answer_that_is_no_version_is_an_error_of_the_server() -> None:
    class Garbled(Discovered):
        async def raw(self, _path: str) -> bytes:
            return b"<html>"

    client: Any = Garbled("v1")
    dra = DraFleet(client, Recorder(client, component="test"), Store(), changed=lambda _node: None, namespace="gpu")
    assert LOOP.run(dra._begin()) is None
    assert "_ServerVersion" in dra.problem


def test_slices_that_were_left_behind_are_found_although_the_first_request_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Flaky(Discovered):
        failed = False

        async def discover(self, api_version: str) -> list[ApiResource]:
            if not self.failed:
                self.failed = True
                raise errors.ConnectError("refused")
            return await super().discover(api_version)

        async def list(self, *_what: Any, **_more: Any) -> Any:
            return (object(),)

    monkeypatch.setattr(dra_fleet, "RETRY_SECONDS", 0.0)
    client: Any = Flaky("v1")
    dra = DraFleet(client, Recorder(client, component="test"), Store(), changed=lambda _node: None, namespace="gpu")
    LOOP.run(dra._look_for_leftovers())
    assert dra._wanted.is_set()
    assert not dra.cleared


def test_what_the_account_may_not_do_is_not_tried() -> None:
    class Strict(Discovered):
        async def list(self, *what: Any, **_more: Any) -> Any:
            raise AssertionError(what)

        async def apply(self, *what: Any, **_more: Any) -> Any:
            raise AssertionError(what)

    client: Any = Strict("v1")
    client.allowed = False
    dra = DraFleet(client, Recorder(client, component="test"), Store(), changed=lambda _node: None, namespace="gpu")
    LOOP.run(dra._look_for_leftovers())
    assert not dra._wanted.is_set()
    assert LOOP.run(dra_fleet.publish_classes(client, ServedApi("v1", 36))) == ()


def test_classes_are_restored_until_the_server_serves_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Upgraded(Discovered):
        applied = 0

        async def apply(self, *_what: Any, **_more: Any) -> Any:
            self.applied += 1
            if self.applied == 4:
                self.served = ("v1",)
            return views.DeviceClass(views.ObjectMeta(), spec={"selectors": [], "extendedResourceName": ""})

    monkeypatch.setattr(dra_fleet, "CHECK_SECONDS", 0.0)
    client: Any = Upgraded("v1beta1", minor="36")
    dra = DraFleet(client, Recorder(client, component="test"), Store(), changed=lambda _node: None, namespace="gpu")
    LOOP.run(dra._check_again(ServedApi("v1beta1", 36)))
    assert client.applied == 4


def test_classes_that_may_not_be_written_are_left_to_whoever_installed_them() -> None:
    client: Any = Discovered("v1")
    dra = DraFleet(client, Recorder(client, component="test"), Store(), changed=lambda _node: None, namespace="gpu")
    assert LOOP.run(dra._begin()) is not None
    assert dra.problem == ""


def test_slices_that_nobody_wants_are_no_work_that_views_make_way_for() -> None:
    client: Any = Discovered("v1")
    dra = DraFleet(client, Recorder(client, component="test"), Store(), changed=lambda _node: None, namespace="gpu")

    async def busy() -> list[bool]:
        seen = [dra.slices.busy]
        dra.slices.start()
        task = asyncio.create_task(dra.slices.run())
        await asyncio.sleep(0)
        seen.append(dra.slices.busy)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [*seen, dra.slices.busy]

    dra.retire("a")  # which might have some, but nothing looks yet
    assert dra.slices.queue.depth == 0
    assert LOOP.run(busy()) == [False, True, False]
