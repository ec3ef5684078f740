"""Any sequence of claims, pods, slices and restarts leaves no GPU with a wrong set of users, and no slice wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.controllers import dra_fleet
from simgpu.controllers.dra_fleet import DraFleet, discover
from simgpu.dra.versions import ServedApi
from simgpu.kube import errors, permissions, views
from simgpu.kube.client import ApiResource
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from tests.fixtures.claim_worlds import DEVICES, LOOP, NODE, ClaimWorld

CLAIMS, PODS = ("c", "d", "e"), ("p", "q", "r")

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
    world = ClaimWorld()
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
    world = ClaimWorld()
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
    assert LOOP.run(dra_fleet.publish_classes(client, ServedApi("v1", 36))) is None


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
