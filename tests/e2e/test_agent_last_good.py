"""What a real node has when nobody says anything that can be understood: what it had."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from simgpu.cluster import processes
from tests.fixtures.agent import H200, Gpus
from tests.fixtures.machine import wait_for

LONG = f"{'d' * 63}.{'e' * 63}.{'f' * 63}/{'g' * 63}"


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        ({"gpus": [{"type": "h200", "count": 129}]}, "at most 128 cards"),
        ({"gpus": [{"type": "mi300x", "count": 2}]}, "NVML supports NVIDIA"),
        (
            {"gpu": {"profile": "h200", "overrides": {"device_defaults": {"compute_capability": {"major": "abc"}}}}},
            "compute_capability",
        ),
    ],
)
def test_gpus_that_a_node_cannot_have_are_an_event_and_it_keeps_its_own(
    gpus: Gpus, pool: dict[str, Any], said: str
) -> None:
    name = gpus.pod()
    gpus.running(name)
    gpu = gpus.holds(name)
    before = gpus.events(said)
    gpus.configure(pool)
    wait_for(lambda: gpus.events(said) > before, "an event", seconds=20)
    known = gpus.registrations()
    gpus.agent.stop(signal.SIGKILL)
    gpus.agent.start()
    gpus.wait_ready()
    wait_for(lambda: gpus.registrations() > known, "the kubelet to know the GPUs again")
    gpus.have(8)
    assert gpus.holds(name) == gpu
    assert gpus.sees(name) == gpu


@pytest.mark.parametrize("text", ["{after: 2024-13-45}", "[" * 3000])
def test_failures_that_are_no_yaml_end_nothing(gpus: Gpus, text: str) -> None:
    before = gpus.events("InvalidFailures")
    gpus.fail(text)
    wait_for(lambda: gpus.events("InvalidFailures") > before, "an event", seconds=20)
    gpus.fail("unhealthy: [0]")
    gpus.have(7)


def test_a_resource_with_a_long_name_is_there_beside_others(gpus: Gpus) -> None:
    gpus.configure({**H200, "otherDevices": [{"name": LONG, "count": 2}]})
    gpus.have(2, LONG)
    gpus.have(8)
    gpus.configure(H200)
    gpus.have(0, LONG)


@pytest.fixture
def api_server(gpus: Gpus) -> Iterator[int]:
    """The API server's process id; it runs afterwards."""
    folder = gpus.node.cluster.kubeconfig.parent
    [found] = [item.pid for item in processes.running(folder) if item.component == "kube-apiserver"]
    yield found
    os.kill(found, signal.SIGCONT)


def test_a_new_agent_goes_on_while_the_api_server_is_away(gpus: Gpus, api_server: int) -> None:
    name = gpus.pod(annotations={"run.ai/simulated-gpu-utilization": "40"})
    gpus.running(name)
    gpu = gpus.holds(name)
    status = json.loads(gpus.node.kubectl("get", "pod", name, "-o", "json"))["status"]
    container = status["containerStatuses"][0]["containerID"].rpartition("/")[2]
    query = ("nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader")

    def seen(*, check: bool = True) -> str:
        return gpus.node.ctr("tasks", "exec", f"--exec-id=look-{time.monotonic_ns()}", container, *query, check=check)

    wait_for(lambda: seen(check=False).strip() == f"{gpu[0]}, 40 %", "the pod to see its GPU")
    known = gpus.registrations()
    os.kill(api_server, signal.SIGSTOP)
    gpus.agent.stop(signal.SIGKILL)
    gpus.agent.start()
    gpus.wait_ready()
    wait_for(lambda: gpus.registrations() > known, "the kubelet to know the GPUs", seconds=10)
    assert gpus.holds(name) == gpu
    deadline = time.monotonic() + 12  # by then the pages of the agent before are those of nobody
    looks = []
    while time.monotonic() < deadline:
        looks.append(seen().strip())  # fails with nvidia-smi; containerd can lose what a program printed
    assert set(looks) - {""} == {f"{gpu[0]}, 40 %"}, gpus.agent.tail()
    assert looks.count("") <= len(looks) // 10
    os.kill(api_server, signal.SIGCONT)
    gpus.configure({"gpus": [{"type": "h200", "count": 3}]})
    gpus.have(3)
    assert gpus.holds(name) == gpu
