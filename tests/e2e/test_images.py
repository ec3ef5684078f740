"""Programs that nobody here wrote, in pods with a C library of their own: all see the pod's own GPU alike."""

from __future__ import annotations

import json
import platform
import re

import pytest

from simgpu.page import native
from tests.fixtures.agent import Gpus
from tests.fixtures.machine import wait_for

FIELDS = "uuid,name,utilization.gpu,memory.used,power.draw"
MACHINE = platform.machine()


def busy_pod(gpus: Gpus, image: str) -> str:
    """A pod whose GPU is as busy as its annotation says, beside another with a GPU."""
    other = gpus.pod()
    name = gpus.pod("exec sleep 2000", image=image, annotations={"run.ai/simulated-gpu-utilization": "40"})
    gpus.running(other, name)
    (gpu,) = gpus.holds(name)
    wait_for(lambda: (gpu, 40) in [(labels["UUID"], value) for labels, value in gpus.series()], "40 %", seconds=10)
    return name


def smi(gpus: Gpus, name: str, fields: str = FIELDS) -> str:
    return gpus.exec(name, "nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits").strip()


def test_gpustat_in_a_debian_pod_shows_what_nvidia_smi_shows(gpus: Gpus, python_image: str) -> None:
    name = busy_pod(gpus, python_image)
    with gpus.agent.standing():
        uuid, product, usage, memory, power = smi(gpus, name).split(", ")
        (card,) = json.loads(gpus.exec(name, "gpustat", "--json"))["gpus"]
    assert (uuid, product, usage) == (gpus.holds(name)[0], "NVIDIA H200", "40")
    assert (card["uuid"], card["name"], card["utilization.gpu"]) == (uuid, product, 40)
    assert card["memory.used"] == int(memory)
    assert 0 <= float(power) - card["power.draw"] <= 1  # gpustat leaves out what is less than a watt
    assert [(process["pid"], process["command"]) for process in card["processes"]] == [(1, "sleep")]
    on_node = gpus.node.machine.run(
        str(native.tool()), "--query-compute-apps=gpu_uuid,pid,name", "--format=csv,noheader"
    )
    (pid, program) = next(line.split(", ")[1:] for line in on_node.splitlines() if line.startswith(uuid))
    assert (int(pid) > 1, program) == (True, "sleep")
    assert gpus.node.machine.run("cat", f"/proc/{pid}/cmdline") == "sleep\0" + "2000\0"


def test_nvitop_in_a_debian_pod_shows_what_nvidia_smi_shows(gpus: Gpus, python_image: str) -> None:
    name = busy_pod(gpus, python_image)
    with gpus.agent.standing():
        values = smi(gpus, name, "temperature.gpu,pstate,power.draw,power.limit,memory.used,utilization.gpu").split(
            ", "
        )
        page = gpus.exec(name, "env", "TERM=dumb", "nvitop", "-1", "--ascii")
    heat, state, power, limit, memory, usage = values
    (row,) = re.findall(r"(\d+)C +(P\d+) +(\d+)W / (\d+)W \| +([\d.]+)GiB / 140\.4GiB \| +(\d+)%", page)
    assert row == (heat, state, row[2], f"{float(limit):.0f}", f"{int(memory) / 1024:.1f}", usage)
    assert abs(float(power) - int(row[2])) <= 0.51  # each rounds for itself
    processes = page.partition("Processes:")[2]
    assert re.findall(r"^\|   0 +(\d+) C .* (\S+ \S+) +\|$", processes, re.MULTILINE) == [("1", "sleep 2000")]


def test_metrics_and_nvidia_smi_show_the_same_of_one_moment(gpus: Gpus, python_image: str) -> None:
    name = busy_pod(gpus, python_image)
    seen: list[str] = []

    def value(family: str) -> float:
        return next(value for labels, value in gpus.series(family) if labels.get("pod") == name)

    def undisturbed() -> bool:
        before = smi(gpus, name)
        usage, memory = value("DCGM_FI_DEV_GPU_UTIL"), value("DCGM_FI_DEV_FB_USED")
        told = f"{gpus.holds(name)[0]}, NVIDIA H200, {usage:.0f}, {memory:.0f}"
        seen[:] = [before, f"{told}, {value('DCGM_FI_DEV_POWER_USAGE'):.2f}"]
        return smi(gpus, name) == before

    wait_for(undisturbed, "a moment in which nothing changes")
    (others, power), (same, watts) = (text.rsplit(", ", 1) for text in seen)
    assert others == same
    assert float(power) == pytest.approx(
        float(watts), abs=0.011
    )  # a page has whole milliwatts, which are rounded again


def test_a_program_of_musl_and_nvidia_smi_agree_in_a_pod_without_another_libc(gpus: Gpus, musl_image: str) -> None:
    name = busy_pod(gpus, musl_image)
    with gpus.agent.standing():
        shown = smi(gpus, name)
        assert gpus.exec(name, "reader").strip() == shown
    assert shown.startswith(f"{gpus.holds(name)[0]}, NVIDIA H200, 40, ")
    assert gpus.exec(name, "ls", "/lib").split() == [f"ld-musl-{MACHINE}.so.1", f"{MACHINE}-linux-musl"]
