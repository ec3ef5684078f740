"""The workload socket in pods: what a pod starts and sets on its own GPUs, and that these are all that it reaches."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.fixtures.agent import H200, Gpus
from tests.fixtures.machine import wait_for

IDLE = {"run.ai/simulated-gpu-utilization": "0"}
SET = """
import json, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("/run/simgpu/workload.sock")
    wish = {"Device": sys.argv[1], "Setting": "power_limit", "Values": [500000, 0]}
    connection.sendall(json.dumps({"Set": wish}).encode())
    print(connection.recv(100).decode())
"""


def usage(gpus: Gpus, gpu: str) -> float:
    return next(value for labels, value in gpus.series() if labels["UUID"] == gpu)


def until(gpus: Gpus, gpu: str, percent: float) -> None:
    wait_for(lambda: usage(gpus, gpu) == percent, f"{percent} %", seconds=30)


def test_a_pods_workload_runs_on_its_own_gpus_and_nothing_beside_it(gpus: Gpus, python_image: str) -> None:
    script = "simgpu workload --activity 30:0:6; echo code $?; exec sleep 1000"
    name, other = gpus.pod(script, gpus=2, image=python_image), gpus.pod()
    gpus.running(name, other)
    mine, (theirs,) = gpus.holds(name, 2), gpus.holds(other)
    for gpu in mine:
        until(gpus, gpu, 30)
    assert (
        gpus.exec(name, "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader").split("\n")[0] == "30 %"
    )
    until(gpus, theirs, 100)
    wait_for(lambda: "code 0" in gpus.node.kubectl("logs", name), "the workload to end")
    assert gpus.node.kubectl("logs", name) == "OK\ncode 0\n"
    for gpu in mine:
        until(gpus, gpu, 100)


def test_a_workload_of_a_pod_goes_on_when_the_agent_comes_back(gpus: Gpus, python_image: str) -> None:
    script = "exec simgpu workload --reconnect 60 --devnames 1 --activity 30:0:3600"
    name = gpus.pod(script, gpus=2, image=python_image)
    gpus.running(name)
    mine = gpus.holds(name, 2)
    first, second = (gpu for gpu in gpus.sees(name) if gpu in mine)
    until(gpus, second, 30)
    gpus.agent.stop(signal.SIGKILL)
    gpus.agent.start()
    gpus.wait_ready()
    until(gpus, second, 30)
    assert usage(gpus, first) == 0
    assert gpus.holds(name, 2) == mine


def test_a_pods_workload_adds_to_what_others_do_on_a_shared_gpu(gpus: Gpus, python_image: str) -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}}
    gpus.configure({"gpus": [{"type": "h200", "count": 1}], "sharing": sharing})
    gpus.have(2)
    other = gpus.pod(annotations={"run.ai/simulated-gpu-utilization": "20"})
    gpus.running(other)
    (gpu,) = gpus.holds(other)
    until(gpus, gpu, 20)
    name = gpus.pod("exec simgpu workload --activity 30:0:3600", image=python_image)
    gpus.running(name)
    assert gpus.sees(name) == [gpu]
    until(gpus, gpu, 50)
    assert gpus.holds(other) == [gpu], "who had it first, though both may be of the same second"
    gpus.agent.stop(signal.SIGKILL)
    gpus.agent.start()
    gpus.wait_ready()
    assert gpus.holds(other) == [gpu]


def test_a_workload_goes_on_while_the_topology_keeps_its_gpus_and_ends_with_them(gpus: Gpus, python_image: str) -> None:
    script = "simgpu workload --activity 30:0:3600; echo code $?; exec sleep 1000"
    name = gpus.pod(script, gpus=2, image=python_image)
    gpus.running(name)
    first, second = sorted(gpus.holds(name, 2), key=gpus.sees(name).index)
    until(gpus, second, 30)
    gpus.configure({"gpus": [{"type": "h200", "count": 3}]})
    gpus.have(3)
    later = gpus.pod(annotations=IDLE)
    gpus.running(later)
    gpus.holds(later)
    assert [usage(gpus, gpu) for gpu in (first, second)] == [30, 30]
    assert not gpus.node.kubectl("logs", name)
    gpus.configure({"gpus": [{"type": "h200", "count": 1}]})
    gpus.have(1)
    wait_for(lambda: "code" in gpus.node.kubectl("logs", name), "the workload to end")
    assert gpus.node.kubectl("logs", name) == "Device removed, terminated\ncode 1\n"
    until(gpus, first, 100)


def test_a_pod_cannot_act_on_another_pods_gpus(gpus: Gpus, python_image: str) -> None:
    gpus.configure({**H200, "settable": True})
    name = gpus.pod("exec sleep 1000", image=python_image, annotations=IDLE)
    other = gpus.pod(annotations=IDLE)
    gpus.running(name, other)
    (mine,), (theirs,) = gpus.holds(name), gpus.holds(other)
    for device in (theirs, "1", "nvidia1"):
        with pytest.raises(AssertionError, match=f"Devices: no device '{device}' here"):
            gpus.exec(name, "simgpu", "workload", "--devnames", device, "--activity", "90:0:5")
    wait_for(lambda: gpus.exec(name, "python3", "-c", SET, mine) == "0\n", "the pool to let it set its own")
    assert gpus.exec(name, "python3", "-c", SET, theirs) == "4\n"
    query = ("nvidia-smi", "--query-gpu=power.limit,utilization.gpu", "--format=csv,noheader")
    assert gpus.exec(name, *query).strip() == "500.00 W, 0 %"
    assert gpus.exec(other, *query).strip() == "700.00 W, 0 %"


def test_root_on_the_node_acts_on_all_gpus(gpus: Gpus) -> None:
    name = gpus.pod(annotations=IDLE)
    gpus.running(name)
    gpu = gpus.holds(name)[0]
    socket = "/var/lib/simgpu/run/workload.sock"
    command = [
        sys.executable,
        "-m",
        "simgpu",
        "workload",
        "--socket",
        socket,
        "--devnames",
        gpu,
        "--activity",
        "60:0:2",
    ]
    assert gpus.node.machine.run(*command) == "OK\n"
