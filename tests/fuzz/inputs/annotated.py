"""What users write at objects of the API: annotations of pods and of nodes, and whole pods and nodes."""

from __future__ import annotations

import functools
import json

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers.configuring import Configuration
from simgpu.dra import claims
from simgpu.kube import errors as kube_errors
from simgpu.kube import views
from simgpu.kube.client import decode
from simgpu.kube.store import Store
from simgpu.pods import requests
from simgpu.topology import failures, inline, mig_choice, pools, reading
from tests.fixtures import annotated
from tests.fuzz.target import Target, encoded, numbered, split, text

_PARSERS = tuple(annotated.PARSERS.values())
_TOPOLOGY = """
nodePools:
  a: {gpus: [{type: h200, count: 2}], mig: {strategy: mixed}}
  b: {gpuProduct: Tesla-K80, gpuCount: 2, gpuMemory: 11441, otherDevices: [{name: example.com/x, count: 2}]}
mig-configs: {own: [{devices: all, mig-enabled: true, mig-devices: {1g.18gb: 7}}]}
"""


def _annotation(data: bytes) -> None:
    """One annotation has a value, or is refused with a reason."""
    number, rest = split(data, len(_PARSERS))
    parser = _PARSERS[number]
    try:
        found = parser.read(annotated.pod({parser.name: text(rest)}))
    except errors.InputError as error:
        annotated.check_text(str(error), parser.name)
        return
    assert parser.right(found)


def _pod(data: bytes) -> None:
    """A pod of the API server is a user of GPUs whatever it holds, and what it asks for is a number."""
    try:
        pod = decode(data, views.Pod)
    except kube_errors.UnreadableAnswer:
        return
    annotated.check_pod(pod, "train")
    assert all(0 < item.count <= vocabulary.MAX_GPUS for item in requests.requests(pod))
    for reference in claims.references(pod):
        assert isinstance(reference.name, str)


@functools.cache
def _catalog() -> models.Catalog:
    return models.load()


@functools.cache
def _configuration() -> Configuration:
    topology = views.ConfigMap(
        metadata=views.ObjectMeta(name=vocabulary.TOPOLOGY, namespace="ns", uid="t"),
        data={vocabulary.TOPOLOGY_KEY: _TOPOLOGY},
    )
    store: Store[views.ConfigMap] = Store()
    store.replace([topology])
    made = Configuration(store, annotated.Events(), namespace="ns", catalog=_catalog())  # type: ignore[arg-type]
    assert made.read()
    return made


def _node(data: bytes) -> None:
    """A node of the API server has GPUs, or what is wrong is reported as an event."""
    try:
        node = decode(data, views.Node)
    except kube_errors.UnreadableAnswer:
        return
    configuration = _configuration()
    found = configuration.gpus_of(node, lambda _name: None)
    if found is None:
        return
    assert len(found.gpus) <= vocabulary.MAX_GPUS
    failing = configuration.failures_of(node, found)
    assert failing.next_change(0.0) is None or failing.next_change(0.0) > 0  # type: ignore[operator]
    labels, annotations = node.metadata.labels, node.metadata.annotations
    assert configuration.current is not None
    try:
        divided = mig_choice.apply(mig_choice.choose(labels, annotations, found), found, configuration.current)
    except errors.InputError as error:
        str(error).encode()
        return
    pools.build(divided, node.metadata.name or "n")


@functools.cache
def _two_cards() -> pools.NodeGpus:
    return reading.parse(_TOPOLOGY, _catalog()).pools["a"]


def _gpus(line: str) -> None:
    assert 1 <= len(inline.parse(line, _catalog(), field="gpus").gpus) <= vocabulary.MAX_GPUS


def _failing(document: str) -> None:
    found, at = failures.read(document, field="failures"), 0.0
    for _ in range(20):
        assert found.lost_at(at) <= set(range(vocabulary.MAX_GPUS))
        following = found.next_change(at)
        if following is None:
            return
        assert following > 0
        at += following


def _layout(document: str) -> None:
    cards = _two_cards()
    choice = mig_choice.choose({}, {vocabulary.RUNAI_MIG_CONFIG: document}, cards)
    mig_choice.apply(choice, cards, _configuration().current or pools.Topology())


_NODE_READERS = (_gpus, _failing, _layout)


def _node_annotation(data: bytes) -> None:
    """One annotation of a node is followed, or refused with the field."""
    number, rest = split(data, len(_NODE_READERS))
    try:
        _NODE_READERS[number](text(rest))
    except errors.InputError as error:
        str(error).encode()


_RUNAI = """version: v1
mig-configs: {selected: [{devices: [0], mig-enabled: true, mig-devices: [{name: 1g.18gb, position: 0, size: 1}]}]}
"""
_FAILING = "{refuse: true, delay: 1, flap: 0.5, unhealthy: [0], dying: [{gpu: 1, after: 3, for: 2}]}"
_POD = {
    "metadata": {
        "name": "p", "namespace": "ns", "uid": "u", "labels": {vocabulary.KIND_LABEL: "TrainingWorkload"},
        "annotations": {parser.name: parser.valid[0] for parser in _PARSERS if parser.name != annotated.CONFIG_MAP},
        "ownerReferences": [{"kind": "Job", "name": "j", "uid": "j"}],
    },
    "spec": {
        "nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
    },
    "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
}  # fmt: skip
_NODE = {
    "metadata": {
        "name": "n", "uid": "n", "labels": {vocabulary.POOL_LABEL: "a", vocabulary.MIG_CONFIG: "own"},
        "annotations": {
            vocabulary.FAILURES_ANNOTATION: _FAILING, vocabulary.GPUS_ANNOTATION: "h200:2,t4:1",
            vocabulary.ALLOCATION_ANNOTATION: "dra", vocabulary.RUNAI_MIG_CONFIG: _RUNAI,
        },
    },
    "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}},
}  # fmt: skip

TARGETS = (
    Target("annotations", _annotation, numbered(parser.valid for parser in _PARSERS)),
    Target("pods", _pod, encoded([json.dumps(_POD)]), tuple(annotated.VALID)),
    Target("nodes", _node, encoded([json.dumps(_NODE)])),
    Target("node-annotations", _node_annotation, numbered([["h200:8", "h200:4,t4:2"], [_FAILING, ""], [_RUNAI]])),
)
