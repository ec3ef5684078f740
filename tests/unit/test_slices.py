"""Slices of a node's pool obey the API's rules, and a change writes no more than it has to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.dra import node_devices, slices
from simgpu.dra.versions import ServedApi
from simgpu.kube import views
from simgpu.machines import health
from simgpu.topology import allocating, pools

CATALOG = models.load()
PLAIN, MIG = allocating.DraOptions(), allocating.DraOptions(dynamic_mig=True)
NEW, OLD = ServedApi("v1", 36), ServedApi("v1", 34)
OWNER = views.ObjectMeta(name="n1", uid="u1")


def node(*wanted: tuple[str, int], options: allocating.DraOptions = PLAIN) -> pools.NodeGpus:
    gpus = tuple(pools.NodeGpu(CATALOG.models[key]) for key, count in wanted for _ in range(count))
    return pools.NodeGpus(gpus, allocation=allocating.GpuAllocation("dra", options))


def specs(spec: pools.NodeGpus, api: ServedApi = NEW, *, sick: tuple[int, ...] = ()) -> dict[str, dict[str, Any]]:
    """What the pool of node n1 should have."""
    built = pools.build(spec, "n1")
    faults = {built[index].uuid: health.DeviceFaults(xids=(79,)) for index in sick}
    parts = slices.split(node_devices.of_node(built, spec, faults), api)
    return {slices.FAKE.name_of("n1", place): slices.spec_of(part, "n1", api) for place, part in enumerate(parts)}


class Server:
    """The slices of an API server."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}

    def states(self) -> dict[str, slices.SliceState]:
        return {
            name: slices.read_state(msgspec.json.decode(msgspec.json.encode(b["spec"])))
            for name, b in self.bodies.items()
        }

    def write(self, wanted: dict[str, dict[str, Any]], **more: Any) -> list[str]:
        """Brings the pool to what is wanted, and returns what was deleted and written."""
        found = slices.plan(wanted, self.states(), owner=OWNER, **more)
        for name in found.delete:
            del self.bodies[name]
        self.bodies |= found.write
        return [*found.delete, *found.write]

    def pool(self) -> tuple[set[int], set[int]]:
        numbers = [body["spec"]["pool"] for body in self.bodies.values()]
        return {item["generation"] for item in numbers}, {item["resourceSliceCount"] for item in numbers}


def test_the_devices_of_a_small_node_are_in_one_slice_named_after_it() -> None:
    [(name, spec)] = specs(node(("h200", 8))).items()
    assert name == "kwok-n1-gpu"
    assert (spec["driver"], spec["nodeName"], len(spec["devices"])) == ("gpu.nvidia.com", "n1", 8)


def test_a_large_node_has_numbered_slices() -> None:
    found = specs(node(("t4", 300)))
    assert [len(spec["devices"]) for spec in found.values()] == [128, 128, 44]
    assert list(found) == ["kwok-n1-gpu", "kwok-n1-gpu-1", "kwok-n1-gpu-2"]
    assert [len(spec["devices"]) for spec in specs(node(("t4", 300)), sick=(7,)).values()] == [64, 64, 64, 64, 44]


def test_the_name_of_a_slice_is_a_name_however_long_the_nodes_is() -> None:
    assert len(slices.FAKE.name_of("n" * 253, 17)) == 253
    assert slices.FAKE.name_of("n" * 253, 17).endswith("-gpu-17")


def test_counters_are_apart_from_devices_where_the_server_wants_that() -> None:
    new, old = specs(node(("h200", 9), options=MIG)), specs(node(("h200", 9), options=MIG), OLD)
    assert [len(spec.get("sharedCounters", ())) for spec in new.values()][:2] == [8, 1]
    for spec in new.values():
        assert ("sharedCounters" in spec) != ("devices" in spec)
        assert len(spec.get("devices", ())) <= 64
    for spec in old.values():
        assert sum(len(item["counters"]) for item in spec["sharedCounters"]) <= 32
        sets = {item["name"] for item in spec["sharedCounters"]}
        assert {use["counterSet"] for device in spec["devices"] for use in device["consumesCounters"]} == sets
    count = [sum(len(spec.get("devices", ())) for spec in found.values()) for found in (new, old)]
    assert count == [9 * 26, 9 * 26]


def test_the_oldest_version_has_devices_wrapped_and_is_read_as_the_same() -> None:
    [spec] = specs(node(("h200", 1)), ServedApi("v1beta1")).values()
    assert set(spec["devices"][0]) == {"name", "basic"}
    [new] = specs(node(("h200", 1))).values()
    assert slices.read_state(spec).digest == slices.read_state(new).digest


def test_nothing_is_written_twice() -> None:
    server = Server()
    assert server.write(specs(node(("h200", 8)))) == ["kwok-n1-gpu"]
    assert server.write(specs(node(("h200", 8)))) == []
    assert server.pool() == ({1}, {1})


def test_a_change_of_the_only_slice_raises_the_generation() -> None:
    server = Server()
    server.write(specs(node(("h200", 8))))
    assert server.write(specs(node(("h200", 7)))) == ["kwok-n1-gpu"]
    assert server.pool() == ({2}, {1})


