"""What `simgpu cleanup` finds on nodes, from views and from marks."""

from __future__ import annotations

import msgspec

from simgpu import vocabulary
from simgpu.controllers import cleaning, publishing
from simgpu.dra.slices import PublishedSlice
from simgpu.kube.views import ConfigMap, Node
from simgpu.topology import pools

GPU = "nvidia.com/gpu"


def node(labels: dict[str, str], capacity: dict[str, str], *, fake: bool) -> Node:
    annotations = {vocabulary.KWOK_NODE: "fake"} if fake else {vocabulary.RUNAI_MIG_MAPPING: "e30="}
    document = {
        "metadata": {"name": "n", "labels": labels, "annotations": annotations}, "status": {"capacity": capacity},
    }  # fmt: skip
    return msgspec.convert(document, Node)


def test_a_fake_node_loses_its_capacity_and_the_labels_that_its_view_names() -> None:
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.family": "others", "zone": "a"}
    view = publishing.view(
        "n", [], pools.NodeGpus(()), strategy="none", users={}, counters={}, labelled=["nvidia.com/gpu.count"]
    )
    found = cleaning.on_node(node(labels, {GPU: "2", "cpu": "1"}, fake=True), msgspec.convert(view, ConfigMap))
    assert found == cleaning.NodeLeftovers("n", ("nvidia.com/gpu.count",), (GPU,))
    assert found.patch()["status"]["capacity"] == {GPU: None}


def test_marks_say_what_is_ours_where_a_view_is_missing() -> None:
    labels = ("nvidia.com/gpu.count", vocabulary.MIG_CONFIG_STATE, "nvidia.com/mig-1g.18gb.count")
    marked = {**dict.fromkeys(labels, "2"), vocabulary.MANAGED_LABEL: "true", "zone": "a", vocabulary.MIG_CONFIG: "x"}
    found = cleaning.on_node(node(marked, {GPU: "0", "nvidia.com/mig-1g.18gb": "0"}, fake=False), None)
    assert found == cleaning.NodeLeftovers(
        "n", tuple(sorted((*labels, vocabulary.MANAGED_LABEL))), (GPU, "nvidia.com/mig-1g.18gb"),
        (vocabulary.RUNAI_MIG_MAPPING,),
    )  # fmt: skip
    assert found.patch()["metadata"]["annotations"] == {vocabulary.RUNAI_MIG_MAPPING: None}
    fake = {"nvidia.com/gpu.count": "2", vocabulary.FAKE_GPU_LABEL: "true"}
    assert cleaning.on_node(node(fake, {GPU: "2"}, fake=True), None) == cleaning.NodeLeftovers(
        "n", ("nvidia.com/gpu.count", vocabulary.FAKE_GPU_LABEL), (GPU,)
    )


def published(name: str, **labels: str) -> PublishedSlice:
    owner = {"kind": "Node", "name": "n", "uid": "u"}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": {"name": "n"}}
    body = {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(body), type=PublishedSlice)


def test_slices_of_fake_nodes_and_of_agents_are_ours_and_those_of_other_drivers_are_not() -> None:
    ours = [
        published("kwok-n-gpu", **{vocabulary.SLICE_LABEL: "true"}), published("n-gpu.nvidia.com"),
        published("n-gpu.nvidia.com-1"),
    ]  # fmt: skip
    others = [published("n-gpu.nvidia.com-x7k2p"), published("n-gpu.nvidia.com-24567"), published("kwok-n-gpu")]
    assert [cleaning.is_our_slice(item) for item in (*ours, *others)] == [True] * 3 + [False] * 3
    stray = PublishedSlice(ours[1].metadata)
    assert not cleaning.is_our_slice(stray)


def test_a_class_is_ours_if_nobody_else_has_set_any_of_it() -> None:
    def ours(*managers: str, name: str = "gpu.nvidia.com", **labels: str) -> bool:
        fields = [{"manager": manager} for manager in managers]
        body = {"metadata": {"name": name, "labels": labels, "managedFields": fields}}
        return cleaning.is_our_class(msgspec.convert(body, cleaning.ManagedClass))

    assert ours(vocabulary.MANAGER)
    assert ours(vocabulary.MANAGER, name="mig.nvidia.com")
    assert not ours(vocabulary.MANAGER, "helm")
    assert not ours(vocabulary.MANAGER, name="other.example.com")
    assert not ours(vocabulary.MANAGER, **{"app.kubernetes.io/managed-by": "Helm"})
    assert not ours()


def test_gpus_that_a_kubelet_counts_and_labels_of_others_stay() -> None:
    real = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.present": "true"}
    assert cleaning.on_node(node(real, {GPU: "8"}, fake=False), None) is None
    managed = {vocabulary.MANAGED_LABEL: "true"}
    found = cleaning.on_node(node(managed, {GPU: "8"}, fake=False), None)
    assert found == cleaning.NodeLeftovers("n", (vocabulary.MANAGED_LABEL,), (), (vocabulary.RUNAI_MIG_MAPPING,))
