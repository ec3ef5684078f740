"""GPUs of a real node through claims: what pods, the kubelet, the scheduler and Prometheus see."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures import images
from tests.fixtures.agent import H200, Gpus
from tests.fixtures.claimed import CLASS, Claimed
from tests.fixtures.machine import wait_for
from tests.fixtures.node import Node

# As in the README of fake-gpu-operator: images with no command of their own in the manifests.
BASIC = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata:
  name: gpu-claim
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
---
apiVersion: v1
kind: Pod
metadata:
  name: gpu-pod
spec:
  containers:
  - name: main
    image: ubuntu:22.04
    resources:
      claims:
      - name: gpu
  resourceClaims:
  - name: gpu
    resourceClaimTemplateName: gpu-claim
"""


@pytest.fixture(scope="module")
def _with_images(node: Node, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The images that others' manifests name: ours, with a default command that waits."""
    archive = tmp_path_factory.mktemp("images") / "images.tar"
    images.busybox_as(archive, ["ubuntu:22.04", "nvidia/cuda-vector-add:v0.1"])
    node.load(archive)


@pytest.fixture
def claimed(equipped: Gpus, _with_images: None) -> Iterator[Claimed]:
    """The node with eight GPUs for claims, all well, no pods and no claims."""
    made = Claimed(equipped.node)
    made.agent = equipped.agent
    made.publish_classes()
    made.fail("")
    made.configure({**H200, "allocation": "dra"})
    wait_for(lambda: len(made.offered()) == 8, "eight devices", seconds=30)
    yield made
    made.node.kubectl("delete", "pods", "--all", "--now")
    made.node.kubectl("delete", "resourceclaims,resourceclaimtemplates", "--all", "--timeout=60s")
    wait_for(lambda: not made.held(), "pods to be gone")
    wait_for(lambda: not made.files(), "claims to be unprepared")
    made.configure(H200)


def test_the_nodes_gpus_are_slices_and_no_capacity(claimed: Claimed) -> None:
    claimed.have(0)
    [item] = claimed.slices()
    assert item["metadata"]["name"] == f"{claimed.node.name}-{CLASS}"
    [owner] = item["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", claimed.node.name, True)
    assert item["spec"]["pool"]["name"] == claimed.node.name
    assert "simgpu.dev/fake-node" not in item["metadata"].get("labels", {})


def test_a_pod_with_a_claim_sees_exactly_the_devices_of_its_claim(claimed: Claimed) -> None:
    claimed.claim("two", count=2)
    claimed.use("both", "two")
    claimed.running("both")
    wanted = claimed.allocated("two")
    assert sorted(gpu.lower() for gpu in claimed.sees("both")) == sorted(wanted)
    listed = claimed.exec("both", "nvidia-smi", "-L")
    assert sorted(f"gpu-{item}" for item in re.findall(r"UUID: GPU-([0-9a-f-]+)\)", listed)) == sorted(wanted)
    assert claimed.gpu_names("both") == set(wanted)
    assert sorted(gpu.lower() for gpu in claimed.holds("both", 2)) == sorted(wanted)
    labels = next(labels for labels, _ in claimed.series() if labels.get("pod") == "both")
    assert (labels["namespace"], labels["container"]) == ("default", "main")


def test_the_readmes_manifest_runs_as_it_is(claimed: Claimed) -> None:
    claimed.node.kubectl("create", "-f", "-", stdin=BASIC)
    claimed.running("gpu-pod")
    [gpu] = claimed.holds("gpu-pod")
    assert claimed.gpu_names("gpu-pod") == {gpu.lower()}
    assert "NVIDIA-SMI" in claimed.exec("gpu-pod", "nvidia-smi")
    claimed.exec("gpu-pod", "/bin/nvidia-smi", "--help")


def test_pods_of_one_template_have_gpus_of_their_own(claimed: Claimed) -> None:
    claimed.claim("each", template=True)
    for name in ("one", "two"):
        claimed.use(name, "each", template=True)
    claimed.running("one", "two")
    assert claimed.gpu_names("one") != claimed.gpu_names("two")
    assert claimed.holds("one") != claimed.holds("two")


def test_pods_that_share_a_claim_are_users_of_one_gpu_until_the_last_one_left(claimed: Claimed) -> None:
    claimed.claim("shared")
    for name in ("first", "second"):
        claimed.use(name, "shared")
    claimed.running("first", "second")
    assert claimed.gpu_names("first") == claimed.gpu_names("second")
    [users] = claimed.shown_users(2).values()
    assert users == ["first/main", "second/main"]
    claimed.delete("first")
    [users] = claimed.shown_users(1).values()
    assert users == ["second/main"]
    assert len(claimed.files()) == 1
    assert claimed.sees("second")
    claimed.delete("second")
    wait_for(lambda: not claimed.held(), "the GPU to be free", seconds=15)
    wait_for(lambda: not claimed.files(), "no file to be left")


@pytest.mark.parametrize(
    ("sharing", "variable", "value"),
    [
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}, "TIMESLICE_INTERVAL", "Default"),
        ({"strategy": "SpacePartitioning", "spacePartitioningConfig": {"partitionCount": 10}}, "PARTITION_COUNT", "10"),
    ],
)
def test_containers_of_a_pod_share_a_gpu_as_configured(
    claimed: Claimed, sharing: dict[str, Any], variable: str, value: str
) -> None:
    claimed.claim("shares", sharing=sharing)
    claimed.use("pod", "shares", containers=("one", "two"))
    claimed.running("pod")
    [gpu] = claimed.gpu_names("pod", "one")
    assert claimed.devices("pod", "one") == claimed.devices("pod", "two")
    found = {name.rpartition(gpu.replace("-", "_"))[2]: text for name, text in claimed.devices("pod", "one").items()}
    assert found == {"": gpu, "_SHARING_STRATEGY": sharing["strategy"], f"_{variable}": value}
    [users] = claimed.shown_users(2).values()
    assert users == ["pod/one", "pod/two"]