def test_a_change_of_one_of_several_slices_writes_that_one_alone() -> None:
    server = Server()
    server.write(specs(node(("t4", 130)), sick=(1,)))
    assert server.write(specs(node(("t4", 130)), sick=(70,)))
    before = server.pool()
    assert server.write(specs(node(("t4", 130)), sick=(71,))) == ["kwok-n1-gpu-1"]
    assert server.pool() == before


def test_fewer_slices_are_a_new_generation_and_the_rest_is_deleted_first() -> None:
    server = Server()
    server.write(specs(node(("t4", 300))))
    assert server.write(specs(node(("t4", 200)))) == ["kwok-n1-gpu-2", "kwok-n1-gpu", "kwok-n1-gpu-1"]
    assert server.pool() == ({2}, {2})


def test_a_node_that_was_created_again_owns_its_slices() -> None:
    server = Server()
    server.write(specs(node(("h200", 8))))
    assert server.write(specs(node(("h200", 8))), foreign=["kwok-n1-gpu"]) == ["kwok-n1-gpu"]


def test_the_time_of_a_taint_outlives_other_changes() -> None:
    server = Server()
    server.write(specs(node(("h200", 8)), sick=(3,)))
    [body] = server.bodies.values()
    [taint] = [taint for device in body["spec"]["devices"] for taint in device.get("taints", ())]
    assert taint == {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    taint["timeAdded"] = "2026-01-01T00:00:00Z"
    assert server.write(specs(node(("h200", 8)), sick=(3,))) == []
    server.write(specs(node(("h200", 8)), sick=(3, 5)))
    times = [
        taint.get("timeAdded")
        for device in server.bodies["kwok-n1-gpu"]["spec"]["devices"]
        for taint in device.get("taints", ())
    ]
    assert sorted(map(str, times)) == ["2026-01-01T00:00:00Z", "None"]


def test_a_taint_without_an_effect_is_left_out_where_the_server_does_not_know_that() -> None:
    spec = node(("h200", 1))
    devices = pools.build(spec, "n1")
    faults = {devices[0].uuid: health.DeviceFaults(xids=(43,))}
    [part] = slices.split(node_devices.of_node(devices, spec, faults), NEW)
    new, old = (slices.spec_of(part, "n1", api)["devices"][0] for api in (NEW, OLD))
    assert [taint["effect"] for taint in new["taints"]] == ["None"]
    assert not old.get("taints")


def test_only_a_digest_is_kept_of_a_slice_that_is_read() -> None:
    [(name, spec)] = specs(node(("h200", 8)), sick=(0,)).items()
    body = slices.body(spec, name, generation=4, count=1, owner=OWNER)
    read = msgspec.json.decode(msgspec.json.encode(body), type=slices.PublishedSlice)
    assert bytes(read.spec) == b""
    assert (read.state.generation, read.state.count, read.state.gated) == (4, 1, frozenset({"taints"}))
    assert (
        msgspec.json.decode(b'{"metadata": {"name": "x"}, "spec": []}', type=slices.PublishedSlice).state.digest == b""
    )


@pytest.mark.parametrize(
    "device", ['{"capacity": [1]}', '{"taints": 3}', '{"capacity": {"a": 5}}', '{"basic": {"taints": true}}']
)
def test_a_slice_that_no_server_would_accept_is_not_decoded(device: str) -> None:
    body = f'{{"metadata": {{"name": "x"}}, "spec": {{"pool": {{"generation": "7"}}, "devices": [{device}]}}}}'
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body, type=slices.PublishedSlice)


def test_the_generation_of_a_slice_is_a_number_whatever_was_written() -> None:
    body = b'{"metadata": {"name": "x"}, "spec": {"pool": {"generation": "7", "resourceSliceCount": null}}}'
    read = msgspec.json.decode(body, type=slices.PublishedSlice)
    assert (read.state.generation, read.state.count) == (0, 0)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t4", "h200", "a30"]),
            st.sampled_from([1, 3, 9]),
            st.sets(st.integers(0, 8), max_size=3),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([NEW, OLD, ServedApi("v1beta1", 35)]),
)
def test_after_any_changes_the_pool_is_complete_and_within_the_limits(
    changes: list[tuple[str, int, set[int], bool]], api: ServedApi
) -> None:
    server = Server()
    generation = 0
    for model, count, sick, divided in changes:
        spec = node((model, count), options=MIG if divided else PLAIN)
        wanted = specs(spec, api, sick=tuple(index for index in sick if index < count))
        written = server.write(wanted)
        [now], [number] = server.pool()
        assert number == len(server.bodies) == len(wanted)
        assert now > generation or len(written) <= 1
        generation = now
        devices: list[str] = []
        for body in server.bodies.values():
            listed = [
                device.get("basic", device) | {"name": device["name"]} for device in body["spec"].get("devices", ())
            ]
            counting = any(device.get("taints") or device.get("consumesCounters") for device in listed)
            assert len(listed) <= (64 if counting else 128)
            assert len(body["spec"].get("sharedCounters", ())) <= 8
            devices += (device["name"] for device in listed)
        assert len(devices) == len(set(devices))
        assert server.write(wanted) == []


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_body_names_its_pool_and_owner(version: str) -> None:
    [(name, spec)] = specs(node(("h200", 2)), ServedApi(version)).items()
    body = slices.body(spec, name, generation=3, count=1, owner=OWNER)
    assert body["spec"]["pool"] == {"name": "n1", "generation": 3, "resourceSliceCount": 1}
    [owner] = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("Node", "n1", "u1", True)
