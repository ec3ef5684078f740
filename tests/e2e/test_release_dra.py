"""The chart with dynamic resource allocation: pods of the real node claim GPUs, and fake nodes publish theirs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.agent import NAMESPACE, POOL_LABEL
from tests.fixtures.claimed import CLASS, Claimed
from tests.fixtures.machine import wait_for
from tests.fixtures.release import A100, Release

KWOK = "kwok-gpu-node-1"
# As users of fake-gpu-operator turn it on.
VALUES: dict[str, Any] = {
    "devicePlugin": {"enabled": False}, "kwokGpuDevicePlugin": {"enabled": False},
    "draPlugin": {"enabled": True}, "kwokDraPlugin": {"enabled": True},
}  # fmt: skip
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@pytest.fixture(scope="module")
def claimed(release: Release) -> Iterator[Claimed]:
    """The real node with the release's two GPUs for claims, and at the end without anything of the release."""
    node = release.node
    node.kubectl("label", "node", node.name, f"{POOL_LABEL}=default")
    release.upgrade(**VALUES)
    made = Claimed(node)
    made.url = f"http://{release.exporter_of(node.name)['status']['podIP']}:9400"
    wait_for(lambda: len(made.offered()) == 2, "two devices")
    yield made
    rejected = [act for act in release.acts() if act.code == 403]  # before permissions go with the release
    release.helm("uninstall", "gpu-operator", "--wait", "--timeout", "120s")
    assert rejected == []
    wait_for(lambda: release.get("resourceslices")["items"] == [], "slices to be gone")
    assert not made.files()
    assert not [*node.machine.path("/var/lib/kubelet/plugins_registry").glob("*nvidia*")]


@pytest.fixture
def emptied(claimed: Claimed) -> Iterator[Claimed]:
    """All GPUs are free again after a test."""
    yield claimed
    claimed.node.kubectl("delete", "pods", "--all", "--now")
    claimed.node.kubectl("delete", "resourceclaims,resourceclaimtemplates", "--all", "--timeout=60s")
    wait_for(lambda: not claimed.files(), "claims to be unprepared")


def test_pods_that_serve_claims_are_found_by_their_component(claimed: Claimed, release: Release) -> None:
    pods = release.pods("app.kubernetes.io/component=kubeletplugin")
    assert claimed.node.name in {pod["spec"]["nodeName"] for pod in pods}
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}


def test_pods_of_one_template_have_different_gpus_and_a_tool_that_shows_them(emptied: Claimed) -> None:
    emptied.claim("each", template=True)
    emptied.use("one", "each", template=True)
    emptied.use("two", "each", template=True)
    emptied.node.kubectl("annotate", "pod", "one", "run.ai/simulated-gpu-utilization=50-100")
    emptied.running("one", "two")
    [first], [second] = emptied.gpu_names("one"), emptied.gpu_names("two")
    assert first != second
    assert re.fullmatch(r"gpu-[a-z0-9-]+", first)
    emptied.exec("one", "sh", "-c", "test -x /bin/nvidia-smi")
    assert "command not found" not in emptied.exec("one", "/bin/nvidia-smi", "--help")
    shown = emptied.exec("one", "nvidia-smi")
    assert "NVIDIA-SMI" in shown
    assert "GPU" in shown
    for _ in range(5):
        (busy,) = re.findall(r"(\d+)% +Default", emptied.exec("one", "nvidia-smi", "--debug"))
        assert 0 <= int(busy) <= 100


def test_pods_that_share_a_claim_share_its_gpu(emptied: Claimed) -> None:
    emptied.claim("shared")
    emptied.use("first", "shared")
    emptied.use("second", "shared")
    emptied.running("first", "second")
    [gpu] = emptied.gpu_names("first")
    assert emptied.gpu_names("second") == {gpu}


def test_containers_learn_how_their_gpu_is_shared(emptied: Claimed) -> None:
    slicing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}
    parts = {"strategy": "SpacePartitioning", "spacePartitioningConfig": {"partitionCount": 10}}
    wanted = {"slicing": (slicing, "TIMESLICE_INTERVAL", "Default"), "parts": (parts, "PARTITION_COUNT", "10")}
    for name, (sharing, _, _) in wanted.items():
        emptied.claim(name, sharing=sharing)
        emptied.use(name, name, containers=("left", "right"))
    emptied.running(*wanted)
    for name, (sharing, key, value) in wanted.items():
        left, right = (emptied.devices(name, container) for container in ("left", "right"))
        [gpu] = emptied.gpu_names(name, "left")
        variable = f"GPU_DEVICE_{gpu.replace('-', '_')}"
        assert left == right
        assert left == {
            variable: gpu, f"{variable}_SHARING_STRATEGY": sharing["strategy"], f"{variable}_{key}": value,
        }  # fmt: skip


def test_fake_nodes_publish_their_gpus_and_keep_them_when_their_view_is_labelled(
    claimed: Claimed, release: Release
) -> None:
    name = f"kwok-{KWOK}-gpu"
    found = release.get("resourceslice", name)["spec"]
    assert (found["driver"], found["nodeName"]) == (CLASS, KWOK)
    assert len(found["devices"]) == 2
    for device in found["devices"]:
        assert re.fullmatch(rf"gpu-{UUID}", device["name"])
        assert device["attributes"]["model"] == {"string": A100}
        assert re.fullmatch(rf"GPU-{UUID}", device["attributes"]["uuid"]["string"])
    claimed.node.kubectl("label", "configmap", f"topology-{KWOK}", "-n", NAMESPACE, "example.com/mine=yes")
    # A change of the node afterwards has come through: so has the label's.
    claimed.node.kubectl("annotate", "node", KWOK, "simgpu.dev/gpus=h200:3")
    wait_for(lambda: len(release.get("resourceslice", name)["spec"]["devices"]) == 3, "the node's own GPUs")
    claimed.node.kubectl("annotate", "node", KWOK, "simgpu.dev/gpus-")
    wait_for(lambda: release.get("resourceslice", name)["spec"]["devices"] == found["devices"], "the pool's GPUs")