def test_a_mistake_in_a_claims_configuration_names_its_field(claimed: Claimed) -> None:
    claimed.claim("wrong", sharing={"strategy": "TimeSlicing", "spacePartitioningConfig": {"partitionCount": 2}})
    claimed.use("waits", "wrong")
    wait_for(lambda: claimed.events("waits", "parameters.sharing.spacePartitioningConfig"), "an event of the kubelet")
    assert not claimed.files()
    assert not claimed.held()


@pytest.mark.parametrize("killed", ["agent", "kubelet agent"])
def test_claims_outlive_what_is_killed(claimed: Claimed, killed: str) -> None:
    claimed.claim("kept")
    claimed.use("keeps", "kept")
    claimed.running("keeps")
    gpu = claimed.holds("keeps")
    parts = [claimed.agent if part == "agent" else claimed.node.kubelet for part in killed.split()]
    for part in parts:
        part.stop(signal.SIGKILL)
    for part in parts:
        claimed.node.begin(part)
    claimed.wait_ready()
    wait_for(lambda: len(claimed.offered()) == 8, "the slices")
    assert claimed.holds("keeps") == gpu
    wait_for(lambda: claimed.sees("keeps") == gpu, "the pod to see its GPU")
    claimed.claim("next")
    claimed.use("other", "next")
    claimed.running("other")
    assert claimed.holds("other") != gpu
    claimed.delete("keeps")
    wait_for(lambda: len(claimed.files()) == 1, "the file of the claim to go")


def test_an_unhealthy_gpu_shows_in_the_status_of_its_pod(claimed: Claimed) -> None:
    claimed.claim("sick")
    claimed.use("patient", "sick")
    claimed.running("patient")
    [gpu] = claimed.holds("patient")
    index = next(labels["gpu"] for labels, _ in claimed.series() if labels["UUID"] == gpu)

    def health() -> list[str]:
        status = json.loads(claimed.node.kubectl("get", "pod", "patient", "-o", "json"))["status"]
        listed = status["containerStatuses"][0].get("allocatedResourcesStatus", [])
        return [item["health"] for entry in listed for item in entry["resources"]]

    def taints() -> list[str]:
        listed = [device for item in claimed.slices() for device in item["spec"]["devices"]]
        return [f"{taint['key']}={taint.get('value', '')}" for item in listed for taint in item.get("taints", ())]

    def xid() -> float:
        return next(value for labels, value in claimed.series("DCGM_FI_DEV_XID_ERRORS") if labels["UUID"] == gpu)

    wait_for(lambda: health() == ["Healthy"], "the device to be healthy")
    claimed.fail(f"unhealthy: [{index}]")
    wait_for(lambda: health() == ["Unhealthy"], "the device to be unhealthy")
    wait_for(lambda: taints() == ["gpu.nvidia.com/xid=48"], "a taint")
    wait_for(lambda: xid() == 48, "the error in metrics")
    errors = "--query-gpu=ecc.errors.uncorrected.volatile.total"
    wait_for(lambda: claimed.exec("patient", "nvidia-smi", errors, "--format=csv,noheader") == "1\n", "the error in it")
    claimed.fail("")
    wait_for(lambda: health() == ["Healthy"], "the device to be healthy again")
    wait_for(lambda: not taints(), "no taint")
    claimed.fail(f"dying: [{{gpu: {index}}}]")
    wait_for(lambda: "gpu.nvidia.com/gpu-lost=" in taints(), "a taint")
    wait_for(lambda: xid() == 79, "the error in metrics")
    wait_for(lambda: not claimed.sees("patient"), "the pod to lose its GPU")
    claimed.fail("")
    wait_for(lambda: claimed.sees("patient") == [gpu], "the pod to see its GPU again")


def test_a_plain_request_is_served_by_a_claim(claimed: Claimed) -> None:
    claimed.have(0)
    name = claimed.pod(gpus=2)
    claimed.running(name)
    assert sorted(claimed.sees(name)) == claimed.holds(name, 2)


def test_both_acts_as_dra_on_a_real_node_and_says_so(claimed: Claimed) -> None:
    claimed.configure({**H200, "allocation": "both"})
    wait_for(lambda: claimed.events("AllocationOnRealNode", "by dra"), "an event")
    claimed.have(0)
    assert len(claimed.offered()) == 8


def test_a_node_that_is_annotated_goes_back_to_the_extended_resource(claimed: Claimed) -> None:
    claimed.node.kubectl("annotate", "node", claimed.node.name, "simgpu.dev/allocation=extended")
    try:
        claimed.have(8)
        wait_for(lambda: not claimed.slices(), "the slices to go")
    finally:
        claimed.node.kubectl("annotate", "node", claimed.node.name, "simgpu.dev/allocation-")
    wait_for(lambda: len(claimed.offered()) == 8, "the slices to be back")
    claimed.have(0)
