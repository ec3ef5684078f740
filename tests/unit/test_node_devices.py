"""Devices of a node as NVIDIA's driver publishes them: attributes, capacities, MIG devices and their counters."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import msgspec
import pytest

from simgpu.catalog import models, placing
from simgpu.dra import counters, devices, names, node_devices
from simgpu.kube import quantity
from simgpu.machines import health
from simgpu.topology import allocating, mig_layouts, pools
from simgpu.topology.devices import part_id

CATALOG = models.load()
PLAIN, MIG = allocating.DraOptions(), allocating.DraOptions(dynamic_mig=True)
HEALTHY: node_devices.Faults = {}
DIVISIBLE = [model for model in CATALOG.models.values() if model.mig]


def node(
    *gpus: pools.NodeGpu, options: allocating.DraOptions = PLAIN, numa: pools.Numa | None = None
) -> pools.NodeGpus:
    return pools.NodeGpus(gpus, numa=numa, allocation=allocating.GpuAllocation("dra", options))


def published(spec: pools.NodeGpus, faults: node_devices.Faults = HEALTHY) -> list[devices.PublishedDevice]:
    return [item for group in node_devices.of_node(pools.build(spec, "n1"), spec, faults).groups for item in group]


def gpu(key: str = "h200", identity: str | None = None) -> pools.NodeGpu:
    return pools.NodeGpu(CATALOG.models[key], identity)


def test_a_gpu_has_what_nvidias_driver_publishes_and_the_operators_names() -> None:
    [found] = published(node(gpu()))
    assert re.fullmatch("gpu-[0-9a-f-]{36}", found.name)
    assert found.attributes["uuid"] == {"string": f"GPU-{found.name[4:]}"}
    assert {name: value for name, value in found.attributes.items() if not name.endswith(("uuid", "UUID"))} == {
        "type": {"string": "gpu"}, "gpu.nvidia.com/type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H200"}, "gpu.nvidia.com/productName": {"string": "NVIDIA H200"},
        "model": {"string": "NVIDIA H200"}, "brand": {"string": "Nvidia"}, "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"}, "driverVersion": {"version": "580.159.4"},
        "cudaDriverVersion": {"version": "13.0.0"}, "addressingMode": {"string": "None"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:03:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}, "resource.kubernetes.io/numaNode": {"int": 0},
    }  # fmt: skip
    assert found.attributes["gpu.nvidia.com/uuid"] == found.attributes["uuid"]
    assert found.capacity == {"memory": {"value": "143771Mi"}}


def test_a_gpu_that_is_divided_is_published_as_its_instances() -> None:
    layout = mig_layouts.well_known(CATALOG.models["h200"])["all-balanced"]
    spec = node(msgspec.structs.replace(gpu(), layout=layout), gpu())
    *parts, whole = published(spec)
    assert whole.attributes["type"] == {"string": "gpu"}
    assert [item.name.partition("-mig-")[2] for item in parts] == [
        "1g18gb-19-0",
        "1g18gb-19-1",
        "2g35gb-14-2",
        "3g71gb-9-4",
    ]
    first, last = parts[0], parts[-1]
    parent = last.attributes["parentUUID"]["string"]
    assert last.attributes["uuid"] == {"string": part_id(parent, 2)}
    assert (last.attributes["type"], last.attributes["profile"]) == ({"string": "mig"}, {"string": "3g.71gb"})
    slices = {f"memorySlice{number}": {"value": "1"} for number in range(4, 8)}
    assert last.capacity | slices == last.capacity
    assert last.capacity["memory"] == {"value": "71424Mi"}
    assert not first.consumes_counters
    places = node_devices.places(pools.build(spec, "n1"), spec)
    assert list(places) == [*(item.name for item in sorted(parts, key=lambda item: item.name)), whole.name]
    part = places[last.name].part
    assert part is not None
    assert (part.number, part.start, part.memory_mib) == (2, 4, 71424)


def test_numa_nodes_of_the_pool_show_in_attributes() -> None:
    found = published(node(*[gpu()] * 3, numa=pools.Numa(zones=2, per_zone=(1, 2))))
    assert [item.attributes["resource.kubernetes.io/numaNode"]["int"] for item in found] == [0, 1, 1]
    roots = [item.attributes["resource.kubernetes.io/pcieRoot"]["string"] for item in found]
    assert roots == ["pci0000:00", "pci0000:01", "pci0000:01"]


@pytest.mark.parametrize("identity", ["GPU_0", "gpu.one", "-x", "x-", "g" * 63 + "-"])
def test_an_id_that_makes_no_dns_label_is_hashed(identity: str) -> None:
    [name] = names.of_gpus([identity]).values()
    assert re.fullmatch("gpu-[0-9a-f]{32}", name)


def test_ids_that_differ_in_case_alone_have_different_names() -> None:
    found = names.of_gpus(["GPU-a", "gpu-a", "Gpu-a"])
    assert found["GPU-a"] == "gpu-a"
    assert len(set(found.values())) == 3


@pytest.mark.parametrize("model", CATALOG.models.values(), ids=lambda model: model.key)
def test_devices_of_every_model_are_within_the_limits_of_the_api(model: models.Model) -> None:
    spec = node(pools.NodeGpu(model, "x" * 63), options=MIG)
    for item in published(spec):
        assert names.is_label(item.name)
        assert len(item.attributes) + len(item.capacity) <= 32
        for value in item.attributes.values():
            assert all(len(text) <= 64 for text in value.values() if isinstance(text, str))
    for group in node_devices.of_node(pools.build(spec, "n"), spec, {}).counters:
        assert names.is_label(group.name)
        assert len(group.counters) <= 32
        assert all(names.is_label(name) for name in group.counters)


def test_mig_devices_are_named_after_profile_and_placement() -> None:
    spec = node(gpu(identity="GPU-1"), options=MIG)
    first, *parts = published(spec)
    assert first.name == "gpu-1"
    assert parts == sorted(parts, key=lambda item: item.name)
    assert {"gpu-1-mig-1g18gb-19-0", "gpu-1-mig-1g18gbme-20-6", "gpu-1-mig-7g141gb-0-0"} < {p.name for p in parts}
    [small] = [item for item in parts if item.name == "gpu-1-mig-2g35gb-14-4"]
    assert small.attributes["parentUUID"] == {"string": "GPU-1"}
    assert small.attributes["profile"] == {"string": "2g.35gb"}
    assert "uuid" not in small.attributes
    assert {name: value["value"] for name, value in small.capacity.items()} == {
        "multiprocessors": "32", "copyEngines": "2", "decoders": "2", "encoders": "0", "jpegEngines": "2",
        "ofaEngines": "0", "memory": "33280Mi",
    }  # fmt: skip
    [use] = small.consumes_counters
    assert use.counter_set == "gpu-1-counter-set"
    assert {name for name in use.counters if "slice" in name} == {"memory-slice-4", "memory-slice-5"}


@pytest.mark.parametrize("model", DIVISIBLE, ids=lambda model: model.key)
def test_counters_allow_exactly_the_instances_that_a_card_can_have(model: models.Model) -> None:
    """Two placements exclude each other if they overlap; as many of a profile fit as the card can have."""
    [device] = pools.build(node(pools.NodeGpu(model, "g")), "n")
    limits = _amounts(counters.counter_set(device, "g").counters)
    uses = {
        name: (profile, start, _amounts(item.consumes_counters[0].counters))
        for item in counters.instances(device, "g", driver="1", cuda="1")
        for name, profile, start in counters.placements(device, "g")
        if name == item.name
    }
    for (one, first, taken), (other, second, more) in itertools.combinations(uses.values(), 2):
        ends = first + placing.memory_slices(one, model), second + placing.memory_slices(other, model)
        apart = ends[0] <= second or ends[1] <= first
        assert not (_fits(limits, taken, more) and not apart)
    for profile in model.mig:
        mine = [taken for other, _, taken in uses.values() if other is profile]
        assert _fits(limits, *mine[: profile.count]) or not profile.name.endswith("gb")


def test_a_whole_gpu_and_its_parts_exclude_each_other() -> None:
    first, *parts = published(node(gpu(), options=MIG))
    limits = _amounts(first.consumes_counters[0].counters)
    assert not any(_fits(limits, limits, _amounts(part.consumes_counters[0].counters)) for part in parts)


def test_a_model_without_mig_is_published_whole_only() -> None:
    assert len(published(node(gpu("t4"), gpu("h200"), options=MIG))) == 1 + 26


@pytest.mark.parametrize(
    ("shares", "memory", "more"),
    [
        ("memory", "143771Mi", None), ("unlimited", "0", None), (4, "0", "4"),
    ],
)  # fmt: skip
def test_shares_can_be_consumed(shares: str | int, memory: str, more: str | None) -> None:
    options = msgspec.convert({"consumableShares": shares}, allocating.DraOptions)
    [found] = published(node(gpu(), options=options))
    assert found.allow_multiple_allocations
    assert found.capacity["memory"]["requestPolicy"]["default"] == memory
    assert (found.capacity["shares"]["value"] if more else None) == more


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (health.DeviceFaults(xids=(79,)), [("gpu.nvidia.com/xid", "79", "NoSchedule")]),
        (health.DeviceFaults(xids=(13,)), [("gpu.nvidia.com/xid", "13", "None")]),
        (health.DeviceFaults(xids=(31, 48)), [("gpu.nvidia.com/xid", "48", "NoSchedule")]),
        (health.DeviceFaults(lost=True), [("gpu.nvidia.com/gpu-lost", "", "NoSchedule")]),
    ],
)
def test_an_unhealthy_gpu_and_its_parts_are_tainted(
    faults: health.DeviceFaults, expected: list[tuple[str, str, str]]
) -> None:
    found = published(node(gpu(identity="g"), gpu(identity="h"), options=MIG), {"g": faults})
    for item in found:
        shown = [(taint.key, taint.value, taint.effect) for taint in item.taints]
        assert shown == (expected if item.name.startswith("g") else [])


def test_every_name_stands_for_a_gpu_and_a_profile() -> None:
    spec = node(gpu(identity="GPU_1"), gpu("t4", "B"), options=MIG)
    built = pools.build(spec, "n1")
    places = node_devices.places(built, spec)
    assert set(places) == {item.name for item in published(spec)}
    counted = Counter((place.gpu, place.part is not None) for place in places.values())
    assert counted == {("GPU_1", False): 1, ("GPU_1", True): 25, ("B", False): 1}


def _amounts(found: dict[str, dict[str, str]]) -> dict[str, int]:
    return {name: quantity.count(value["value"]) for name, value in found.items()}


def _fits(limits: dict[str, int], *uses: dict[str, int]) -> bool:
    total = Counter[str]()
    for use in uses:
        total.update(use)
    return all(count <= limits[name] for name, count in total.items())


_STRING, _VERSION, _INT = "string", "version", "int"
_EVERY_DEVICE = {
    "type": _STRING, "productName": _STRING, "brand": _STRING, "architecture": _STRING,
    "cudaComputeCapability": _VERSION, "driverVersion": _VERSION, "cudaDriverVersion": _VERSION,
    "addressingMode": _STRING, "resource.kubernetes.io/pciBusID": _STRING,
    "resource.kubernetes.io/pcieRoot": _STRING, "resource.kubernetes.io/numaNode": _INT,
}  # fmt: skip
_OF_MIG = _EVERY_DEVICE | {"parentUUID": _STRING, "profile": _STRING}
_ENGINES = {"multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines", "memory"}
# What NVIDIA's DRA driver publishes of each kind: attributes with their types, and capacities.
PUBLISHED_BY_NVIDIA = {
    "whole": (_EVERY_DEVICE | {"uuid": _STRING}, {"memory"}),
    "static MIG": (_OF_MIG | {"uuid": _STRING}, _ENGINES | {f"memorySlice{place}" for place in range(4, 8)}),
    "divisible": (_EVERY_DEVICE | {"uuid": _STRING}, _ENGINES),
    "dynamic MIG": (_OF_MIG, _ENGINES),
}  # fmt: skip


def test_devices_agree_with_those_of_nvidias_dra_driver_attribute_by_attribute() -> None:
    layout = mig_layouts.well_known(CATALOG.models["h200"])["all-balanced"]
    *_, static, whole = published(node(msgspec.structs.replace(gpu(), layout=layout), gpu()))
    divisible, dynamic, *_ = published(node(gpu(), options=MIG))
    found = {"whole": whole, "static MIG": static, "divisible": divisible, "dynamic MIG": dynamic}
    operators = {"model", "gpu.nvidia.com/type", "gpu.nvidia.com/uuid", "gpu.nvidia.com/productName"}
    for kind, (attributes, capacities) in PUBLISHED_BY_NVIDIA.items():
        types = {name: next(iter(value)) for name, value in found[kind].attributes.items() if name not in operators}
        assert types == attributes, kind
        assert {*found[kind].capacity} == capacities, kind
