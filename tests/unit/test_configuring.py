"""Events about the configuration of nodes and pods."""

from __future__ import annotations

from typing import Any

from simgpu.catalog import models
from simgpu.controllers.configuring import Configuration
from simgpu.kube.recording import Subject
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, ObjectMeta
from simgpu.topology import failures, pools
from simgpu.vocabulary import TOPOLOGY, TOPOLOGY_KEY


class Recorded:
    """A recorder that keeps messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def record(self, _subject: Subject, _kind: str, _reason: str, message: str) -> None:
        self.messages.append(message)


def node(**annotations: str) -> Node:
    marks = {f"simgpu.dev/{name}": value for name, value in annotations.items()}
    return Node(metadata=ObjectMeta(name="n", uid="u", annotations=marks))


def test_a_problem_is_reported_again_only_after_it_was_solved() -> None:
    recorder: Any = Recorded()
    configuration = Configuration(Store(), recorder, namespace="gpu", catalog=models.load())
    spec, bad = pools.NodeGpus(()), node(failures="nonsense")
    for now in (bad, bad, node(), bad):
        assert configuration.failures_of(now, spec) == failures.NONE
    assert len(recorder.messages) == 2


def test_names_of_shared_resources_are_those_of_all_pools() -> None:
    recorder: Any = Recorded()
    shared = (
        "{timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}",
        "{timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, rename: example.com/slice}]}}",
    )
    found = ", ".join(f"p{at}: {{gpus: [{{type: h200}}], sharing: {item}}}" for at, item in enumerate(shared))
    meta = ObjectMeta(name=TOPOLOGY, namespace="gpu", uid="t", resource_version="1")
    store = Store[ConfigMap]()
    store.replace([ConfigMap(metadata=meta, data={TOPOLOGY_KEY: f"nodePools: {{{found}}}"})])
    configuration = Configuration(store, recorder, namespace="gpu", catalog=models.load())
    assert configuration.read()
    assert configuration.renamed == {"nvidia.com/gpu.shared", "example.com/slice"}


def test_another_problem_with_the_same_reason_takes_the_place_of_the_first() -> None:
    recorder: Any = Recorded()
    configuration = Configuration(Store(), recorder, namespace="gpu", catalog=models.load())
    for message in ("one", "one", "two", "one"):
        configuration.report(Subject("v1", "Pod", "p", "ns", "u"), "Reason", message)
    assert recorder.messages == ["one", "two", "one"]
