"""MIG on a real node: the scheduler, the kubelet, pods and Prometheus see a node whose cards are divided."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.agent import Gpus
from tests.fixtures.machine import wait_for

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
SMALL, LARGE = "nvidia.com/mig-1g.18gb", "nvidia.com/mig-3g.71gb"


def pool(strategy: str, **more: Any) -> dict[str, Any]:
    return {"gpus": [{"type": "h200", "count": 2}], "mig": {"strategy": strategy, **more}}


def labels(gpus: Gpus) -> dict[str, str]:
    found = json.loads(gpus.node.kubectl("get", "node", gpus.node.name, "-o", "json"))
    named: dict[str, str] = found["metadata"]["labels"]
    return named


def label(gpus: Gpus, layout: str) -> None:
    value = f"{CONFIG}={layout}" if layout else f"{CONFIG}-"
    gpus.node.kubectl("label", "node", gpus.node.name, "--overwrite", value)


def state(gpus: Gpus, wanted: str) -> None:
    wait_for(lambda: labels(gpus).get(STATE) == wanted, f"the state {wanted}", seconds=20)


def instances(gpus: Gpus, pod: str) -> list[str]:
    """The MIG devices that a pod sees."""
    return re.findall(r"UUID: (MIG-\S+)\)", gpus.exec(pod, "nvidia-smi", "-L"))


@pytest.fixture
def divided(gpus: Gpus) -> Iterator[Gpus]:
    """The node with two cards, each in three instances."""
    gpus.configure(pool("mixed", config={"1g.18gb": 2, "3g.71gb": 1}))
    gpus.have(4, SMALL)
    yield gpus
    gpus.node.kubectl("delete", "pods", "--all", "--now")
    label(gpus, "")


def test_pods_have_instances_whose_layout_a_label_changes_and_a_restart_keeps(divided: Gpus) -> None:
    gpus = divided
    gpus.have(2, LARGE)
    gpus.have(0)
    found = labels(gpus)
    assert (found[f"{SMALL}.count"], found[f"{SMALL}.memory"], found[f"{LARGE}.slices.gi"]) == ("4", "16384", "3")

    two, one = gpus.pod(gpus=2, resource=SMALL), gpus.pod(resource=LARGE)
    gpus.running(two, one)
    mine = instances(gpus, two)
    assert len(set(mine)) == 2
    assert len(instances(gpus, one)) == 1
    assert len(gpus.sees(two)) == 1  # both of one card, whatever the pod beside it has
    assert "71424MiB" in gpus.exec(one, "nvidia-smi")
    on_instance = re.compile(r"\|    0    2    0 +\d+      C   ")  # GPU, GPU instance, compute instance
    wait_for(lambda: on_instance.search(gpus.exec(one, "nvidia-smi")) is not None, "its processes", seconds=15)

    def shown() -> dict[str, list[str]]:
        series = gpus.series("DCGM_FI_DEV_FB_USED")
        return {
            name: sorted(item["GPU_I_PROFILE"] for item, _ in series if item.get("pod") == name) for name in (two, one)
        }

    wait_for(lambda: shown() == {two: ["1g.18gb"] * 2, one: ["3g.71gb"]}, "pods on their instances", seconds=15)

    label(gpus, "all-7g.141gb")
    state(gpus, "failed")
    wait_for(lambda: bool(gpus.events("MigConfigFailed", "is in use by")), "the event", seconds=15)
    assert instances(gpus, two) == mine
    before = gpus.energy()
    gpus.agent.stop()
    gpus.agent.start()
    gpus.wait_ready()
    wait_for(lambda: shown() == {two: ["1g.18gb"] * 2, one: ["3g.71gb"]}, "pods on their instances again", seconds=15)
    assert instances(gpus, two) == mine
    assert all(value >= before[gpu] for gpu, value in gpus.energy().items())

    gpus.delete(two, one)
    label(gpus, "all-3g.71gb")
    state(gpus, "success")
    gpus.have(4, LARGE)
    gpus.have(0, SMALL)
    assert f"{SMALL}.count" not in labels(gpus)


def test_instances_are_gpus_with_the_strategy_single(gpus: Gpus) -> None:
    gpus.configure(pool("single", config="all-1g.18gb"))
    gpus.have(14)
    found = labels(gpus)
    assert (found["nvidia.com/gpu.product"], found["nvidia.com/gpu.count"]) == ("NVIDIA-H200-MIG-1g.18gb", "14")
    pod = gpus.pod()
    gpus.running(pod)
    assert len(instances(gpus, pod)) == 1


def test_root_on_the_node_divides_a_card_by_hand_and_the_nodes_resources_follow(gpus: Gpus) -> None:
    gpus.configure({**pool("mixed"), "settable": True})
    gpus.have(2)

    def smi(words: str) -> str:
        socket, tool = "SIMGPU_SOCKET=/var/lib/simgpu/run/workload.sock", "/var/lib/simgpu/programs/*/nvidia-smi"
        return gpus.node.machine.run("sh", "-c", f"{socket} {tool} {words}")

    assert smi("-i 0 -mig 1").startswith("Enabled MIG Mode")
    assert smi("mig -cgi 9,19 -C").count("Successfully created") == 4
    gpus.have(1, LARGE)
    gpus.have(1, SMALL)
    gpus.have(1)
    pod = gpus.pod(resource=SMALL)
    gpus.running(pod)
    assert len(instances(gpus, pod)) == 1
    gpus.delete(pod)
    label(gpus, "all-disabled")  # comes before what was set by hand
    gpus.have(2)
    label(gpus, "")
