"""Programs that nobody here wrote, unmodified, looking at simulated cards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
LOAD = ("--count", "2", "--load", "training")


def seen(*command: str, options: tuple[str, ...] = LOAD) -> str:
    """What a command prints that sees two cards with a job on them."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [BIN / "simgpu", "run", *options, "--", *command],
        capture_output=True, text=True, check=False, env=os.environ | {"PATH": path, "TERM": "dumb"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(text: str, *, options: tuple[str, ...] = LOAD) -> dict[str, object]:
    answer = json.loads(seen(sys.executable, "-c", text, options=options).splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def test_gpustat_shows_the_cards_with_their_load_and_processes() -> None:
    cards = json.loads(seen("gpustat", "--json"))["gpus"]

    assert [card["name"] for card in cards] == ["NVIDIA H200"] * 2
    for card in cards:
        assert card["utilization.gpu"] > 50
        assert 200 < card["power.draw"] < 720
        assert card["enforced.power.limit"] == 700
        assert card["memory.total"] == 143771
        assert card["memory.used"] > 0
        (process,) = card["processes"]
        assert process["command"].startswith("python")
        assert process["gpu_memory_usage"] > 100_000


def test_nvitop_shows_the_cards() -> None:
    page = seen("nvitop", "-1", "--ascii")

    assert page.count("  H200 ") == 2
    assert "Driver Version: 580.159.04" in page
    assert "140.4GiB" in page
    assert len(re.findall(r"\|\s+[01]\s+\d+ C\s+\S+ 1\d\d\.\dGiB ", page)) == 2, "a process on each, and its memory"


def test_py3nvml_reads_what_nvml_has() -> None:
    answer = script(
        "import json; from py3nvml import py3nvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1)\n"
        "print(json.dumps({'name': n.nvmlDeviceGetName(h), 'bus': n.nvmlDeviceGetPciInfo(h).busId.decode(),"
        " 'memory': n.nvmlDeviceGetMemoryInfo(h).total, 'processes': len(n.nvmlDeviceGetComputeRunningProcesses(h))}))"
    )

    assert answer == {
        "name": "NVIDIA H200", "bus": "0000:03:01.0", "memory": 143771 * 2**20, "processes": 1,
    }  # fmt: skip


def test_gputil_parses_nvidia_smi() -> None:
    answer = script(
        "import GPUtil, json; g = GPUtil.getGPUs()\n"
        "print(json.dumps({'names': [x.name for x in g], 'load': g[0].load, 'memory': g[0].memoryTotal,"
        " 'temperature': g[0].temperature}))"
    )

    assert answer["names"] == ["NVIDIA H200"] * 2
    assert answer["memory"] == 143771
    assert isinstance(answer["load"], float)
    assert answer["load"] > 0.5


def test_nvsmi_parses_nvidia_smi_and_its_processes() -> None:
    answer = script(
        "import json, nvsmi; g = list(nvsmi.get_gpus()); p = list(nvsmi.get_gpu_processes())\n"
        "print(json.dumps({'names': [x.name for x in g], 'total': g[0].mem_total,"
        " 'processes': sorted({x.process_name for x in p})}))"
    )

    assert answer["names"] == ["NVIDIA H200"] * 2
    assert answer["total"] == 143771
    assert [Path(name).name[:6] for name in answer["processes"]] == ["python"]  # type: ignore[attr-defined]


def test_zeus_reads_energy_and_sets_limits_and_clocks() -> None:
    answer = script(
        "import json, time; from zeus.device import get_gpus; g = get_gpus()\n"
        "energy = lambda: g.get_total_energy_consumption(0) / 1000\n"
        "before, started = energy(), time.monotonic(); g.set_power_management_limit(0, 400000)\n"
        "while g.get_instant_power_usage(0) > 440000 or energy() < before + 800: time.sleep(0.05)\n"
        "print(json.dumps({'count': len(g), 'name': g.get_name(0), 'limit': g.get_power_management_limit(0),"
        " 'watts': (energy() - before) / (time.monotonic() - started)}))"
    )

    assert answer["count"] == 2
    assert answer["name"] == "NVIDIA H200"
    assert answer["limit"] == 400_000
    assert isinstance(answer["watts"], float)
    assert 200 < answer["watts"] < 800


def test_zeus_locks_clocks() -> None:
    answer = script(
        "import json, time; from zeus.device import get_gpus; g = get_gpus()\n"
        "import pynvml; h = pynvml.nvmlDeviceGetHandleByIndex(0)\n"
        "clock = lambda: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM)\n"
        "before = clock(); g.set_gpu_locked_clocks(0, 345, 1200)\n"
        "while clock() > 1200: time.sleep(0.05)\n"
        "print(json.dumps({'before': before, 'locked': clock()}))"
    )

    assert isinstance(answer["before"], int)
    assert isinstance(answer["locked"], int)
    assert answer["locked"] <= 1200 < answer["before"]
