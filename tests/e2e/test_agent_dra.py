"""GPUs of a real node through claims: what pods, the kubelet, the scheduler and Prometheus see."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures import images, operator_readme
from tests.fixtures.agent import H200, Gpus
from tests.fixtures.claimed import CLASS, Claimed
from tests.fixtures.machine import wait_for
from tests.fixtures.node import Node

SHARED = {"gpus": [{"type": "h200", "count": 1}], "allocation": "dra", "dra": {"consumableShares": "memory"}}


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


def test_the_claim_of_fake_gpu_operators_readme_runs_as_it_is(claimed: Claimed) -> None:
    claimed.node.kubectl("create", "-f", "-", stdin=f"{operator_readme.TEMPLATE}---{operator_readme.CLAIMING_POD}")
    claimed.running("gpu-pod")
    [gpu] = claimed.holds("gpu-pod")
    assert claimed.gpu_names("gpu-pod") == {gpu.lower()}
    assert "NVIDIA-SMI" in claimed.exec("gpu-pod", "nvidia-smi")
    claimed.exec("gpu-pod", "/bin/nvidia-smi", "--help")


@pytest.mark.parametrize("allocation", ["extended", "dra"])
def test_the_plain_pod_of_fake_gpu_operators_readme_runs_as_it_is(claimed: Claimed, allocation: str) -> None:
    claimed.configure({**H200, "allocation": allocation})
    claimed.have(8 if allocation == "extended" else 0)
    wait_for(lambda: len(claimed.offered()) == (0 if allocation == "extended" else 8), "its slices")
    claimed.node.kubectl("create", "-f", "-", stdin=operator_readme.PLAIN_POD)
    claimed.running("gpu-pod")
    assert claimed.holds("gpu-pod", container="gpu-container") == claimed.sees("gpu-pod")
    assert f"NODE_NAME={claimed.node.name}\n" in claimed.exec("gpu-pod", "env")


def test_a_pod_with_a_claim_is_as_busy_as_its_annotation_says(claimed: Claimed) -> None:
    claimed.claim("busy")
    claimed.use("works", "busy", annotations={"run.ai/simulated-gpu-utilization": "50-100"})
    claimed.running("works")
    [gpu] = claimed.holds("works")

    def percent() -> int:
        text = claimed.exec("works", "nvidia-smi", "--debug")
        assert "NVIDIA-SMI" in text
        [found] = re.findall(r"(\d+)% +Default", text)
        return int(found)

    wait_for(lambda: 50 <= percent() <= 100, "the GPU to be busy")
    assert all(50 <= percent() <= 100 for _ in range(5))
    assert 50 <= next(value for labels, value in claimed.series() if labels["UUID"] == gpu) <= 100


def test_a_pod_with_administrative_access_sees_a_gpu_that_stays_its_owners(claimed: Claimed) -> None:
    claimed.claim("owned")
    claimed.use("owner", "owned")
    claimed.running("owner")
    gpu = claimed.holds("owner")
    claimed.node.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access=true")
    try:
        claimed.claim("all", adminAccess=True, allocationMode="All")
        claimed.use("watcher", "all")
        claimed.running("watcher")
        assert len(claimed.sees("watcher")) == 8
        claimed.shown_users(9)
        assert claimed.holds("owner") == gpu
        claimed.claim("rest", allocationMode="ExactCount", count=7)
        claimed.use("others", "rest")
        claimed.running("others")
        assert len(claimed.holds("others", 7)) == 7
        claimed.delete("watcher")
        claimed.shown_users(8)
    finally:
        claimed.node.kubectl("label", "namespace", "default", "resource.kubernetes.io/admin-access-")


def test_claims_of_memory_share_a_gpu_until_it_has_no_more(claimed: Claimed) -> None:
    claimed.configure(SHARED)
    wait_for(lambda: len(claimed.offered()) == 1, "one device")
    for name, memory in (("large", "80Gi"), ("small", "40Gi"), ("waits", "40Gi")):
        claimed.claim(name, capacity={"requests": {"memory": memory}})
        claimed.use(name, name)
        claimed.running(*([name] if name != "waits" else []))
    [users] = claimed.shown_users(2).values()
    assert users == ["large/main", "small/main"]
    assert claimed.gpu_names("large") == claimed.gpu_names("small")
    wait_for(lambda: claimed.events("FailedScheduling", "waits"), "the scheduler to find no memory for the third")
    claimed.delete("large")
    claimed.running("waits")
    [users] = claimed.shown_users(2).values()
    assert users == ["small/main", "waits/main"]


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

    errors = "--query-gpu=ecc.errors.uncorrected.volatile.total"

    def counted() -> int:
        return int(claimed.exec("patient", "nvidia-smi", errors, "--format=csv,noheader"))

    wait_for(lambda: health() == ["Healthy"], "the device to be healthy")
    before = counted()
    claimed.fail(f"unhealthy: [{index}]")
    wait_for(lambda: health() == ["Unhealthy"], "the device to be unhealthy")
    wait_for(lambda: taints() == ["gpu.nvidia.com/xid=48"], "a taint")
    wait_for(lambda: xid() == 48, "the error in metrics")
    wait_for(lambda: counted() > before, "the error in it")
    assert counted() == before + 1
    claimed.agent.stop(signal.SIGKILL)
    claimed.node.begin(claimed.agent)
    claimed.wait_ready()
    wait_for(lambda: health() == ["Unhealthy"], "the device to be unhealthy still")
    assert counted() == before + 1
    claimed.fail("")
    wait_for(lambda: health() == ["Healthy"], "the device to be healthy again")
    wait_for(lambda: not taints(), "no taint")
    assert xid() == 48
    claimed.fail(f"dying: [{{gpu: {index}}}]")
    wait_for(lambda: "gpu.nvidia.com/gpu-lost=" in taints(), "a taint")
    wait_for(lambda: xid() == 79, "the error in metrics")
    wait_for(lambda: not claimed.sees("patient"), "the pod to lose its GPU")
    claimed.fail("")
    wait_for(lambda: claimed.sees("patient") == [gpu], "the pod to see its GPU again")
    assert xid() == 79


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


def test_a_change_of_allocation_gives_no_gpu_to_a_second_pod(claimed: Claimed) -> None:
    claimed.claim("three", count=3)
    claimed.use("claims", "three")
    claimed.running("claims")
    by_claim = set(claimed.holds("claims", 3))
    claimed.configure(H200)
    claimed.have(5)
    wait_for(lambda: claimed.events("GpusHeld", "3 are not allocatable"), "an event")
    counts = claimed.pod(gpus=5)
    claimed.running(counts)
    by_count = set(claimed.holds(counts, 5))
    assert not by_claim & by_count
    claimed.delete("claims")
    claimed.have(8)
    claimed.configure({**H200, "allocation": "dra"})
    wait_for(lambda: {f"GPU-{name[4:]}" for name in claimed.offered()} == by_claim, "the free GPUs in slices")
    wait_for(lambda: claimed.events("GpusHeld", "5 are left out"), "an event")
    claimed.use("again", "three")
    claimed.running("again")
    assert set(claimed.holds("again", 3)) == by_claim
    claimed.delete(counts)
    wait_for(lambda: len(claimed.offered()) == 8, "all devices")


@pytest.mark.parametrize(
    ("pool", "left"),
    [
        ({"dra": {"dynamicMIG": True}}, {"3g.71gb": "large"}),
        ({"mig": {"config": {"1g.18gb": 1, "3g.71gb": 1}}}, {"1g.18gb": "", "3g.71gb": "large"}),
    ],
    ids=["of-the-claim", "of-the-layout"],
)
def test_a_pod_has_the_mig_instance_of_its_claim_and_nothing_else(
    claimed: Claimed, pool: dict[str, Any], left: dict[str, str]
) -> None:
    claimed.configure({"gpus": [{"type": "h200", "count": 1}], "allocation": "dra", **pool})
    wait_for(lambda: any("-mig-" in name for name in claimed.offered()), "MIG devices")
    pair = 2 if "dra" in pool else 1  # instances of one GPU in one container
    parts = {"small": ("1g.18gb", 16384, pair), "large": ("3g.71gb", 71424, 1)}
    for name, (profile, _, count) in parts.items():
        chosen = [{"cel": {"expression": f"device.attributes['{CLASS}'].profile == '{profile}'"}}]
        claimed.claim(name, deviceClassName="mig.nvidia.com", selectors=chosen, count=count)
        claimed.use(name, name, annotations={"run.ai/simulated-gpu-utilization": "60"})
        claimed.running(name)

    def seen(name: str) -> list[str]:
        return re.findall(r"MIG (\S+) +Device", claimed.exec(name, "nvidia-smi", "-L"))

    def pods() -> dict[str, str]:
        listed = claimed.series("DCGM_FI_DEV_FB_USED")
        return {labels["GPU_I_PROFILE"]: labels.get("pod", "") for labels, _ in listed if "GPU_I_PROFILE" in labels}

    for name, (profile, memory, count) in parts.items():
        wait_for(lambda name=name, wanted=[profile] * count: seen(name) == wanted, "the instances")  # type: ignore[misc]
        assert len(re.findall("^GPU", claimed.exec(name, "nvidia-smi", "-L"), re.MULTILINE)) == 1
        assert f"{memory}MiB" in claimed.exec(name, "nvidia-smi")
        assert claimed.gpu_names(name) == set(claimed.allocated(name))
    wait_for(lambda: pods() == {"1g.18gb": "small", "3g.71gb": "large"}, "the pods in metrics")
    claimed.agent.stop(signal.SIGKILL)
    claimed.node.kubectl("delete", "pod", "small", "--now", "--wait=false")  # its end waits for the agent
    claimed.node.begin(claimed.agent)
    claimed.wait_ready()
    wait_for(lambda: pods() == left, "the pod to be gone, and its instance if it was its claim's")
    assert seen("large") == ["3g.71gb"]


def test_a_node_that_is_annotated_goes_back_to_the_extended_resource(claimed: Claimed) -> None:
    claimed.node.kubectl("annotate", "node", claimed.node.name, "simgpu.dev/allocation=extended")
    try:
        claimed.have(8)
        wait_for(lambda: not claimed.slices(), "the slices to go")
    finally:
        claimed.node.kubectl("annotate", "node", claimed.node.name, "simgpu.dev/allocation-")
    wait_for(lambda: len(claimed.offered()) == 8, "the slices to be back")
    claimed.have(0)
