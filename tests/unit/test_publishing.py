"""What is written about a node: labels that hold, and a view that can be read again."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers import feature_labels, publishing
from simgpu.kube import views
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import pools, reading

CATALOG = models.load()


def spec(pool: dict[str, Any], **profiles: Any) -> pools.NodeGpus:
    return reading.parse(yaml.safe_dump({"nodePools": {"x": pool}}), CATALOG, profiles.get).pools["x"]


def test_a_known_model_has_all_labels_of_feature_discovery() -> None:
    found = feature_labels.labels(spec({"gpus": [{"type": "h200", "count": 8}]}), "mixed")
    assert set(found) == set(feature_labels.LABELS)
    assert found["nvidia.com/gpu.family"] == "hopper"
    assert (found["nvidia.com/gpu.compute.major"], found["nvidia.com/gpu.compute.minor"]) == ("9", "0")
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/mig.capable"]) == ("8", "true")


def test_older_names_of_versions_have_the_same_values() -> None:
    found = feature_labels.labels(spec({"gpus": [{"type": "h200"}]}), "none")
    assert [found[f"nvidia.com/cuda.driver.{part}"] for part in ("major", "minor", "rev")] == ["580", "159", "04"]
    assert [found[f"nvidia.com/cuda.runtime.{part}"] for part in ("major", "minor")] == ["13", "0"]


@pytest.mark.parametrize(
    ("models_of", "mode", "capable"),
    [
        (["h200"], "compute", "true"),
        (["rtx-6000-ada"], "graphics", "false"),
        (["rtx-6000-ada", "h200"], "unknown", "true"),
    ],
)
def test_what_gpus_are_for_and_can_is_that_of_all_of_them(models_of: list[str], mode: str, capable: str) -> None:
    found = feature_labels.labels(spec({"gpus": [{"type": name} for name in models_of]}), "none")
    assert (found["nvidia.com/gpu.mode"], found["nvidia.com/mig.capable"]) == (mode, capable)
    assert found["nvidia.com/vgpu.present"] == "false"


@pytest.mark.parametrize(
    ("before", "after"), [({}, "12"), ({"nvidia.com/gfd.timestamp": "5"}, "5"), ({"x": "7"}, "12")]
)
def test_the_time_of_discovery_is_written_once(before: dict[str, str], after: str) -> None:
    node = views.Node(metadata=views.ObjectMeta(name="n", labels=before))
    assert feature_labels.discovery_time(node, 12.9) == {"nvidia.com/gfd.timestamp": after}


def test_what_nobody_knows_of_a_card_has_no_label() -> None:
    found = feature_labels.labels(spec({"gpuProduct": "X 9000", "gpuCount": 2, "gpuMemory": 1000}), "none")
    assert (found["nvidia.com/gpu.product"], found["nvidia.com/gpu.memory"]) == ("X-9000", "1000")
    missing = set(feature_labels.LABELS) - set(found)
    assert missing == {
        "nvidia.com/gpu.family", "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor",
        "nvidia.com/mig.capable",
    }  # fmt: skip


def test_a_profiles_labels_are_its_own() -> None:
    defaults = {"name": "Mine", "architecture": "ada_lovelace", "compute_capability": {"major": 8, "minor": 9}}
    profile = {"device_count": 1, "device_defaults": defaults, "system": {"driver_version": "550.163.01"}}
    found = feature_labels.labels(spec({"gpu": {"profile": "mine"}}, mine=profile), "none")
    assert found["nvidia.com/gpu.family"] == "ada-lovelace"
    assert (found["nvidia.com/gpu.compute.major"], found["nvidia.com/gpu.compute.minor"]) == ("8", "9")
    assert found["nvidia.com/cuda.driver-version.full"] == "550.163.01"
    assert found["nvidia.com/cuda.runtime-version.full"] == "12.4"


def test_the_runtime_is_that_of_the_cards_driver_unless_somebody_says_otherwise() -> None:
    for pool, version in (
        ({"gpus": [{"type": "k80"}]}, "11.4"),
        ({"gpus": [{"type": "l40s"}]}, "13.2"),
        ({"gpus": [{"type": "Mystery", "memory": 1000}]}, "13.0"),
        ({"gpu": {"profile": "k80", "overrides": {"system": {"cuda_version": "12.6"}}}}, "12.6"),
    ):
        found = feature_labels.labels(spec(pool), "none")
        assert found["nvidia.com/cuda.runtime-version.full"] == version
        major, minor = (found[f"nvidia.com/cuda.runtime-version.{part}"] for part in ("major", "minor"))
        assert f"{major}.{minor}" == version


def test_a_view_says_who_has_what_and_can_be_read_again() -> None:
    pool = spec({"gpus": [{"type": "h200", "count": 1}, {"type": "t4", "count": 1}]})
    use = User(PodRef("train", "team", "main", "uid-1"), Range(10, 30), 143771)
    body = publishing.view(
        "n", ["g0", "g1"], pool, strategy="mixed", users={"g1": (use,)}, counters={"time": 1.0, "gpus": {"g0": [1.0]}}
    )
    document = yaml.safe_load(body["data"]["topology.yml"])
    assert (document["gpuProduct"], document["gpus"][1]["gpuProduct"]) == ("NVIDIA H200", "Tesla T4")
    assert document["gpus"][1]["status"]["podGpuUsageStatus"]["uid-1"]["utilization"] == {"min": 10, "max": 30}
    read = publishing.read_previous(views.ConfigMap(metadata=views.ObjectMeta(), data=body["data"]))
    assert read.held == {"uid-1": (("main", "g1"),)}
    assert (read.counters.time, read.counters.gpus) == (1.0, {"g0": [1.0]})


def told_of(pool: pools.NodeGpus, **uses: tuple[User, ...]) -> dict[str, Any]:
    ids = [f"g{index}" for index in range(len(pool.gpus))]
    return publishing.node_json(publishing.document(ids, pool, strategy="mixed", users=uses))


def test_the_topology_api_tells_what_each_gpu_of_a_mixed_node_is() -> None:
    pool = spec({"gpus": [{"type": "h200", "count": 1}, {"type": "t4", "count": 1}]})
    told = told_of(pool)
    assert [(gpu["GpuProduct"], gpu["GpuMemory"]) for gpu in told["Gpus"]] == [
        ("NVIDIA H200", 143771),
        ("Tesla T4", 15360),
    ]
    alike = told_of(spec({"gpus": [{"type": "h200", "count": 1}]}))
    assert list(alike["Gpus"][0]) == ["ID", "Status"]


def test_no_other_devices_are_null_in_the_topology_api() -> None:
    bare = spec({"gpus": [{"type": "h200"}]})
    rich = spec({"gpus": [{"type": "h200"}], "otherDevices": [{"name": "rdma/hca", "count": 2}]})
    assert publishing.pool_json(bare)["OtherDevices"] is None
    assert told_of(bare)["OtherDevices"] is None
    assert told_of(rich)["OtherDevices"] == [{"Name": "rdma/hca", "Count": 2}]


def test_the_topology_api_tells_a_published_view_as_it_tells_the_node() -> None:
    pool = spec({"gpus": [{"type": "h200"}, {"type": "t4"}], "otherDevices": [{"name": "rdma/hca", "count": 2}]})
    uses = {"g1": (User(PodRef("train", "team", "main", "uid-1"), Range(10, 30), 143771),)}
    body = publishing.view("n", ["g0", "g1"], pool, strategy="mixed", users=uses, counters={}, fake=False)
    told = publishing.view_json(views.ConfigMap(metadata=views.ObjectMeta(), data=body["data"]))
    assert told == told_of(pool, **uses)
    assert told["Gpus"][1]["Status"] == {
        "AllocatedBy": {"Namespace": "team", "Pod": "train", "Container": "main"},
        "PodGpuUsageStatus": {
            "uid-1": {"Utilization": {"Min": 10, "Max": 30}, "FbUsed": 143771, "UseKnativeUtilization": False}
        },
    }


def test_a_view_has_how_pods_get_the_gpus() -> None:
    pool = spec({"gpus": [{"type": "h200"}], "allocation": "dra", "dra": {"dynamicMIG": True}})
    body = publishing.view("n", ["g0"], pool, strategy="mixed", users={}, counters={})
    view = views.ConfigMap(metadata=views.ObjectMeta(name="topology-n"), data=body["data"])
    assert publishing.published([view], CATALOG).nodes["n"].allocation == pool.allocation


@pytest.mark.parametrize("text", ["", "[]", "gpus: 5", "a: [", "gpus: [{id: 1}]"])
def test_a_view_that_somebody_broke_is_told_by_its_name(text: str) -> None:
    broken = views.ConfigMap(metadata=views.ObjectMeta(name="topology-n"), data={"topology.yml": text})
    with pytest.raises(errors.InputError, match="ConfigMap topology-n"):
        publishing.view_json(broken)


def test_who_reserves_a_gpu_has_it_and_does_not_use_it() -> None:
    holder = User(PodRef("r", "runai-reservation", "main", "uid-r"), Range(0, 0), 0, reserves=True)
    sharing = User(PodRef("train", "team", "main", "uid-1"), Range(10, 30), 500)
    status = told_of(spec({"gpus": [{"type": "h200"}]}), g0=(holder, sharing))["Gpus"][0]["Status"]
    assert status["AllocatedBy"] == {"Namespace": "runai-reservation", "Pod": "r", "Container": "main"}
    assert list(status["PodGpuUsageStatus"]) == ["uid-1"]


def test_a_view_that_somebody_broke_says_nothing() -> None:
    for text in ("", "[]", "gpus: 5", "a: [", "gpus: [{id: 1}]"):
        assert (
            publishing.read_previous(views.ConfigMap(metadata=views.ObjectMeta(), data={"topology.yml": text})).held
            == {}
        )


GPU = """{id: g0, status: {allocatedBy: {namespace: a, pod: b, container: c}, podGpuUsageStatus: {uid-1:
  {utilization: {min: 0, max: 100}, fbUsed: 1, useKnativeUtilization: false}}}}"""
WELL = (
    f"gpuMemory: 100\ngpuProduct: H\ngpus:\n- {GPU}\nmigStrategy: mixed\notherDevices: [{{name: rdma/hca, count: 2}}]\n"
)


def view_of(text: str, counters: str = "{}", labelled: str = "") -> views.ConfigMap:
    meta = views.ObjectMeta(name="topology-n", annotations={vocabulary.VIEW_LABELS_ANNOTATION: labelled})
    return views.ConfigMap(metadata=meta, data={vocabulary.TOPOLOGY_KEY: text, vocabulary.COUNTERS_KEY: counters})


def test_a_view_that_is_well_says_what_its_node_has() -> None:
    [(name, found)] = publishing.published([view_of(WELL)], CATALOG).nodes.items()
    assert (name, found.product, found.memory_mib, found.other) == ("n", "H", 100, {"rdma/hca": 2})
    before = publishing.read_previous(view_of(WELL))
    assert (before.held, before.resources) == ({"uid-1": (("c", "g0"),)}, ("nvidia.com/gpu", "rdma/hca"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gpuMemory: 100", "gpuMemory: .inf"),
        ("gpuMemory: 100", "gpuMemory: .nan"),
        ("gpuMemory: 100", "gpuMemory: -5"),
        ("gpuMemory: 100", "gpuMemory: 1000000000000"),
        ("gpuProduct: H", f"gpuProduct: {'H' * 1000}"),
        ("id: g0", "id: bad name"),
        ("id: g0", f"id: {'g' * 1000}"),
        ("fbUsed: 1", "fbUsed: .inf"),
        ("mixed", "unheard-of"),
        ("count: 2", "count: -7"),
        ("count: 2", "count: 100000000"),
        ("rdma/hca", "bad name"),
        ("[{name", "[" + "{name: rdma/x, count: 1}, " * 100 + "{name"),
        (f"- {GPU}", f"- {GPU}\n" * 1025),
        ("H", "[" * 100),
    ],
)
def test_a_view_of_what_no_node_can_have_says_nothing(old: str, new: str) -> None:
    broken = view_of(WELL.replace(old, new))
    assert publishing.published([broken, view_of("")], CATALOG).nodes == {}
    assert publishing.read_previous(broken) == publishing.PreviousView()
    with pytest.raises(errors.InputError, match="ConfigMap topology-n"):
        publishing.view_json(broken)


def test_a_gpu_without_memory_is_none_that_was_published() -> None:
    assert publishing.published([view_of(WELL.replace("gpuMemory: 100", "gpuMemory: 0"))], CATALOG).nodes == {}


@pytest.mark.parametrize(
    "counters",
    [
        "[" * 100_000,
        '{"gpus": ' * 100_000,
        "[]",
        "{",
        '{"time": 1e999}',
        f'{{"gpus": {{"g0": [{",".join("1" * 1000)}]}}}}',
        '{"gpus": 5}',
    ],
)
def test_counters_that_somebody_broke_start_anew_and_pods_keep_their_gpus(counters: str) -> None:
    before = publishing.read_previous(view_of(WELL, counters))
    assert before.counters.gpus == {}
    assert before.broken
    assert before.held == {"uid-1": (("c", "g0"),)}


def test_only_labels_of_ours_are_taken_from_a_view() -> None:
    listed = "nvidia.com/gpu.count,kubernetes.io/hostname,bad name,nvidia.com/gpu.deploy.dra-plugin-gpu"
    found = publishing.owned_labels(view_of(WELL, labelled=listed))
    assert found == ("nvidia.com/gpu.count", "nvidia.com/gpu.deploy.dra-plugin-gpu")


@given(st.text(), st.text())
def test_any_view_is_read_or_says_nothing(text: str, counters: str) -> None:
    publishing.published([view_of(text, counters)], CATALOG)
    publishing.read_previous(view_of(text, counters))


NAMES = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?){0,6}", fullmatch=True
).filter(lambda name: len(name) <= 253)


@given(NAMES)
def test_a_view_is_named_as_the_api_allows_and_says_which_node_it_is_of(name: str) -> None:
    body = publishing.view(name, [], pools.NodeGpus(()), strategy="mixed", users={}, counters={})
    meta = views.ObjectMeta(name=publishing.view_name(name), **body["metadata"])
    assert len(meta.name) <= 253
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", meta.name)
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", meta.labels[vocabulary.VIEW_NODE_LABEL])
    assert publishing.node_of(views.ConfigMap(metadata=meta)) == name


def test_a_view_cannot_pass_for_that_of_another_node() -> None:
    meta = views.ObjectMeta(name="topology-mine", annotations={vocabulary.VIEW_NODE_ANNOTATION: "yours"})
    assert publishing.node_of(views.ConfigMap(metadata=meta)) == "mine"
