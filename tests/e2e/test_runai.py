"""Pods that share a GPU by a reservation, on a real node: what the API, metrics and Run:ai's container toolkit see."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.agent import H200, NAMESPACE, Gpus
from tests.fixtures.machine import wait_for

RESERVATIONS = "runai-reservation"
RESERVED = "run.ai/reserve_for_gpu_index"
MEMORY = 143155  # MiB of an H200 that its driver leaves


class Sharing:
    """Pods that share, and what is seen of them."""

    def __init__(self, gpus: Gpus) -> None:
        self.gpus, self.node = gpus, gpus.node
        self.group = uuid.uuid4().hex[:8]
        self.folder = gpus.node.machine.path("/var/lib/runai")

    def reserve(self, **annotations: str) -> str:
        """A reservation pod; its name."""
        name = f"reservation-{self.group}"
        self.node.pod(
            name, "sleep 1000", namespace=RESERVATIONS, labels={"runai-gpu-group": self.group},
            resources={"limits": {"nvidia.com/gpu": 1}}, annotations=annotations,
        )  # fmt: skip
        return name

    def share(self, fraction: str, utilization: int, script: str = "sleep 1000", **more: Any) -> str:
        """A pod that shares the reservation's GPU; its name."""
        name = f"shared-{uuid.uuid4().hex[:8]}"
        said = {"gpu-fraction": fraction, "run.ai/simulated-gpu-utilization": str(utilization)}
        said |= more.pop("annotations", {})
        self.node.pod(name, script, labels={"runai-gpu-group": self.group}, annotations=said, **more)
        return name

    def reserve_and_wait(self) -> tuple[str, str]:
        """A reservation pod that has learnt its GPU, as schedulers wait for it; its name and the GPU."""
        name = self.reserve()
        [gpu] = self.gpus.holds(name)
        wait_for(lambda: self.told(name) == gpu, "the reservation to be told its GPU", seconds=15)
        return name, gpu

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.node.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def uid(self, name: str) -> str:
        found: str = self.get("pod", name)["metadata"]["uid"]
        return found

    def told(self, name: str) -> str | None:
        """The GPU that a reservation says it has."""
        found: str | None = self.get("pod", name, RESERVATIONS)["metadata"].get("annotations", {}).get(RESERVED)
        return found

    def view(self) -> list[dict[str, Any]]:
        """The node's GPUs in its ConfigMap."""
        text = self.get("configmap", f"topology-{self.node.name}", NAMESPACE)["data"]["topology.yml"]
        found: list[dict[str, Any]] = yaml.safe_load(text)["gpus"]
        return found

    def used(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Utilisation and memory by pod, for each GPU that is used, in the node's ConfigMap."""
        return {
            gpu["id"]: {
                uid: (item["utilization"]["max"], item["fbUsed"])
                for uid, item in gpu["status"]["podGpuUsageStatus"].items()
            }
            for gpu in self.view()
            if gpu["status"]["podGpuUsageStatus"]
        }

    def tree(self) -> dict[str, str]:
        """What the container toolkit reads, by path."""
        pods = self.folder / "proc" / "pod"
        return {str(path.relative_to(pods)): path.read_text() for path in pods.rglob("*") if path.is_file()}

    def shown(self, gpu: str, family: str) -> tuple[str, float]:
        """Pod and value of a GPU's series."""
        return next((labels["pod"], value) for labels, value in self.gpus.series(family) if labels["UUID"] == gpu)


def files(uid: str, index: int, percent: int, memory: int) -> dict[str, str]:
    folder = f"{uid}/metrics/gpu/{index}"
    return {f"{folder}/utilization.sm": str(percent), f"{folder}/memory.allocated": f"{memory}000000"}


@pytest.fixture
def sharing(gpus: Gpus) -> Iterator[Sharing]:
    made = Sharing(gpus)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RESERVATIONS}}
    gpus.node.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    wait_for(lambda: gpus.node.kubectl("get", "serviceaccounts", "-n", RESERVATIONS, "-o", "name"), "an account")
    yield made
    gpus.node.kubectl("delete", "pods", "--all", "--now", "-n", RESERVATIONS)


