"""Resources and labels of divided nodes, as NVIDIA's device plugin and feature discovery have them."""

from __future__ import annotations

import pytest

from simgpu.catalog import models
from simgpu.controllers import feature_labels, mig_labels, publishing
from simgpu.kube.views import ConfigMap, ObjectMeta
from simgpu.topology import devices, pools, reading

CATALOG = models.load()


def node(mig: str, gpus: str = "[{type: h200, count: 2}]", more: str = "") -> pools.NodeGpus:
    return reading.parse(f"nodePools: {{p: {{gpus: {gpus}, mig: {mig}{more}}}}}", CATALOG).pools["p"]


def test_single_offers_instances_as_gpus_and_the_product_names_the_profile() -> None:
    spec = node("{config: all-1g.18gb}")
    assert publishing.amounts(spec, "single") == {"nvidia.com/gpu": "14"}
    found = feature_labels.labels(spec, "single")
    wanted = {
        "gpu.product": "NVIDIA-H200-MIG-1g.18gb", "gpu.count": "14", "gpu.memory": "16384", "gpu.replicas": "1",
        "gpu.multiprocessors": "16", "gpu.slices.gi": "1", "gpu.slices.ci": "1", "gpu.engines.copy": "1",
        "gpu.engines.decoder": "1", "gpu.engines.encoder": "0", "gpu.engines.jpeg": "1", "gpu.engines.ofa": "0",
        "mig.strategy": "single", "mig.capable": "true", "gpu.family": "hopper",
    }  # fmt: skip
    assert {name: found[f"nvidia.com/{name}"] for name in wanted} == wanted


@pytest.mark.parametrize(
    "config", ["all-balanced", "all-enabled", "[{devices: [0], mig-enabled: true, mig-devices: {7g.141gb: 1}}]"]
)
def test_single_offers_nothing_where_instances_differ_or_are_missing(config: str) -> None:
    spec = node(f"{{config: {config}}}")
    assert publishing.amounts(spec, "single") == {}
    found = feature_labels.labels(spec, "single")
    names = ("product", "count", "replicas", "memory")
    assert [found[f"nvidia.com/gpu.{name}"] for name in names] == ["NVIDIA-H200-MIG-INVALID", "0", "0", "0"]


def test_mixed_offers_each_profile_and_the_cards_that_are_whole() -> None:
    spec = node("{config: [{devices: [1], mig-enabled: true, mig-devices: {1g.18gb+me: 1, 3g.71gb: 1, 1g.18gb: 2}}]}")
    assert publishing.amounts(spec, "mixed") == {
        "nvidia.com/gpu": "1", "nvidia.com/mig-1g.18gb": "2", "nvidia.com/mig-1g.18gb.me": "1",
        "nvidia.com/mig-3g.71gb": "1",
    }  # fmt: skip
    found = feature_labels.labels(spec, "mixed")
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.replicas"]) == ("2", "1")
    assert found["nvidia.com/mig-1g.18gb.me.product"] == "NVIDIA-H200-MIG-1g.18gb.me"
    assert found["nvidia.com/mig-1g.18gb.me.engines.ofa"] == "1"
    assert (found["nvidia.com/mig-3g.71gb.memory"], found["nvidia.com/mig-3g.71gb.multiprocessors"]) == ("71424", "60")
    assert found["nvidia.com/mig-3g.71gb.slices.gi"] == "3"
    assert all(mig_labels.is_ours(name) for name in found if name.startswith("nvidia.com/mig-"))


def test_mixed_without_a_whole_card_has_no_gpus_but_counts_them_in_the_label() -> None:
    spec = node("{config: all-3g.71gb}")
    assert publishing.amounts(spec, "mixed") == {"nvidia.com/mig-3g.71gb": "4"}
    found = feature_labels.labels(spec, "mixed")
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.replicas"]) == ("2", "0")


def test_the_strategy_none_knows_only_whole_cards() -> None:
    spec = node("{config: all-3g.71gb}")
    assert publishing.amounts(spec, "none") == {"nvidia.com/gpu": "2"}
    found = feature_labels.labels(spec, "none")
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert not [name for name in found if mig_labels.is_ours(name)]


def test_instances_of_unhealthy_cards_are_not_allocatable() -> None:
    spec = node("{config: all-balanced}")
    found = publishing.amounts(spec, "mixed", unhealthy=[0])
    assert found == {"nvidia.com/mig-1g.18gb": "2", "nvidia.com/mig-2g.35gb": "1", "nvidia.com/mig-3g.71gb": "1"}


def test_instances_that_are_shared_count_as_often() -> None:
    slicing = "sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-3g.71gb, replicas: 4}]}}"
    spec = node("{config: all-3g.71gb}", more=f", {slicing}")
    assert publishing.amounts(spec, "mixed") == {"nvidia.com/mig-3g.71gb": "16"}
    found = feature_labels.labels(spec, "mixed")
    assert found["nvidia.com/mig-3g.71gb.product"] == "NVIDIA-H200-MIG-3g.71gb-SHARED"
    assert found["nvidia.com/mig-3g.71gb.replicas"] == "4"


@pytest.mark.parametrize("name", ["nvidia.com/mig-x.count", "nvidia.com/mig.strategy", "nvidia.com/gpu.product", "a"])
def test_other_labels_are_not_taken_for_ours(name: str) -> None:
    assert not mig_labels.is_ours(name)


def test_a_view_has_the_instances_with_their_ids_and_a_node_is_restored_from_it() -> None:
    spec = node("{strategy: single, config: [{devices: [0], mig-enabled: true, mig-devices: {3g.71gb: 2}},"
                " {devices: [1], mig-enabled: true}]}")  # fmt: skip
    ids = [device.uuid for device in pools.build(spec, "n")]
    labels = feature_labels.labels(spec, "single") | feature_labels.labels(spec, "mixed")
    body = publishing.view("n", ids, spec, strategy="single", users={}, counters={}, labelled=labels)
    view = ConfigMap(metadata=ObjectMeta(name="topology-n", **body["metadata"]), data=body["data"])
    restored = publishing.published([view], CATALOG).nodes["n"]
    assert [gpu.layout for gpu in restored.gpus] == [gpu.layout for gpu in spec.gpus]
    assert restored.mig.strategy == "single"
    mig = publishing.view_json(view)["Gpus"][0]["Mig"]["Instances"]
    assert mig == [
        {"Id": devices.part_id(ids[0], 1), "Profile": "3g.71gb", "Start": 0},
        {"Id": devices.part_id(ids[0], 2), "Profile": "3g.71gb", "Start": 4},
    ]
    before = publishing.read_previous(view)
    assert set(before.labels) == set(labels)
    assert before.resources == ("nvidia.com/gpu", "nvidia.com/mig-3g.71gb")
