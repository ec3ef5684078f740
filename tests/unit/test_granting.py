"""What containers are given, and what labels and the node's view tell of who shares a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from simgpu import vocabulary
from simgpu.controllers import feature_labels, publishing
from simgpu.machines.users import PodRef, Range, User
from simgpu.node import granting
from simgpu.topology import sharing
from tests.fixtures.equipment import IDS, share, spec


def test_a_container_gets_its_own_pages_and_nothing_more(tmp_path: Path) -> None:
    programs = granting.Programs(tmp_path / "lib", tmp_path / "smi")
    source = granting.Source(tmp_path, tmp_path / "run", programs)
    answer = granting.gpus(["GPU-a::3", "GPU-a::4", "GPU-b"], node="n", source=source)
    assert answer.envs["MOCK_NVIDIA_VISIBLE_DEVICES"] == answer.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert answer.envs["NODE_NAME"] == "n"
    assert all(mount.read_only for mount in answer.mounts)
    pages = [mount.container_path for mount in answer.mounts if "GPU-" in mount.container_path]
    assert pages == ["/var/lib/simgpu/gpus/GPU-a", "/var/lib/simgpu/gpus/GPU-b"]
    assert {"/bin/nvidia-smi", "/run/simgpu"} <= {mount.container_path for mount in answer.mounts}
    assert granting.others(node="n").mounts == ()


def test_programs_of_another_version_lie_beside_those_in_use(tmp_path: Path) -> None:
    library, tool = tmp_path / "library", tmp_path / "tool"
    library.write_text("one")
    tool.write_text("one")
    first = granting.install(library, tool, tmp_path / "state")
    tool.write_text("two")
    second = granting.install(library, tool, tmp_path / "state")
    assert (first.tool.read_text(), second.tool.read_text()) == ("one", "two")
    assert granting.install(library, tool, tmp_path / "state") == second


def test_programs_that_are_not_whole_are_put_there_anew(tmp_path: Path) -> None:
    library, tool = tmp_path / "library", tmp_path / "tool"
    library.write_text(vocabulary.LIBRARY)
    tool.write_text(vocabulary.SMI)
    first = granting.install(library, tool, tmp_path / "state")
    inode = first.tool.stat().st_ino
    first.library.write_bytes(b"")
    assert granting.install(library, tool, tmp_path / "state") == first
    assert first.library.read_text() == vocabulary.LIBRARY
    assert first.library.stat().st_mode & 0o777 == 0o755
    assert first.tool.stat().st_ino == inode


def labels(**slicing: Any) -> dict[str, str]:
    resource = {"name": "nvidia.com/gpu", "replicas": 4}
    made = sharing.parse({"timeSlicing": {"resources": [resource], **slicing}}, field="sharing")
    return feature_labels.labels(spec(2, slicing=made), "mixed")


def test_labels_say_how_gpus_are_shared() -> None:
    names = ("nvidia.com/gpu.product", "nvidia.com/gpu.replicas", "nvidia.com/gpu.sharing-strategy")
    assert [labels()[name] for name in names] == ["NVIDIA-H200-SHARED", "4", "time-slicing"]
    assert [labels(renameByDefault=True)[name] for name in names] == ["NVIDIA-H200", "4", "time-slicing"]
    assert [feature_labels.labels(spec(2), "mixed")[name] for name in names] == ["NVIDIA-H200", "1", "none"]


def test_the_view_names_all_that_share_a_gpu() -> None:
    uses = {IDS[0]: (share("p"), share("q"))}
    body = publishing.view("node-a", IDS[:1], spec(1), strategy="mixed", users=uses, counters={}, fake=False)
    text = body["data"]["topology.yml"]
    assert "uid-p" in text
    assert "uid-q" in text
    assert json.loads(body["data"]["counters.json"]) == {}
    assert vocabulary.KWOK_NODE not in body["metadata"]["annotations"]


def test_the_view_has_what_all_containers_of_a_pod_use() -> None:
    both = tuple(User(PodRef("p", "ns", name, "uid-p"), Range(50, 50), 1000) for name in ("a", "b"))
    body = publishing.view("node-a", IDS[:1], spec(1), strategy="mixed", users={IDS[0]: both}, counters={}, fake=False)
    [gpu] = yaml.safe_load(body["data"]["topology.yml"])["gpus"]
    assert gpu["status"]["podGpuUsageStatus"]["uid-p"]["fbUsed"] == 2000
