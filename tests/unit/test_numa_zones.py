"""NUMA zones of a node as an object for schedulers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pytest

from simgpu import errors
from simgpu.catalog import models
from simgpu.controllers import numa_zones
from simgpu.kube.views import Node, NodeResourceTopology, NodeStatus, ObjectMeta
from simgpu.topology import pools, reading

CATALOG = models.load()
NODE = Node(ObjectMeta(name="n", uid="uid-n"), status=NodeStatus(allocatable={"cpu": "7", "memory": "10Gi"}))


def spec_of(numa: dict[str, Any], **more: Any) -> pools.NodeGpus:
    pool = {"gpus": [{"type": "h200", "count": 7}], "numa": numa, **more}
    return reading.parse(msgspec.json.encode({"nodePools": {"p": pool}}).decode(), CATALOG).pools["p"]


def made(spec: pools.NodeGpus, taken: Mapping[str, int] = {}, unhealthy: Collection[str] = ()) -> dict[str, Any]:
    ids = [f"g{number}" for number in range(len(spec.gpus))]
    zones = numa_zones.zones_of(NODE, spec, ids, taken, unhealthy)
    assert zones is not None
    return numa_zones.document("n", {"label": "x"}, zones)


def amounts(document: dict[str, Any], resource: str) -> list[tuple[str, str, str]]:
    return [
        (item["capacity"], item["allocatable"], item["available"])
        for zone in document["zones"]
        for item in zone["resources"]
        if item["name"] == resource
    ]


def test_gpus_are_split_evenly_and_those_that_are_taken_or_unhealthy_are_not_available() -> None:
    found = made(spec_of({"zones": 2}), {"g0": 1, "g6": 1}, {"g1"})
    assert amounts(found, "nvidia.com/gpu") == [("4", "3", "2"), ("3", "3", "2")]
    assert amounts(found, "cpu") == [("3500m",) * 3] * 2
    assert amounts(found, "memory") == [("5Gi",) * 3] * 2
    assert found["topologyPolicies"] == ["SingleNUMANodeContainerLevel"]
    assert found["zones"][0]["costs"] == [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]


def test_shares_of_gpus_are_counted_under_their_name() -> None:
    sharing = {"timeSlicing": {"renameByDefault": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}
    found = made(spec_of({"zones": 1}, sharing=sharing), {"g0": 3, "g1": 9})
    assert amounts(found, "nvidia.com/gpu.shared") == [("28", "28", "21")]


def test_where_only_claims_allocate_gpus_zones_have_none_to_count() -> None:
    assert amounts(made(spec_of({"zones": 2}, allocation="dra")), "nvidia.com/gpu") == []


def test_an_object_is_written_again_only_if_it_differs() -> None:
    wanted = made(spec_of({"zones": 2, "topologyManagerPolicy": "none"}))
    assert wanted["topologyPolicies"] == ["None"]
    seen = msgspec.convert(msgspec.to_builtins(wanted), NodeResourceTopology)
    assert numa_zones.shows(seen, wanted)
    assert not numa_zones.shows(seen, made(spec_of({"zones": 3})))
    assert not numa_zones.shows(msgspec.structs.replace(seen, metadata=ObjectMeta(name="n")), wanted)


@pytest.mark.parametrize(
    ("numa", "problem"),
    [
        (
            {"topologyManagerPolicy": "strict"},
            "numa.topologyManagerPolicy: 'strict': must be one of single-numa-node, ",
        ),
        ({"topologyManagerScope": 3}, "numa.topologyManagerScope: 3: must be one of container, pod"),
        ({"cpuPerZone": "four"}, "numa.cpuPerZone: 'four': must be a quantity such as 4 or 3500m"),
        ({"memPerZone": True}, "numa.memPerZone: True: must be a quantity such as 64Gi"),
        ({"distances": {"remote": -1}}, "numa.distances.remote: -1: must be a whole number up to 255"),
        ({"distances": [10]}, "numa.distances: must be a mapping"),
    ],
)
def test_a_mistake_names_its_field_and_what_is_allowed(numa: dict[str, Any], problem: str) -> None:
    with pytest.raises(errors.InputError) as found:
        spec_of({"zones": 2, **numa})
    assert problem in str(found.value)
