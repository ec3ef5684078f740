"""Topologies: every format into one model, every mistake with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.cli import main
from simgpu.topology import checking, devices, inline, pools, reading

CATALOG = models.load()
OLD = {"gpuProduct": "Tesla-K80", "gpuCount": 2, "gpuMemory": 11441, "otherDevices": [{"name": "rdma/hca", "count": 1}]}
NEW = {
    "gpu": {
        "profile": "a100",
        "overrides": {"device_count": 3, "system": {"driver_version": "550.1", "cuda_version": "12.4"}},
    },
    "resources": [{"nvidia.com/mig-1g.5gb": 3}, {"nvidia.com/gpu": 9}], "numa": {"zones": 2, "gpusPerZone": [2, 1]},
}  # fmt: skip
LISTED = {"gpus": [{"type": "h200", "count": 2}, {"type": "Tesla K80", "memory": "12GB", "count": 1}]}


def parse(document: Any, **profiles: Any) -> pools.Topology:
    return reading.parse(yaml.safe_dump(document), CATALOG, profiles.get)


def test_all_formats_load_in_one_document() -> None:
    fleet = parse({"nodePools": {"old": OLD, "new": NEW, "listed": LISTED}, "migStrategy": "single"})
    old, new, listed = (fleet.pools[name] for name in ("old", "new", "listed"))
    assert (old.product, old.memory_mib, len(old.gpus), old.other) == ("Tesla-K80", 11441, 2, {"rdma/hca": 1})
    assert (new.product, len(new.gpus), new.driver, new.cuda) == ("NVIDIA A100-SXM4-40GB", 3, "550.1", "12.4")
    assert new.other == {"nvidia.com/mig-1g.5gb": 3}
    assert new.numa == pools.Numa(2, (2, 1))
    assert [gpu.model.product for gpu in listed.gpus] == ["NVIDIA H200", "NVIDIA H200", "Tesla K80"]
    assert listed.gpus[2].model.memory_mib.total == 11444
    assert fleet.mig_strategy == "single"


def test_a_profile_of_the_clusters_own_comes_before_the_catalogs() -> None:
    profile = {"device_count": 5, "device_defaults": {"name": "My A100", "memory": {"total_bytes": 10 << 30}}}
    pool = parse({"nodePools": {"x": {"gpu": {"profile": "a100"}}}}, a100=profile).pools["x"]
    assert (pool.product, pool.memory_mib, len(pool.gpus)) == ("My A100", 10240, 5)


def test_the_charts_values_are_a_topology_too() -> None:
    assert "default" in parse({"topology": {"nodePools": {"default": OLD}}, "image": {}}).pools
    both = parse({"topology": {"nodePools": {"default": OLD}}, "cluster": {"nodePools": {"new": NEW}}})
    assert list(both.pools) == ["new"]


def test_an_unknown_product_keeps_its_name() -> None:
    pool = parse({"nodePools": {"x": {"gpuProduct": "NVIDIA X9000", "gpuCount": 1, "gpuMemory": 1000}}}).pools["x"]
    assert (pool.product, pool.memory_mib) == ("NVIDIA X9000", 1000)


def test_of_an_unknown_product_nobody_knows_the_architecture() -> None:
    pool = parse({"nodePools": {"x": {"gpuProduct": "NVIDIA X9000", "gpuCount": 1, "gpuMemory": 1000}}}).pools["x"]
    model = pool.gpus[0].model
    assert (model.architecture, model.compute_capability, model.mig) == ("", None, ())
    spelled_otherwise = parse({"nodePools": {"x": OLD}}).pools["x"].gpus[0].model
    assert (spelled_otherwise.product, spelled_otherwise.architecture) == ("Tesla-K80", "Kepler")


def test_a_profile_describes_its_own_card() -> None:
    defaults = {"name": "My Card", "architecture": "ada_lovelace", "compute_capability": {"major": 8, "minor": 9}}
    profile = {"device_count": 1, "device_defaults": defaults, "system": {"driver_version": "550.1"}}
    model = parse({"nodePools": {"x": {"gpu": {"profile": "mine"}}}}, mine=profile).pools["x"].gpus[0].model
    assert (model.architecture, model.compute_capability, model.driver) == ("ada_lovelace", "8.9", "550.1")
    renamed = {"gpu": {"profile": "h100", "overrides": {"device_defaults": {"name": "Renamed"}, "device_count": 1}}}
    model = parse({"nodePools": {"x": renamed}}).pools["x"].gpus[0].model
    assert (model.product, model.architecture, bool(model.mig)) == ("Renamed", "Hopper", True)


def test_a_profile_that_cannot_be_read_is_a_mistake_even_if_the_catalog_has_a_model_of_its_name() -> None:
    def broken(name: str) -> dict[str, Any]:
        raise errors.InputError(f"ConfigMap gpu-profile-{name}", "is not YAML")

    with pytest.raises(checking.Mistakes, match=r"nodePools\.x\.gpu\.profile: ConfigMap gpu-profile-h100: is not YAML"):
        reading.parse(yaml.safe_dump({"nodePools": {"x": {"gpu": {"profile": "h100"}}}}), CATALOG, broken)


def test_unknown_keys_are_told_and_stop_nothing() -> None:
    document = {
        "nodePool": {}, "gpuOperator": {"version": "v24.9.0"},
        "nodePools": {
            "a": {**OLD, "gpuCounts": 4}, "b": {"gpus": [{"type": "h200", "cont": 2}]},
            "c": {**NEW, "numa": None, "gpu": {"profile": "a100", "overides": {}, "backend": "fake"}},
            "d": {"gpu": {"profile": "a100", "overrides": {"device_counts": 1, "device_defaults": {"nam": "x"}}}},
            "e": {"gpu": {"profile": "a100", "overrides": {"device_defaults": {"memory": {"total": 1}}}}},
        },
        "nodes": {"n": {"gpu-product": "k80", "gpus": [{"id": "g", "metrics": {"utilisation": 5}}]}},
    }  # fmt: skip
    fleet = parse(document)
    assert {text.partition(": ")[0] for text in fleet.unknown} == {
        "nodePool", "nodePools.a.gpuCounts", "nodePools.b.gpus[0].cont", "nodePools.c.gpu.overides",
        "nodePools.d.gpu.overrides.device_counts", "nodePools.d.gpu.overrides.device_defaults.nam",
        "nodePools.e.gpu.overrides.device_defaults.memory.total",
        "nodes.n.gpus[0].metrics.utilisation",
    }  # fmt: skip
    assert "nodePools.a.gpuCounts: no such key; there are: gpuProduct, gpuCount, gpuMemory" in fleet.unknown[1]
    assert len(fleet.pools["a"].gpus) == 2


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"sharing": {"mps": {"resources": []}}}, "sharing: 'mps': no such key; there are: timeSlicing"),
        ({"sharing": {"timeslicing": {}}}, "sharing: 'timeslicing': no such key; there are: timeSlicing"),
        ({"failures": {"refused": True}}, "failures: 'refused': no such key; there are: refuse, delay, vanish, flap"),
    ],
)
def test_a_way_of_sharing_or_failing_that_does_not_exist_is_a_mistake(section: dict[str, Any], problem: str) -> None:
    with pytest.raises(checking.Mistakes) as caught:
        parse({"nodePools": {"a": {**OLD, **section}}})
    assert f"nodePools.a.{problem}" in str(caught.value)


def test_all_that_fake_gpu_operator_reads_is_known() -> None:
    numa = {
        "zones": 2, "gpusPerZone": [2, 2], "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "container", "cpuPerZone": "4", "memPerZone": "64Gi",
        "distances": {"self": 10, "remote": 21},
    }  # fmt: skip
    overrides = {
        "device_count": 4, "device_defaults": {"name": "Custom H100", "memory": {"total_bytes": 85899345920}},
        "system": {"driver_version": "999.1", "cuda_version": "13.0"},
    }  # fmt: skip
    pool = {"gpu": {"backend": "mock", "profile": "h100", "overrides": overrides}, "numa": numa, "resources": []}
    document = {"nodePoolLabelKey": "a/b", "migStrategy": "none", "gpuOperator": {}, "nodePools": {"a": pool, "b": OLD}}
    assert parse(document).unknown == ()


def test_nodes_by_name_keep_their_ids() -> None:
    node = {
        "gpu-memory": 11441,
        "gpu-product": "Tesla-K80",
        "gpus": [{"id": "GPU-a"}, {"id": "GPU-b", "metrics": {"utilization": 10}}],
    }
    fleet = parse({"mig-strategy": "mixed", "nodes": {"node-a": node}})
    assert [gpu.id for gpu in fleet.nodes["node-a"].gpus] == ["GPU-a", "GPU-b"]
    assert fleet.nodes["node-a"].gpus[1].metrics == devices.StaticMetrics(10.0)


def test_every_mistake_is_found_at_once() -> None:
    document = {
        "nodePoolLabelKey": "no key!", "migStrategy": "some",
        "nodePools": {
            "a": {"gpuCount": -1}, "b": {"gpu": {"profile": "h999"}}, "c": {"gpus": [{"type": "X"}]}, "d": 5,
            "e": {"gpuCount": 1, "otherDevices": [{"name": "nope"}], "resources": 7, "numa": {"zones": "two"}},
            "f": {"gpus": [{"type": 3, "count": 0, "memory": "much"}, 5, {"type": "h200", "count": 2000}]},
            "g": {"gpu": {"overrides": {"device_count": -2, "device_defaults": {"memory": {"total_bytes": "x"}}}}},
            "h": {"gpuProduct": "X", "gpuCount": 4, "gpuMemory": 5, "numa": {"zones": 2, "gpusPerZone": [1, 1]}},
            "i": {"gpuProduct": "k80", "gpuCount": 4, "numa": {"zones": 2, "gpusPerZone": [4]}},
            "j": {"gpu": {"profile": "k80", "overrides": {"system": {"driver_version": [1], "cuda_version": {}}}}},
            "k": {"gpu": {"profile": "k80", "overrides": {"devices": 5}}},
            "l": {"gpu": {"profile": "k80", "overrides": {"device_defaults": {"name": [], "architecture": [1]}}}},
        },
        "nodes": {"n": {"gpus": [{"id": "x" * 64}]}},
    }  # fmt: skip
    with pytest.raises(checking.Mistakes) as caught:
        parse(document)
    assert {mistake.field for mistake in caught.value.found} == {
        "nodePoolLabelKey", "migStrategy", "nodePools.a.gpuCount", "nodePools.b.gpu.profile",
        "nodePools.c.gpus[0].memory", "nodePools.d", "nodePools.e.otherDevices[0]",
        "nodePools.e.gpuMemory", "nodePools.e.resources", "nodePools.e.numa", "nodes.n.gpu-memory",
        "nodes.n.gpus[0].id",
        "nodePools.f.gpus[0].type", "nodePools.f.gpus[0].count", "nodePools.f.gpus[0].memory", "nodePools.f.gpus[1]",
        "nodePools.f.gpus[2].count", "nodePools.g.gpu.overrides.device_count",
        "nodePools.g.gpu.overrides.device_defaults.memory.total_bytes",
        "nodePools.h.numa.gpusPerZone", "nodePools.i.numa.gpusPerZone",
        "nodePools.j.gpu.overrides.system.driver_version", "nodePools.j.gpu.overrides.system.cuda_version",
        "nodePools.k.gpu.overrides.devices", "nodePools.l.gpu.overrides.device_defaults.name",
        "nodePools.l.gpu.overrides.device_defaults.architecture",
    }  # fmt: skip


def test_a_node_has_no_more_devices_than_the_kubelet_can_be_told_of() -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 1000}]}}
    document = {
        "nodePools": {
            "a": {"gpus": [], "otherDevices": [{"name": "rdma/hca", "count": 1_000_000}]},
            "b": {"gpus": [], "resources": [{"x/y": 10_001}]},
            "c": {"gpus": [{"type": "h200", "count": 11}], "sharing": sharing},
            "d": {"gpus": [{"type": "h200", "count": 10}], "sharing": sharing, "resources": [{"x/y": 10_000}]},
            "e": {"gpus": [], "resources": [{f"x/{number}": 1} for number in range(65)]},
        }
    }
    with pytest.raises(checking.Mistakes) as caught:
        parse(document)
    assert [str(mistake) for mistake in caught.value.found] == [
        "nodePools.a.otherDevices[0]: rdma/hca: 1000000: must be a whole number from 0 to 10000",
        "nodePools.b.resources[0]: x/y: 10001: must be a whole number from 0 to 10000",
        "nodePools.c.sharing: nvidia.com/gpu: 11 devices, 1000 times each; at most 10000 in all",
        "nodePools.e: has 65 other resources; at most 64",
    ]


def test_a_key_that_stands_twice_is_a_mistake_with_its_line() -> None:
    twice = "nodePools:\n  a: {gpuProduct: k80, gpuCount: 1}\n  a: {gpuProduct: k80, gpuCount: 2}\n"
    with pytest.raises(checking.Mistakes, match=r"duplicate key a.* line 3"):
        reading.parse(twice, CATALOG)
    merged = "x: &x {gpuProduct: k80, gpuCount: 1}\nnodePools: {a: {<<: *x, gpuCount: 2}}\n"
    assert len(reading.parse(merged, CATALOG).pools["a"].gpus) == 2


@pytest.mark.parametrize("capability", [{"major": "abc"}, {"major": 99999999999}, {"major": 8, "minor": 10}])
def test_a_compute_capability_that_is_none_is_a_mistake(capability: dict[str, Any]) -> None:
    overrides = {"device_defaults": {"compute_capability": capability}}
    with pytest.raises(checking.Mistakes, match=r"nodePools\.x\.gpu.*compute_capability: major is a whole number"):
        parse({"nodePools": {"x": {"gpu": {"profile": "h200", "overrides": overrides}}}})


@pytest.mark.parametrize("text", ["", "[]", "a: [", "x: 1", "nodePools: 5"])
def test_what_is_no_topology_is_refused(text: str) -> None:
    with pytest.raises(checking.Mistakes):
        reading.parse(text, CATALOG)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
POOL = st.dictionaries(
    st.sampled_from(["gpuProduct", "gpuCount", "gpuMemory", "otherDevices", "gpu", "gpus", "resources", "numa"]),
    JSON,
    max_size=5,
)


@given(
    st.fixed_dictionaries(
        {"nodePools": st.dictionaries(st.text(max_size=4), POOL | JSON, max_size=3)}, optional={"nodes": JSON}
    )
)
def test_any_document_is_read_or_refused(document: Any) -> None:
    try:
        fleet = reading.parse(json.dumps(document), CATALOG)
    except errors.InputError:
        return
    assert all(len(pool.gpus) <= vocabulary.MAX_GPUS for pool in fleet.pools.values())


def test_the_command_lists_all_mistakes_and_shows_what_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(yaml.safe_dump({"nodePools": {"old": OLD, "listed": LISTED}}))
    bad.write_text(yaml.safe_dump({"nodePools": {"a": {"gpuCount": -1}, "b": {"gpu": {"profile": "h999"}}}}))
    assert main.run(["config", "check", str(good)]) == 0
    assert "2 pools" in capsys.readouterr().out
    assert main.run(["config", "check", str(bad)]) == 2
    said = capsys.readouterr().err
    assert "nodePools.a.gpuCount" in said
    assert "nodePools.b.gpu.profile" in said
    mistyped = tmp_path / "mistyped.yaml"
    mistyped.write_text(yaml.safe_dump({"nodePools": {"a": {**OLD, "gpuCont": 3}}}))
    assert main.run(["config", "check", str(mistyped)]) == 2
    assert "nodePools.a.gpuCont: no such key; there are: gpuProduct, gpuCount" in capsys.readouterr().err
    assert main.run(["config", "show", str(good)]) == 0
    assert "2 x NVIDIA H200 (143771 MiB), 1 x Tesla K80 (11444 MiB)" in capsys.readouterr().out
    assert main.run(["config", "show", str(good), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pool old"]["other"] == {"rdma/hca": 1}
    assert main.run(["config", "check", str(tmp_path / "none")]) == 2
    capsys.readouterr()
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"nodePools: \xff\xfe")
    assert main.run(["config", "check", str(binary)]) == 2
    assert f"{binary}: not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "count"), [("h200:8", 8), ("h200:2,t4:1", 3)])
def test_an_annotation_says_models_and_counts(text: str, count: int) -> None:
    assert len(inline.parse(text, CATALOG, field="x").gpus) == count


@pytest.mark.parametrize("text", ["", "h200", "h200:0", "h999:1", "h200:9999", "h200:1,"])
def test_a_bad_annotation_is_refused(text: str) -> None:
    with pytest.raises(errors.InputError):
        inline.parse(text, CATALOG, field="x")


def test_the_gpus_of_an_annotation_are_counted_as_they_are_read() -> None:
    with pytest.raises(errors.InputError, match="x: a node has at most 1024 GPUs"):
        inline.parse("h200:1024,h200:1,no-such-model:1", CATALOG, field="x")


@pytest.mark.parametrize(
    "pool",
    [
        {"gpuCount": [["x"] * 1000] * 100},
        {"gpuCount": 1, "gpuProduct": "x" * 100_000, "gpuMemory": 1},
        {"gpuCount": 1, "gpuProduct": ["x"] * 10_000, "gpuMemory": 1},
        {"gpuCount": 1, "gpuMemory": ["x"] * 10_000},
        {"gpus": [{"type": "x" * 100_000, "memory": 1}]},
        {"gpus": [{"type": "h200", "count": ["x"] * 10_000}]},
        {"gpu": {"profile": ["x"] * 10_000}},
        {"gpu": {"profile": "h200", "overrides": {"device_defaults": {"memory": {"total_bytes": ["x"] * 10_000}}}}},
        {"gpuCount": 0, "settable": ["x"] * 10_000},
        {"gpuCount": 0, "failures": {"x" * 100_000: 1}},
        {"gpuCount": 0, "failures": {"unhealthy": [1] * 1025}},
        {"gpuCount": 0, "failures": {"dying": [{"gpu": 1}] * 1025}},
        {"gpuCount": 0, "sharing": {"timeSlicing": {"x" * 100_000: 1}}},
        {"gpuCount": 0, "otherDevices": [{"name": ["x"] * 10_000, "count": 1}]},
    ],
)
def test_a_mistake_of_any_size_is_reported_in_a_few_words(pool: dict[str, Any]) -> None:
    with pytest.raises(checking.Mistakes, match=r"nodePools\.x\.") as caught:
        parse({"nodePools": {"x": pool}})
    assert len(str(caught.value)) < 1000


def test_of_many_mistakes_the_first_are_listed_and_the_others_counted() -> None:
    with pytest.raises(checking.Mistakes) as caught:
        parse({"nodePools": {f"p{number}": 5 for number in range(10_000)}})
    assert len(caught.value.found) == 101
    assert str(caught.value.found[-1]) == "topology: and 9900 more mistakes"
    assert len(parse({"nodePools": {}, **{f"x{number}": 1 for number in range(10_000)}}).unknown) == 100


def test_a_name_that_no_node_or_pool_can_have_is_a_mistake() -> None:
    listed = [{"name": "bad"}] * 1000
    with pytest.raises(checking.Mistakes, match=r"nodePools: .*: a name has at most 253 characters") as caught:
        parse({"nodePools": {"x" * 254: {"gpuCount": 0, "otherDevices": listed}}})
    assert len(str(caught.value)) < 1000


def test_all_that_is_wrong_with_a_real_nodes_pool_is_told_at_once() -> None:
    text = (
        "nodePools: {a: {gpus: [], settable: maybe, utilizationFrom: gpu, sharing: {timeSlicing: 1}, failures: {x: 1}}}"
    )
    with pytest.raises(checking.Mistakes) as caught:
        reading.parse(text, CATALOG)
    fields = [item.field.removeprefix("nodePools.a.") for item in caught.value.found]
    assert fields == ["settable", "utilizationFrom", "sharing", "failures"]