def test_pods_share_the_gpu_of_a_reservation(sharing: Sharing) -> None:
    reservation = sharing.reserve()
    one, two = sharing.share("0.5", 30), sharing.share("0.25", 20)
    [gpu] = sharing.gpus.holds(reservation)
    sharing.gpus.running(one, two)
    wait_for(lambda: sharing.told(reservation) == gpu, "the reservation to be told its GPU", seconds=15)
    uids = sharing.uid(one), sharing.uid(two)
    expected = {gpu: {uids[0]: (30, MEMORY // 2), uids[1]: (20, MEMORY // 4)}}
    wait_for(lambda: sharing.used() == expected, "the view", seconds=15)
    index = next(place for place, item in enumerate(sharing.view()) if item["id"] == gpu)
    assert sharing.view()[index]["status"]["allocatedBy"] == {
        "namespace": RESERVATIONS, "pod": reservation, "container": "main",
    }  # fmt: skip
    there = files(uids[0], index, 30, MEMORY // 2) | files(uids[1], index, 20, MEMORY // 4)
    wait_for(lambda: sharing.tree() == there, "the files", seconds=15)
    assert sharing.shown(gpu, "DCGM_FI_DEV_GPU_UTIL") == (reservation, 50)
    assert sharing.shown(gpu, "DCGM_FI_DEV_FB_USED") == (reservation, MEMORY // 2 + MEMORY // 4)


def test_a_reservation_alone_holds_its_gpu_and_uses_nothing(sharing: Sharing) -> None:
    reservation = sharing.reserve(**{RESERVED: "0"})
    [gpu] = sharing.gpus.holds(reservation)
    wait_for(lambda: any(item["status"]["allocatedBy"]["pod"] == reservation for item in sharing.view()), "the view")
    later = sharing.gpus.pod()
    [other] = sharing.gpus.holds(later)
    wait_for(lambda: other in sharing.used(), "what came later in the view")
    assert sharing.used().keys() == {other}
    assert sharing.shown(gpu, "DCGM_FI_DEV_FB_USED") == (reservation, 0)
    assert sharing.told(reservation) == "0"
    assert list((sharing.folder / "proc" / "events").iterdir()) == []


@pytest.mark.parametrize("order", ["reservation one two", "one reservation two", "two one reservation"])
def test_they_may_come_and_go_in_any_order(sharing: Sharing, order: str) -> None:
    names = {"one": sharing.share("0.5", 30)}
    sharing.gpus.running(names["one"])
    names |= {"reservation": sharing.reserve(), "two": sharing.share("0.25", 20)}
    [gpu] = sharing.gpus.holds(names["reservation"])
    sharing.gpus.running(names["two"])
    uids = {name: sharing.uid(names[name]) for name in ("one", "two")}
    left = list(names)

    def settled() -> bool:
        expected = {uids[name] for name in left if name in uids} if "reservation" in left else set()
        seen = {path.partition("/")[0] for path in sharing.tree()}
        return seen == expected == set(sharing.used().get(gpu, {}))

    wait_for(settled, "all to be there", seconds=15)
    for name in order.split():
        namespace = RESERVATIONS if name == "reservation" else "default"
        sharing.node.kubectl("delete", "pod", names[name], "--now", "-n", namespace)
        left.remove(name)
        wait_for(settled, f"{left} to be left", seconds=15)
    wait_for(lambda: not sharing.gpus.held(), "the GPU to be free", seconds=15)


def test_another_agent_goes_on_with_what_is_there(sharing: Sharing) -> None:
    reservation, name = sharing.reserve(), sharing.share("0.5", 30)
    [gpu] = sharing.gpus.holds(reservation)
    sharing.gpus.running(name)
    uid = sharing.uid(name)
    wait_for(lambda: "30" in sharing.tree().values(), "the files", seconds=15)
    before = sharing.tree()
    folder = sharing.folder / "proc" / "pod" / uid
    inodes = {path: path.stat().st_ino for path in (folder, *folder.rglob("*"))}
    sharing.gpus.agent.stop(signal.SIGKILL)
    sharing.gpus.agent.start()
    sharing.gpus.wait_ready()
    wait_for(lambda: sharing.shown(gpu, "DCGM_FI_DEV_GPU_UTIL") == (reservation, 30), "metrics", seconds=15)
    wait_for(lambda: sharing.tree() == before, "the files", seconds=15)
    replaced = {path.name for path, inode in inodes.items() if path.stat().st_ino != inode}
    assert replaced <= {"utilization.sm"}, "only what changed was written anew"


def test_a_fraction_that_cannot_be_read_is_told_by_an_event(sharing: Sharing) -> None:
    sharing.reserve()
    name = sharing.share("half", 30)
    sharing.gpus.running(name)
    uid = sharing.uid(name)
    wait_for(lambda: list(sharing.used().values()) == [{uid: (30, MEMORY)}], "the view", seconds=15)
    seen = "involvedObject.name=" + name
    wait_for(lambda: "gpu-fraction: 'half'" in sharing.node.kubectl("get", "events", f"--field-selector={seen}"), "it")


def test_programs_of_run_ai_are_there(sharing: Sharing) -> None:
    tool = sharing.folder / "bin" / "nvidia-smi"
    wait_for(tool.exists, "the tool", seconds=15)
    pages = sharing.node.machine.path("/var/lib/simgpu/gpus")
    shown = subprocess.run([tool, "-L"], env={"SIMGPU_PAGES": str(pages)}, capture_output=True, text=True, check=True)
    assert shown.stdout.count("NVIDIA H200") == 8
    for kind in ("memory", "pid"):
        assert _loads(sharing.folder / "shared" / kind / "preloader.so")


def _loads(library: Path) -> bool:
    """Whether a program that has a library loaded before all others has it, and nobody complains."""
    done = subprocess.run(
        ["cat", "/proc/self/maps"], env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=True
    )
    return library.name in done.stdout and not done.stderr


def test_a_pod_shares_gpus_of_several_reservations_and_takes_mebibytes_of_them(sharing: Sharing) -> None:
    groups = [f"{sharing.group}-{number}" for number in range(2)]
    limits = {"limits": {"nvidia.com/gpu": 1}}
    for group in groups:
        sharing.node.pod(
            f"holds-{group}", "sleep 1000", namespace=RESERVATIONS, labels={"runai-gpu-group": group}, resources=limits
        )
    gpus = [sharing.gpus.holds(f"holds-{group}")[0] for group in groups]
    name = f"shares-{sharing.group}"
    said = {"gpu-memory": "1000", "simgpu.dev/gpu-memory": "9Gi", "run.ai/simulated-gpu-utilization": "30"}
    sharing.node.pod(
        name, "sleep 1000", labels={f"runai-gpu-group/{group}": group for group in groups}, annotations=said
    )
    sharing.gpus.running(name)
    uid = sharing.uid(name)
    wait_for(lambda: sharing.used() == {gpu: {uid: (30, 1000)} for gpu in gpus}, "the view", seconds=15)
    wait_for(lambda: sharing.shown(gpus[1], "DCGM_FI_DEV_GPU_UTIL") == (f"holds-{groups[1]}", 30), "30 %", seconds=15)
    assert sorted(sharing.gpus.sees(name)) == sorted(gpus)


def test_a_pod_that_shares_a_gpu_sees_exactly_this_one_also_after_a_restart_of_the_agent(sharing: Sharing) -> None:
    _, gpu = sharing.reserve_and_wait()
    other = sharing.gpus.pod()
    one = sharing.share("0.5", 30)
    sharing.gpus.running(one, other)
    assert sharing.gpus.sees(one) == [gpu]
    assert sharing.gpus.exec(one, "nvidia-smi", "-L").count("GPU ") == 1
    assert sharing.gpus.exec(one, "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES").strip() == gpu
    query = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader")
    wait_for(lambda: sharing.gpus.exec(one, *query).strip() == f"30 %, {MEMORY // 2} MiB", "its share", seconds=15)
    query = ("nvidia-smi", "--query-compute-apps=gpu_uuid,process_name,used_memory", "--format=csv,noheader")
    assert sharing.gpus.exec(one, *query).strip() == f"{gpu}, sleep, {MEMORY // 2} MiB"
    before = sharing.gpus.logged("registered with the container runtime")
    sharing.gpus.agent.stop(signal.SIGKILL)
    sharing.gpus.agent.start()
    sharing.gpus.wait_ready()
    assert sharing.gpus.sees(one) == [gpu]
    wait_for(lambda: sharing.gpus.logged("registered with the container runtime") > before, "the plugin", seconds=15)
    two = sharing.share("0.25", 20)
    sharing.gpus.running(two)
    assert sharing.gpus.sees(two) == [gpu]
    quarter = f"{gpu}, sleep, {MEMORY // 4} MiB"
    wait_for(lambda: sharing.gpus.exec(two, *query).strip() == quarter, "the memory of its own process", seconds=15)


def test_containers_start_without_an_agent_and_the_runtime_gets_it_back_after_its_own_restart(sharing: Sharing) -> None:
    gpus = sharing.gpus
    _, gpu = sharing.reserve_and_wait()
    with gpus.agent.standing():
        one = sharing.share("0.5", 30)
        gpus.running(one)
    assert gpus.sees(one) == []
    before = gpus.logged("registered with the container runtime")
    sharing.node.containerd.stop(signal.SIGTERM)
    sharing.node.begin(sharing.node.containerd)
    wait_for(lambda: gpus.logged("registered with the container runtime") > before, "the plugin", seconds=40)
    two = sharing.share("0.25", 20)
    gpus.running(two)
    assert gpus.sees(two) == [gpu]


def test_a_pod_whose_reservation_is_unknown_starts_without_a_gpu_and_gets_an_event(sharing: Sharing) -> None:
    sharing.reserve_and_wait()
    sharing.node.pod("lost", "sleep 1000", labels={"runai-gpu-group": "nobody"})
    sharing.gpus.running("lost")
    assert sharing.gpus.sees("lost") == []
    wait_for(lambda: sharing.gpus.events("ReservationUnknown", "lost", "container main sees no GPU"), "it", seconds=15)


def test_a_workload_in_a_pod_that_shares_a_gpu_drives_it_but_sets_nothing(sharing: Sharing, python_image: str) -> None:
    sharing.gpus.configure({**H200, "settable": True})
    reservation, gpu = sharing.reserve_and_wait()
    name = sharing.share("0.5", 30, "exec simgpu workload --activity 70:0:3600", image=python_image)
    sharing.gpus.running(name)
    wait_for(lambda: sharing.shown(gpu, "DCGM_FI_DEV_GPU_UTIL") == (reservation, 70), "70 %", seconds=30)
    with pytest.raises(AssertionError, match="Insufficient Permissions"):
        sharing.gpus.exec(name, "nvidia-smi", "-pl", "500")


def test_the_files_of_a_pod_that_shares_a_gpu_follow_its_timeline(sharing: Sharing) -> None:
    _, gpu = sharing.reserve_and_wait()
    steps = json.dumps([{"time": "500ms", "utilization": 90}, {"time": "1h", "utilization": 35}])
    name = sharing.share("0.5", 10, annotations={"simgpu.dev/utilization-timeline": steps})
    sharing.gpus.running(name)
    index = next(place for place, item in enumerate(sharing.view()) if item["id"] == gpu)
    expected = files(sharing.uid(name), index, 35, MEMORY // 2)
    wait_for(lambda: sharing.tree() == expected, "the second step", seconds=20)
