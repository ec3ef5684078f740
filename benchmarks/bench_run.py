"""`simgpu run`: what it adds to a command's start, and how fast NVML and nvidia-smi answer."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks import frame

PROGRAM = Path(sys.executable).parent / "simgpu"
CALLS = 100

# Runs inside `simgpu run`: a hundred calls of each program in turns.
_CALLS = f"""
import statistics, subprocess, time
def call(name):
    start = time.perf_counter()
    subprocess.run([name], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start
pairs = [(call("nvidia-smi"), call("/bin/true")) for _ in range({CALLS})]
print(statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs))
"""

# What gpustat asks of each card, over and over.
_READINGS = """
import time, pynvml as n
n.nvmlInit()
def read(i):
    h = n.nvmlDeviceGetHandleByIndex(i)
    n.nvmlDeviceGetName(h), n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetTemperature(h, 0)
    n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2), n.nvmlDeviceGetUtilizationRates(h)
    n.nvmlDeviceGetEncoderUtilization(h), n.nvmlDeviceGetDecoderUtilization(h)
    n.nvmlDeviceGetPowerUsage(h), n.nvmlDeviceGetEnforcedPowerLimit(h)
    n.nvmlDeviceGetComputeRunningProcesses(h), n.nvmlDeviceGetGraphicsRunningProcesses(h)
count, start = 0, time.perf_counter()
while time.perf_counter() - start < 3:
    for i in range(n.nvmlDeviceGetCount()): read(i)
    count += 1
print(count / (time.perf_counter() - start))
"""


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    pairs = [(timed([PROGRAM, "run", "--", "/bin/true"]), timed(["/bin/true"])) for _ in range(7)]
    added = statistics.median(ours - bare for ours, bare in pairs)
    yield frame.Figure("run.start", added, 0.9, "s", "what is aimed at")
    table, bare = (float(word) * 1000 for word in (await within(_CALLS, "--count", "1")).split())
    yield frame.Figure("run.nvidia_smi", table, bare, "ms", "/bin/true")
    rate = float(await within(_READINGS, "--count", "1", "--load", "training"))
    yield frame.Figure("run.readings", rate, 500, "readings/s", "what is aimed at", "higher")


def timed(command: list[str | Path]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - start


async def within(script: str, *options: str) -> str:
    """What a script prints when it sees simulated cards."""
    process = await asyncio.create_subprocess_exec(
        PROGRAM, "run", *options, "--", sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()
