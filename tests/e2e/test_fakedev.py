"""`examples/10-fakedev` as people deploy it: the exporter's socket in a folder of the node, and its workloads."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.machine import wait_for
from tests.fixtures.node import Node

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "10-fakedev"
FOLDER = "/run/fakedev-exporter"
EXPORTERS = ("-l", "app=fakedev-exporter")


def manifest(name: str, image: str, folder: Path, sockets: Path) -> str:
    """An example with an image that the node has, and the folder of the node at a place that is only ours."""
    text, count = re.subn(r"image: \S+", f"image: {image}", (EXAMPLES / name).read_text())
    assert count >= 1
    assert FOLDER in text
    path = folder / name
    path.write_text(text.replace(FOLDER, str(sockets)).replace("completions: 16", "completions: 2"))
    return str(path)


@pytest.fixture
def exporter(node: Node, python_image: str, tmp_path: Path) -> Iterator[tuple[Node, str]]:
    """The exporter's address."""
    sockets = tmp_path / "sockets"  # which the kubelet makes, as root
    daemonset = manifest("daemonset.yaml", python_image, tmp_path, sockets)
    job = manifest("job.yaml", python_image, tmp_path, sockets)
    node.kubectl("label", "node", node.name, "simgpu.dev/box=true")
    node.kubectl("apply", "-f", daemonset)
    try:
        node.kubectl("rollout", "status", "daemonset/fakedev-exporter", "--timeout=60s")
        (pod,) = json.loads(node.kubectl("get", "pods", *EXPORTERS, "-o", "json"))["items"]
        node.kubectl("apply", "-f", job)
        yield node, f"http://{pod['status']['podIP']}:9400/metrics"
    finally:
        for path in (job, daemonset):
            node.kubectl("delete", "-f", path, "--ignore-not-found", "--now", "--timeout=60s")
        node.kubectl("label", "node", node.name, "simgpu.dev/box-")


def test_workloads_reach_the_exporter_through_a_folder_of_the_node(exporter: tuple[Node, str]) -> None:
    node, address = exporter
    wait_for(lambda: len(shown(address)) == 2, "two pods with a card each", seconds=60)
    status = node.kubectl("exec", "daemonset/fakedev-exporter", "--", "cat", "/proc/1/status")
    assert re.search(r"^Uid:\t65534\t", status, re.MULTILINE)
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)


def shown(address: str) -> set[str]:
    """The workloads' pods that the exporter's page names."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        return set(re.findall(r'kube_pod="(fakedev-workloads[^"]*)"', answer.read().decode()))
