"""How nodes are numbered, and what manifests hold."""

from __future__ import annotations

from simgpu.cluster import populate


def test_node_numbers() -> None:
    assert populate.node_number(populate.node_name(12)) == 12
    assert populate.node_number("kwok-gpu-node-x") is None
    assert populate.node_number("other-1") is None
    assert populate.node_number("kwok-gpu-node-007") is None, "that is not node 7"


def test_every_manifest_can_be_applied() -> None:
    for name in ("stage-crd.yaml", "stages.yaml", "sample.yaml"):
        for body in populate.manifest(name):
            assert body["kind"] in populate._RESOURCES
            assert body["metadata"]["name"]
