"""Accounting through NVML and nvidia-smi: words and codes are those of a recorded H200 with driver 580.159.04."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fixtures import nvml, pages, smi

RECORDED = """\
    Accounting Mode                                    : Enabled
    Accounting Mode Buffer Size                        : 4000
    Accounted Processes
        Process ID                                     : 505
            GPU Utilization                            : 9 %
            Memory Utilization                         : 9 %
            Max memory usage                           : 1542 MiB
            Time                                       : 2444 ms
            Is Running                                 : 0
        Process ID                                     : 511
            GPU Utilization                            : 45 %
            Memory Utilization                         : 48 %
            Max memory usage                           : 1542 MiB
            Time                                       : 1349 ms
            Is Running                                 : 0

"""
RECORDED_XML = """\
\t\t<accounted_processes>
\t\t\t<accounted_process_info>
\t\t\t\t<pid>422</pid>
\t\t\t\t<gpu_util>26 %</gpu_util>
\t\t\t\t<memory_util>28 %</memory_util>
\t\t\t\t<max_memory_usage>1542 MiB</max_memory_usage>
\t\t\t\t<time>6477 ms</time>
\t\t\t\t<is_running>0</is_running>
\t\t\t</accounted_process_info>
\t\t</accounted_processes>
"""
BIN = Path(sys.executable).parent
START = 1_794_888_000_000_000


def page(folder: Path, *accounts: tuple[int, int, int, int, int], mode: int = 1) -> Path:
    """A card with records of pid, whether it runs, milliseconds, and percent of both utilisations."""
    rows = pages.recorded(accounting=mode)
    for place, (pid, running, time, usage, memory) in enumerate(accounts):
        last = START + time * 1000
        rows[0]["accounts"][place] = (pid, running, START, last, usage * time * 1000, memory * time * 1000, 1616904192)
    return pages.write(folder, rows)


def test_the_log_lists_processes_as_the_recorded_one(tmp_path: Path) -> None:
    folder = page(tmp_path, (505, 0, 2444, 9, 9), (511, 0, 1349, 45, 48))
    assert smi.say(folder, "-q", "-d", "ACCOUNTING").endswith(RECORDED)
    assert RECORDED_XML in smi.say(page(tmp_path, (422, 0, 6477, 26, 28)), "-q", "-x").replace("\r", "")


def test_a_query_lists_processes_as_the_recorded_one(tmp_path: Path) -> None:
    folder = page(tmp_path, (505, 0, 2444, 9, 9), (511, 0, 1349, 45, 48))
    columns = "gpu_name,pid,gpu_utilization,mem_utilization,max_memory_usage,time,vgpu_instance"
    assert smi.say(folder, f"--query-accounted-apps={columns}", "--format=csv").splitlines() == [
        "gpu_name, pid, gpu_utilization [%], mem_utilization [%], max_memory_usage [MiB], time [ms], vgpu_instance",
        "NVIDIA H200, 505, 9 %, 9 %, 1542 MiB, 2444 ms, N/A",
        "NVIDIA H200, 511, 45 %, 48 %, 1542 MiB, 1349 ms, N/A",
    ]
    assert 'Field "max_memory" is not a valid' in smi.run(folder, "--query-accounted-apps=max_memory").stdout


STATS = "(lambda s: [s.gpuUtilization, s.memoryUtilization, s.maxMemoryUsage, s.time, s.startTime, s.isRunning])"


def test_nvml_has_the_codes_and_figures_of_the_recorded_one(tmp_path: Path) -> None:
    folder = page(tmp_path, (422, 1, 3000, 14, 14), (423, 0, 6477, 26, 28))
    asked: list[Any] = nvml.ask(folder, [
        "N.nvmlDeviceGetAccountingMode(card)", "list(N.nvmlDeviceGetAccountingPids(card))",
        f"{STATS}(N.nvmlDeviceGetAccountingStats(card, 422))", f"{STATS}(N.nvmlDeviceGetAccountingStats(card, 423))",
        "N.nvmlDeviceGetAccountingStats(card, 1)", "N.nvmlDeviceSetAccountingMode(card, 0)",
    ])  # fmt: skip
    assert asked[:2] == [1, [422, 423]]
    assert asked[2] == [14, 14, 1616904192, 0, START, 1]
    assert asked[3] == [26, 28, 1616904192, 6477, START, 0]
    assert asked[4:] == ["ERR 6 Not Found", "ERR 4 Insufficient Permissions"]


def test_without_a_buffer_the_size_that_is_needed_is_answered_even_for_none(tmp_path: Path) -> None:
    program = """
import ctypes, json
library = ctypes.CDLL("libnvidia-ml.so.1")
card, count = ctypes.c_void_p(), ctypes.c_uint(0)
library.nvmlInit_v2()
library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
print(json.dumps([library.nvmlDeviceGetAccountingPids(card, ctypes.byref(count), None), count.value]))
"""
    assert nvml.run(page(tmp_path, mode=0), program) == "[7, 0]\n"
    assert nvml.run(page(tmp_path, (1, 0, 1, 1, 1)), program) == "[7, 1]\n"


def test_processes_are_recorded_from_when_it_is_enabled() -> None:
    script = (
        "nvidia-smi -caa; nvidia-smi -am 1; nvidia-smi -am 1; "
        f"{BIN / 'simgpu'} workload --devnames nvidia0 --activity 90:0:1; "
        "until nvidia-smi --query-accounted-apps=time,max_memory_usage --format=csv,noheader,nounits | grep -v '^0,'; "
        "do sleep 0.1; done; nvidia-smi -am 0; nvidia-smi --query-accounted-apps=pid --format=csv,noheader"
    )
    text = _run("--count", "1", "--", "sh", "-c", script)
    bus = r"GPU 0000[0-9A-F]{4}:[0-9A-F]{2}:00\.0"
    lines = text.splitlines()
    assert [re.sub(bus, "GPU", line) for line in lines[:6]] == [
        "Cleared Accounted PIDs for GPU.", "All done.", "Enabled Accounting Mode for GPU.", "All done.",
        "Accounting Mode is already Enabled for GPU.", "All done.",
    ]  # fmt: skip
    (time, memory) = next(line for line in lines if re.fullmatch(r"[1-9]\d*, \d+", line)).split(", ")
    assert int(time) >= 500
    assert int(memory) > 0
    assert lines[-2:] == [re.sub("^Enabled", "Disabled", lines[2]), "All done."]


def _run(*words: str) -> str:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [BIN / "simgpu", "run", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
