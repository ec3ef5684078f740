"""`simgpu agent` on a real node: what pods, the kubelet and Prometheus see."""

from __future__ import annotations

import json
import re
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml

from simgpu.controllers import equipping
from tests.fixtures.agent import H200, POOL_LABEL, Gpus
from tests.fixtures.machine import wait_for

ROOT = Path(__file__).parent.parent.parent
IDS = [f"GPU-{uuid.uuid5(uuid.UUID(int=0), f'real-1-{index}')}" for index in range(16)]


def test_a_node_becomes_a_gpu_node(gpus: Gpus) -> None:
    node = json.loads(gpus.node.kubectl("get", "node", gpus.node.name, "-o", "json"))
    assert node["status"]["capacity"]["nvidia.com/gpu"] == "8"
    labels = node["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H200"
    assert labels["nvidia.com/gpu.count"] == "8"
    assert labels["nvidia.com/gpu.replicas"] == "1"
    assert labels["nvidia.com/gpu.deploy.device-plugin"] == "true"
    view = json.loads(gpus.node.kubectl("get", "configmap", "-n", "gpu-operator", "topology-real-1", "-o", "json"))
    assert "kwok.x-k8s.io/node" not in view["metadata"].get("annotations", {})
    assert [gpu["id"] for gpu in yaml.safe_load(view["data"]["topology.yml"])["gpus"]] == IDS[:8]


def test_a_pod_gets_one_gpu_and_sees_only_that(gpus: Gpus) -> None:
    names = [gpus.pod(), gpus.pod()]
    gpus.running(*names)
    seen = [gpus.holds(name)[0] for name in names]
    assert len(set(seen)) == 2
    for name, gpu in zip(names, seen, strict=True):
        assert gpus.sees(name) == [gpu]
        assert gpus.exec(name, "ls", "/var/lib/simgpu/gpus").split() == [gpu]
        assert f"NVIDIA_VISIBLE_DEVICES={gpu}\n" in gpus.exec(name, "env")


def test_what_is_mounted_cannot_be_changed(gpus: Gpus) -> None:
    name = gpus.pod()
    gpus.running(name)
    tries = (
        "for f in /var/lib/simgpu/gpus/*/page /bin/nvidia-smi /usr/lib64/libnvidia-ml.so.1; do (echo >>$f) 2>&1; done"
    )
    assert gpus.exec(name, "sh", "-c", f"{tries}; true").count("Read-only file system") == 3


def test_metrics_and_nvidia_smi_tell_the_same_of_a_busy_pod(gpus: Gpus) -> None:
    name = gpus.pod(annotations={"run.ai/simulated-gpu-utilization": "40"})
    gpus.running(name)
    gpu = gpus.holds(name)[0]
    wait_for(lambda: (gpu, 40) in [(labels["UUID"], value) for labels, value in gpus.series()], "40 %", seconds=10)
    assert gpus.exec(name, "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader").strip() == "40 %"
    labels = next(labels for labels, _ in gpus.series() if labels["UUID"] == gpu)
    assert labels["Hostname"] == equipping.hostname(gpus.node.name)
    assert (labels["namespace"], labels["pod"], labels["container"]) == ("default", name, "main")


def test_gpus_of_one_pod_are_on_one_numa_node(gpus: Gpus) -> None:
    one = gpus.pod()
    gpus.running(one)
    four = gpus.pod(gpus=4)
    gpus.running(four)
    assert [IDS.index(gpu) for gpu in gpus.holds(one)] == [0]
    assert sorted(IDS.index(gpu) for gpu in gpus.holds(four, 4)) == [4, 5, 6, 7]


def test_gpus_of_one_pod_are_linked_to_one_another(gpus: Gpus) -> None:
    gpus.configure({"gpus": [{"type": "h200", "count": 16}], "numa": {"zones": 1}})
    gpus.have(16)
    six = gpus.pod(gpus=6)
    gpus.running(six)
    four = gpus.pod(gpus=4)
    gpus.running(four)
    assert sorted(IDS.index(gpu) for gpu in gpus.holds(six, 6)) == [0, 1, 2, 3, 4, 5]
    assert sorted(IDS.index(gpu) for gpu in gpus.holds(four, 4)) == [8, 9, 10, 11]


def test_a_gpu_is_free_again_when_its_pod_is_gone(gpus: Gpus) -> None:
    name = gpus.pod()
    gpus.running(name)
    gpus.holds(name)
    gpus.delete(name)
    wait_for(lambda: not gpus.held(), "the GPU to be free", seconds=10)


def test_an_init_container_has_its_gpu_until_it_is_done(gpus: Gpus) -> None:
    init = {
        "name": "first", "image": "simgpu.test/busybox:1", "resources": {"limits": {"nvidia.com/gpu": 1}},
        "command": ["sh", "-c", "until [ -e /shared/go ]; do sleep 0.1; done"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }  # fmt: skip
    name = gpus.pod(initContainers=[init], volumes=[{"name": "shared", "emptyDir": {}}])
    gpu = gpus.holds(name, container="first")
    gpus.node.kubectl("exec", name, "-c", "first", "--", "touch", "/shared/go")
    assert gpus.holds(name, container="main") == gpu


def test_each_container_of_a_pod_has_gpus_of_its_own(gpus: Gpus) -> None:
    wanted = {"one": 1, "two": 2, "side": 1}
    containers = [
        {"name": name, "image": "simgpu.test/busybox:1", "command": ["sleep", "1000"],
         "resources": {"limits": {"nvidia.com/gpu": count}}}
        for name, count in wanted.items()
    ]  # fmt: skip
    sidecar = {**containers.pop(), "restartPolicy": "Always"}
    name = gpus.pod(containers=containers, initContainers=[sidecar])
    gpus.running(name)
    held = {container: gpus.holds(name, count, container) for container, count in wanted.items()}
    assert len({gpu for mine in held.values() for gpu in mine}) == 4
    for container, mine in held.items():
        assert gpus.exec(name, "ls", "/var/lib/simgpu/gpus", container=container).split() == mine


def test_a_pod_that_is_made_anew_has_what_it_sees(gpus: Gpus) -> None:
    gpus.node.pod("anew", "sleep 1000", resources={"limits": {"nvidia.com/gpu": 1}})
    gpus.running("anew")
    gpus.holds("anew")
    gpus.node.kubectl("delete", "pod", "anew", "--force", "--grace-period=0")
    gpus.node.pod("anew", "sleep 1000", resources={"limits": {"nvidia.com/gpu": 2}})
    gpus.running("anew")
    assert gpus.holds("anew", 2) == sorted(gpus.sees("anew"))


@pytest.mark.parametrize(
    "killed", ["agent", "kubelet", "containerd", "kubelet agent containerd", "containerd agent kubelet"]
)
def test_nothing_is_lost_when_parts_are_killed(gpus: Gpus, killed: str) -> None:
    name = gpus.pod()
    gpus.running(name)
    gpu = gpus.holds(name)
    before = gpus.energy()
    parts = [gpus.agent if part == "agent" else getattr(gpus.node, part) for part in killed.split()]
    known = gpus.registrations()
    for part in parts:
        part.stop(signal.SIGKILL)
    for part in sorted(parts, key=lambda part: part is not gpus.node.containerd):
        gpus.node.begin(part)
    gpus.wait_ready()
    wait_for(lambda: killed == "containerd" or gpus.registrations() > known, "the kubelet to know the GPUs again")
    gpus.have(8)
    assert gpus.holds(name) == gpu
    assert all(gpus.energy()[key] >= value for key, value in before.items())
    wait_for(lambda: gpus.sees(name) == gpu, "the running pod to see its GPU")
    other = gpus.pod()
    gpus.running(other)
    assert gpus.holds(other) != gpu


@pytest.mark.parametrize("killed", ["agent", "agent and kubelet"])
def test_a_hot_gpu_stays_hot_when_the_agent_is_killed(gpus: Gpus, killed: str) -> None:
    def temperature() -> float:
        return {labels["UUID"]: value for labels, value in gpus.series("DCGM_FI_DEV_GPU_TEMP")}[gpu]

    name = gpus.pod()
    gpus.running(name)
    gpu = gpus.holds(name)[0]
    idle = min(value for _, value in gpus.series("DCGM_FI_DEV_GPU_TEMP"))
    wait_for(lambda: temperature() > idle + 12, "the GPU to be hot")
    before, energy = temperature(), gpus.energy()[gpu]
    parts = [gpus.agent, *([gpus.node.kubelet] if killed != "agent" else [])]
    for part in parts:
        part.stop(signal.SIGKILL)
    gpus.node.begin(gpus.agent)
    gpus.wait_ready()
    assert temperature() >= before - 1
    assert gpus.energy()[gpu] > energy
    assert gpus.holds(name) == [gpu]
    for part in parts[1:]:
        gpus.node.begin(part)
    gpus.have(8)
    assert temperature() >= before - 1


def test_more_and_fewer_gpus_without_a_restart(gpus: Gpus) -> None:
    name = gpus.pod()
    gpus.running(name)
    gpu = gpus.holds(name)
    gpus.configure({"gpus": [{"type": "h200", "count": 3}], "otherDevices": [{"name": "rdma/hca", "count": 2}]})
    gpus.have(3)
    gpus.have(2, "rdma/hca")
    assert gpus.holds(name) == gpu
    assert len(gpus.series()) == 3
    gpus.configure(H200)
    gpus.have(8)
    gpus.have(0, "rdma/hca")
    assert gpus.holds(name) == gpu


def test_a_running_pod_sees_its_gpu_again_when_that_comes_back(gpus: Gpus) -> None:
    names = [gpus.pod() for _ in range(3)]
    gpus.running(*names)
    last = next(name for name in names if gpus.sees(name) == [IDS[2]])
    gpus.configure({"gpus": [{"type": "h200", "count": 2}]})
    gpus.have(2)
    wait_for(lambda: not gpus.sees(last), "the GPU to be gone from the pod")
    gpus.configure(H200)
    gpus.have(8)
    wait_for(lambda: gpus.sees(last) == [IDS[2]], "the pod to see its GPU")


def test_a_pod_sets_its_own_gpus_where_the_pool_lets_it(gpus: Gpus) -> None:
    name, other = gpus.pod(), gpus.pod()
    gpus.running(name, other)
    with pytest.raises(AssertionError, match="Insufficient Permissions"):
        gpus.exec(name, "nvidia-smi", "-pl", "500")
    gpus.configure({**H200, "settable": True})
    wait_for(lambda: _sets(gpus, name), "the pool to let it")
    query = ("nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader")
    assert [gpus.exec(item, *query).strip() for item in (name, other)] == ["500.00 W", "700.00 W"]


def _sets(gpus: Gpus, name: str) -> bool:
    try:
        return "was set to 500.00 W" in gpus.exec(name, "nvidia-smi", "-pl", "500")
    except AssertionError:
        return False


def test_gpus_are_as_busy_as_processors_where_that_is_wanted(gpus: Gpus) -> None:
    wish = {"simgpu.dev/utilization-from": "cpu"}
    resources = {"limits": {"nvidia.com/gpu": 1, "cpu": "200m"}}
    names = {"busy": "while :; do :; done", "idle": "sleep 1000"}
    for name, script in names.items():
        gpus.node.pod(name, script, resources=resources, annotations=wish)
    gpus.running(*names)
    held = {name: gpus.holds(name)[0] for name in names}

    def usage(name: str) -> float:
        return next(value for labels, value in gpus.series() if labels["UUID"] == held[name])

    wait_for(lambda: usage("busy") > 50, "the GPU to be as busy as the processor", seconds=20)
    assert usage("idle") < 10


def test_a_static_pod_is_a_pod_like_others(gpus: Gpus) -> None:
    gpus.configure({**H200, "settable": True})
    resources = {"limits": {"nvidia.com/gpu": 2, "cpu": "200m"}}
    wish = {"simgpu.dev/utilization-from": "cpu"}
    with gpus.node.static_pod("static", "while :; do :; done", resources=resources, annotations=wish) as name:
        gpus.running(name)
        mine = gpus.holds(name, 2)
        assert sorted(gpus.sees(name)) == mine

        def busy() -> bool:
            return all(value > 50 for labels, value in gpus.series() if labels["UUID"] in mine)

        wait_for(busy, "the GPUs to be as busy as the processor", seconds=20)
        wait_for(lambda: _sets(gpus, name), "the pod to set its GPUs")


def test_no_pod_passes_for_another_as_if_it_were_static(gpus: Gpus) -> None:
    name, other = gpus.pod(), gpus.pod()
    gpus.running(name, other)
    gpu, theirs = gpus.holds(name), gpus.holds(other)
    uid = gpus.node.kubectl("get", "pod", name, "-o", "jsonpath={.metadata.uid}")
    with pytest.raises(AssertionError, match="may not add mirror pod annotation"):
        gpus.node.kubectl("annotate", "pod", other, f"kubernetes.io/config.mirror={uid}")
    mirror = {"kubernetes.io/config.mirror": uid}  # the API server refuses such a pod where it names no node
    gpus.node.pod("impostor", "sleep 1000", annotations=mirror, nodeName=gpus.node.name)
    gpus.node.kubectl("wait", "pod/impostor", "--for=delete", "--timeout=30s")
    later = gpus.pod()
    gpus.running(later)
    gpus.holds(later)  # the agent has seen what came after the impostor
    assert (gpus.holds(name), gpus.holds(other)) == (gpu, theirs)


def test_a_gpu_that_dies_is_taken_away_and_comes_back(gpus: Gpus) -> None:
    before = len(gpus.kernel_log.read_text())
    gpus.fail("unhealthy: [2, 3]")
    gpus.have(6)
    gpus.fail("dying: [{gpu: 0, for: 4}]")
    gpus.have(7)
    gpus.have(8)
    logged = re.findall(r"NVRM: Xid \(PCI:0000:\S+\): (\d+), pid=", gpus.kernel_log.read_text()[before:])
    assert sorted(logged) == ["48", "48", "79"]


def test_a_plugin_that_vanishes_takes_all_gpus_with_it(gpus: Gpus) -> None:
    gpus.fail("vanish: true")
    gpus.have(0)
    gpus.fail("")
    gpus.have(8)


def test_a_pod_whose_gpus_are_refused_says_why(gpus: Gpus) -> None:
    before = gpus.logged("refuse=True")
    gpus.fail("refuse: true")
    wait_for(lambda: gpus.logged("refuse=True") > before, "the agent to know")
    name = gpus.pod()
    gpus.node.phase(name, "Failed")
    said = json.loads(gpus.node.kubectl("get", "pod", name, "-o", "json"))["status"]
    assert said["reason"] == "UnexpectedAdmissionError"
    assert "rejected by the node's failures (refuse)" in said["message"]
    gpus.fail("")
    gpus.delete(name)


def test_gpus_that_are_given_late_are_given(gpus: Gpus) -> None:
    before = gpus.logged("delay=3")
    gpus.fail("delay: 3")
    wait_for(lambda: gpus.logged("delay=3") > before, "the agent to know")
    started = time.monotonic()
    name = gpus.pod()
    gpus.running(name)
    assert time.monotonic() - started > 3
    gpus.holds(name)


def test_a_plugin_that_flaps_is_gone_and_there_in_turns(gpus: Gpus) -> None:
    gpus.fail("flap: 4")
    gpus.have(0)
    gpus.have(8)
    gpus.have(0)


def test_a_mistake_in_the_failures_is_an_event_and_changes_nothing(gpus: Gpus) -> None:
    mistake, known = f"explode-{uuid.uuid4().hex[:8]}", gpus.registrations()
    gpus.fail(f"{mistake}: true")
    wait_for(lambda: gpus.events(mistake), "an event")
    # When the kubelet has what came later, it would also have what the mistake had changed.
    gpus.configure({**H200, "otherDevices": [{"name": "rdma/hca", "count": 2}]})
    gpus.have(2, "rdma/hca")
    assert gpus.node.offers("nvidia.com/gpu") == 8
    assert gpus.registrations() == known
    gpus.configure(H200)
    gpus.have(0, "rdma/hca")


def test_shared_gpus_are_there_several_times(gpus: Gpus) -> None:
    sharing: dict[str, Any] = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 3}]}}
    gpus.configure({"gpus": [{"type": "h200", "count": 2}], "sharing": sharing})
    gpus.have(6)
    names = [gpus.pod() for _ in range(3)]
    gpus.running(*names)
    seen = [gpus.sees(name)[0] for name in names]
    assert sorted(seen.count(gpu) for gpu in set(seen)) == [1, 2]
    labels = json.loads(gpus.node.kubectl("get", "node", gpus.node.name, "-o", "json"))["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H200-SHARED"
    assert labels["nvidia.com/gpu.replicas"] == "3"
    gpus.delete(*names)
    sharing["timeSlicing"] |= {"renameByDefault": True}
    gpus.configure({"gpus": [{"type": "h200", "count": 2}], "sharing": sharing})
    gpus.have(6, "nvidia.com/gpu.shared")
    gpus.have(0)


def test_pods_keep_their_gpus_when_these_become_shared_under_another_name(gpus: Gpus) -> None:
    def sliced(**more: Any) -> dict[str, Any]:
        resource = {"name": "nvidia.com/gpu", "replicas": 4}
        sharing = {"timeSlicing": {"resources": [resource], "failRequestsGreaterThanOne": True, **more}}
        return {"gpus": [{"type": "h200", "count": 2}], "sharing": sharing}

    whole = gpus.pod()
    gpus.running(whole)
    mine = gpus.holds(whole)
    gpus.configure(sliced(renameByDefault=True))
    gpus.have(8, "nvidia.com/gpu.shared")
    gpus.have(0)
    greedy = gpus.pod(gpus=2, resource="nvidia.com/gpu.shared")
    shared = [gpus.pod(resource="nvidia.com/gpu.shared") for _ in range(2)]
    gpus.running(*shared)
    assert {gpu for name in shared for gpu in gpus.sees(name)} == set(IDS[:2])
    other = next(name for name in shared if gpus.sees(name) != mine)
    assert gpus.holds(other) == gpus.sees(other)
    assert gpus.holds(whole) == mine
    memory = {labels["UUID"]: value for labels, value in gpus.series("DCGM_FI_DEV_FB_USED")}
    assert memory[mine[0]] > 3 * memory[gpus.sees(other)[0]]
    gpus.node.phase(greedy, "Failed")
    said = json.loads(gpus.node.kubectl("get", "pod", greedy, "-o", "json"))["status"]
    assert said["reason"] == "UnexpectedAdmissionError"
    gpus.configure(H200)
    gpus.have(8)
    assert gpus.holds(other) == gpus.sees(other)


def test_the_commands_of_the_guide_work(gpus: Gpus) -> None:
    text = (ROOT / "docs" / "guides" / "real-nodes.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    assert blocks
    try:
        gpus.node.shell("".join(blocks), ROOT)
        gpus.have(2, "rdma/hca")
        gpus.have(8)
    finally:
        gpus.node.kubectl("label", "node", gpus.node.name, f"{POOL_LABEL}=real", "--overwrite")
