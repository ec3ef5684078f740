"""`simgpu run`: what a command and its user see."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
SIMGPU = str(BIN / "simgpu")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder for temporary files, to see what is left in it; with a short name, or it would not be taken."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as made:
        yield Path(made)


def run(home: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SIMGPU, "run", *arguments], capture_output=True, text=True, check=check, env=_environment(home), timeout=60
    )


@contextlib.contextmanager
def started(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [SIMGPU, "run", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment(home)
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def _environment(home: Path) -> dict[str, str]:
    return os.environ | {"TMPDIR": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


def test_a_command_sees_the_cards_that_were_asked_for(home: Path) -> None:
    lines = run(home, "--model", "a100", "--count", "3", "--", "nvidia-smi", "-L").stdout.splitlines()

    assert [line.partition(" (")[0] for line in lines] == [f"GPU {index}: NVIDIA A100-SXM4-40GB" for index in range(3)]


def test_the_exit_code_of_the_command_is_passed_on(home: Path) -> None:
    assert run(home, "--", "sh", "-c", "exit 42", check=False).returncode == 42


def test_a_command_that_is_not_there_ends_with_127_and_its_name(home: Path) -> None:
    done = run(home, "--", "no-such-command", check=False)

    assert (done.returncode, done.stderr) == (127, "Error: no-such-command: no such command\n")


def test_a_command_that_cannot_be_started_ends_with_126(home: Path) -> None:
    assert run(home, "--", "/etc/passwd", check=False).returncode == 126


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command_and_its_end_is_ours(home: Path, number: signal.Signals) -> None:
    with started(home, "--", "sh", "-c", "echo there; exec sleep 60") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        child.send_signal(number)

        assert child.wait(20) == -number
    assert not list(home.iterdir())


def test_a_command_may_handle_ctrl_c_itself(home: Path) -> None:
    script = "trap 'exit 3' INT; echo there; while :; do sleep 0.1; done"
    command = [SIMGPU, "run", "--", "sh", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=_environment(home), start_new_session=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does it

        assert child.wait(20) == 3


def test_a_command_that_is_killed_ends_us_the_same_way(home: Path) -> None:
    assert run(home, "--", "sh", "-c", "kill -9 $$", check=False).returncode == -signal.SIGKILL


def test_what_we_are_told_to_ignore_the_command_ignores_too(home: Path) -> None:
    script = "trap '' HUP; exec \"$0\" run -- sh -c 'kill -HUP $$ $PPID; echo alive'"
    done = subprocess.run(
        ["sh", "-c", script, SIMGPU], capture_output=True, text=True, check=False, env=_environment(home), timeout=60
    )

    assert (done.returncode, done.stdout) == (0, "alive\n")


@pytest.mark.parametrize("name", ["t" * 90, "with:colon", "with space"])
def test_folders_for_temporary_files_may_have_any_name(home: Path, name: str) -> None:
    odd = home / name
    odd.mkdir()

    assert run(odd, "--", "nvidia-smi", "-L").stdout.startswith("GPU 0: NVIDIA H200")


def test_what_a_killed_run_left_is_removed_by_the_next(home: Path) -> None:
    with started(home, "--", "sh", "-c", "echo there; exec sleep 60") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        child.kill()
        child.wait()
        (left,) = home.iterdir()
        run(home, "--", "true")
        assert not left.exists()
        for stat in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if str(left) in stat.read_bytes().decode(errors="replace"):
                    os.kill(int(stat.parent.name), signal.SIGKILL)


def test_what_was_left_is_removed_though_another_process_has_the_number_of_its_owner(home: Path) -> None:
    left = home / f"simgpu-run-{os.getpid()}-abc"
    (left / "gpus").mkdir(parents=True)
    (home / "simgpu-run-file").touch()
    run(home, "--", "true")
    assert [path.name for path in home.iterdir()] == ["simgpu-run-file"]


def test_a_run_keeps_its_folder_whoever_cleans_up(home: Path) -> None:
    script = 'echo there; until [ -e "$1" ]; do sleep 0.05; done; exec nvidia-smi -L'
    with started(home, "--", "sh", "-c", script, "sh", str(home / "go")) as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "there\n"
        run(home, "--", "true")
        (home / "go").touch()
        assert "H200" in one.communicate()[0]


def test_a_run_in_another_container_keeps_its_folder(home: Path) -> None:
    """Processes there are not seen from here, but it is the same folder for temporary files."""
    with started(home, "--", "sh", "-c", "echo there; exec sleep 60") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        (folder,) = home.iterdir()
        seen = folder.rename(home / "simgpu-run-4194305-x")  # a number that no process has
        run(home, "--", "true")
        assert seen.exists()
        seen.rename(folder)
        child.terminate()
        child.wait()


def test_an_option_that_is_not_there_is_named(home: Path) -> None:
    done = run(home, "--modle", "a100", "--", "nvidia-smi", check=False)

    assert done.returncode == 2
    assert "--modle" in done.stderr


def test_nothing_is_left_behind(home: Path) -> None:
    run(home, "--", "true")

    assert not list(home.iterdir())


def test_two_runs_at_once_have_their_own_cards(home: Path) -> None:
    with (
        started(home, "--model", "h200", "--", "nvidia-smi", "-L") as one,
        started(home, "--model", "t4", "--", "nvidia-smi", "-L") as other,
    ):
        assert "H200" in one.communicate()[0]
        assert "T4" in other.communicate()[0]


PROCESSES = """
import json, os, pynvml
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
print(json.dumps([
    {
        "processes": {item.pid: item.usedGpuMemory for item in pynvml.nvmlDeviceGetComputeRunningProcesses(card)},
        "used": pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2).used,
        "total": pynvml.nvmlDeviceGetMemoryInfo(card).total,
    }
    for card in cards
]))
"""


def test_a_load_is_one_process_on_each_card_with_the_memory_of_such_a_job(home: Path) -> None:
    with started(home, "--count", "2", "--load", "training", "--", sys.executable, "-c", PROCESSES) as child:
        cards = json.loads(child.communicate()[0])

    assert [list(card["processes"]) for card in cards] == [[str(child.pid)]] * 2, "simgpu run, not the one that asks"
    for card in cards:
        assert sum(card["processes"].values()) == card["used"]
        assert 0.8 < card["used"] / card["total"] < 0.9


def test_nvidia_smi_lists_the_load_and_not_itself(home: Path) -> None:
    with started(home, "--load", "training", "--", "nvidia-smi") as child:
        page = child.communicate()[0]

    (process,) = [line.split() for line in page.splitlines() if " C " in line]
    assert process[4] == str(child.pid)
    assert Path(process[6]).name.startswith("python")
    assert int(process[7].removesuffix("MiB")) > 100_000


def test_a_workload_from_within_is_listed_with_its_own_memory(home: Path) -> None:
    listed = "nvidia-smi -i 1 --query-compute-apps=pid --format=csv,noheader"
    script = (
        "simgpu workload --devnames nvidia1 --activity 40:0:60 & other=$!; echo $other;"
        f' until {listed} | grep -q $other; do :; done; $1 -c "$0"; kill $other'
    )
    command = ("--count", "2", "--load", "20", "--", "sh", "-c", script, PROCESSES, sys.executable)
    with started(home, *command) as child:
        number, printed = child.communicate()[0].splitlines()
    first, second = json.loads(printed)

    assert list(first["processes"]) == [str(child.pid)]
    assert set(second["processes"]) == {str(child.pid), number}
    assert sum(second["processes"].values()) == second["used"]
    assert second["processes"][number] == pytest.approx(2 * second["processes"][str(child.pid)], rel=0.01)


def test_cards_without_a_load_have_no_processes(home: Path) -> None:
    assert "No running processes found" in run(home, "--", "nvidia-smi").stdout


def test_a_lower_limit_lowers_power_and_clock(home: Path) -> None:
    script = """
import pynvml, time
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
def clock(): return pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM)
def power(): return pynvml.nvmlDeviceGetPowerUsage(card)
while power() < 650000: time.sleep(0.05)
print(clock())
pynvml.nvmlDeviceSetPowerManagementLimit(card, 300000)
while power() > 310000: time.sleep(0.05)
print(clock())
"""
    clock, slower = map(int, run(home, "--load", "matmul-bf16", "--", sys.executable, "-c", script).stdout.split())

    assert slower < clock


def test_settings_can_be_refused_as_to_an_ordinary_user(home: Path) -> None:
    script = """
import pynvml
pynvml.nvmlInit()
try:
    pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 300000)
except pynvml.NVMLError as error:
    print(type(error).__name__)
"""
    assert run(home, "--no-settings", "--", sys.executable, "-c", script).stdout == "NVMLError_NoPermission\n"


def test_a_workload_can_be_added_from_within(home: Path) -> None:
    script = (
        "simgpu workload --devnames nvidia1 --activity 90:0:60 & other=$!;"
        "until [ $(nvidia-smi -i 1 --query-gpu=utilization.gpu --format=csv,noheader,nounits) -gt 50 ]; do sleep 0.1;"
        " done; nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits; kill $other"
    )
    lines = run(home, "--count", "2", "--", "sh", "-c", script).stdout.splitlines()

    assert lines[0] == "0"
    assert int(lines[1]) > 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--load", "hard", "--", "true"), "--load: 'hard': must be a percentage from 0 to 100, a file, or one of"),
        (("--model", "h2000", "--", "true"), "--model"),
        (("--model", "mi300x", "--", "true"), "NVML supports NVIDIA's cards only"),
    ],
)
def test_bad_input_is_named(home: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(home, *arguments, check=False)

    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_needs_no_rights(home: Path) -> None:
    home.chmod(0o777)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", SIMGPU, "run", "--", "nvidia-smi", "-L"]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(home), check=False, timeout=60)

    if "Permission denied" in done.stderr and str(BIN) in done.stderr:
        pytest.skip("this checkout cannot be read by others")
    assert done.stdout.startswith("GPU 0: NVIDIA H200"), done.stderr


def test_a_load_on_a_divided_card_is_on_its_instances(home: Path) -> None:
    config = home / "box.yaml"
    config.write_text("gpus: [{type: h200, mig: [3g.71gb, 1g.18gb]}]")
    script = "until nvidia-smi | grep -q ' C '; do sleep 0.1; done; nvidia-smi --query-compute-apps=pid --format=csv"
    page = run(home, "--config", str(config), "--load", "50", "--", "sh", "-c", f"{script}; nvidia-smi").stdout

    assert " 2    0 " in page, "GPU instance 2, compute instance 0"


def test_a_load_is_there_when_the_command_starts(home: Path) -> None:
    query = ("nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits")
    usage, power = run(home, "--load", "training", "--", *query).stdout.split(", ")

    assert int(usage) > 50
    assert float(power) > 300


BY_HAND = """
works() { nvidia-smi pmon -c 1 | grep -q python; }
nvidia-smi -mig 1
nvidia-smi mig -cgi 19,9:4,3g.71gb
nvidia-smi mig -lci
nvidia-smi mig -cci -gi 2
nvidia-smi mig -dgi -gi 2
simgpu workload --devnames nvidia0.2 --activity 90:0:30 & for i in $(seq 100); do works && break; sleep 0.1; done
nvidia-smi mig -dci
kill $!; wait $! 2>/dev/null; for i in $(seq 100); do works || break; sleep 0.1; done
nvidia-smi -L | cut -d'(' -f1
nvidia-smi -mig 0
nvidia-smi mig -dci && nvidia-smi mig -dgi
nvidia-smi mig -lgi
nvidia-smi -mig 0
nvidia-smi mig -cgi 9
"""


def test_instances_are_made_and_destroyed_by_hand_in_the_words_of_the_real_tool(home: Path) -> None:
    lines = run(home, "--model", "h200", "--", "sh", "-c", BY_HAND, check=False).stdout.splitlines()

    assert lines == [
        "Enabled MIG Mode for GPU 00000000:03:00.0",
        "All done.",
        "Successfully created GPU instance ID  7 on GPU  0 using profile MIG 1g.18gb (ID 19)",
        "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 3g.71gb (ID  9)",
        "Unable to create a GPU instance on GPU  0 using profile 3g.71gb: Insufficient Resources",
        "Failed to create GPU instances: Insufficient Resources",
        "No compute instances found: Not Found",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 using profile MIG 3g.71gb (ID  2)",
        "Unable to destroy GPU instance ID  2 from GPU  0: In use by another client",
        "Failed to destroy GPU instances: In use by another client",
        "Unable to destroy compute instance ID  0 from GPU  0 GPU instance ID  2: In use by another client",
        "Failed to destroy compute instances: In use by another client",
        "GPU 0: NVIDIA H200 ",
        "  MIG 3g.71gb     Device  0: ",
        "Unable to disable MIG Mode for GPU 00000000:03:00.0: In use by another client",
        "Terminating early due to previous errors.",
        "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  2",
        "Successfully destroyed GPU instance ID  7 from GPU  0",
        "Successfully destroyed GPU instance ID  2 from GPU  0",
        "No GPU instances found: Not Found",
        "Disabled MIG Mode for GPU 00000000:03:00.0",
        "All done.",
        "No MIG-enabled devices found.",
    ]


COMPUTE = """
works() { nvidia-smi pmon -c 1 | grep -q python; }
nvidia-smi -mig 1 >/dev/null; nvidia-smi mig -cgi 9 >/dev/null
nvidia-smi mig -cci 0,2c.3g.71gb -gi 2
nvidia-smi mig -cci 0 -gi 2
nvidia-smi mig -cci 3 -gi 2
nvidia-smi mig -lgi | grep -c 'MIG 3g'
nvidia-smi mig -lci | grep MIG
nvidia-smi mig -dci -ci 1
nvidia-smi mig -lcip | grep MIG
nvidia-smi mig -cci 1
nvidia-smi -L | cut -d'(' -f1
simgpu workload --devnames nvidia0.2.1 --activity 90:0:30 &
for i in $(seq 100); do works && break; sleep 0.1; done
nvidia-smi | grep -A 6 '^|=*+=*+=*+=*|' | tail -6 | sed 's/[0-9]*MiB \\//MiB \\//'
nvidia-smi | grep ' C ' | cut -c 1-18
nvidia-smi mig -dci -ci 1
nvidia-smi mig -dci -ci 0
nvidia-smi mig -dgi
kill $!; wait $! 2>/dev/null; for i in $(seq 100); do works || break; sleep 0.1; done
nvidia-smi mig -dci && nvidia-smi mig -dgi
"""


def test_compute_instances_share_a_gpu_instance_in_the_words_of_the_real_tool(home: Path) -> None:
    lines = run(home, "--model", "h200", "--", "sh", "-c", COMPUTE, check=False).stdout.splitlines()

    made = "Successfully created compute instance ID  {} on GPU  0 GPU instance ID  2 using profile MIG {}"
    gone = "Successfully destroyed compute instance ID  {} from GPU  0 GPU instance ID  2"
    assert lines == [
        made.format(0, "1c.3g.71gb (ID  0)"),
        made.format(1, "2c.3g.71gb (ID  1)"),
        "Unable to create a compute instance on GPU  0 GPU instance ID  2 using profile 0: Insufficient Resources",
        "Failed to create compute instances: Insufficient Resources",
        "Unable to create a compute instance on GPU  0 GPU instance ID  2 using profile 3: Not Supported",
        "Failed to create compute instances: Not Supported",
        "1",
        "|   0      2       MIG 1c.3g.71gb       0         0          2:1     |",
        "|   0      2       MIG 2c.3g.71gb       1         1          0:2     |",
        gone.format(1),
        "|   0      2       MIG 1c.3g.71gb       0      2/3           16        3     0     0   |",
        "|   0      2       MIG 1c.3g.71gb       7      1/2           26        3     0     0   |",
        "|   0      2       MIG 2c.3g.71gb       1      1/1           32        3     0     0   |",
        "|   0      2       MIG 3g.71gb          2*     0/1           60        3     0     0   |",
        made.format(1, "2c.3g.71gb (ID  1)"),
        "GPU 0: NVIDIA H200 ",
        "  MIG 1c.3g.71gb  Device  0: ",
        "  MIG 2c.3g.71gb  Device  1: ",
        "|  0    2   0   0  |           MiB / 71424MiB    | 16      0 |  3   0    3    0    3 |",
        "|                  |               MiB / 59238MiB    |           |                       |",
        "+------------------+                                  +-----------+-----------------------+",
        "|  0    2   1   1  |                                  | 32      0 |  3   0    3    0    3 |",
        "|                  |                                  |           |                       |",
        "+------------------+----------------------------------+-----------+-----------------------+",
        "|    0    2    1  ",
        "Unable to destroy compute instance ID  1 from GPU  0 GPU instance ID  2: In use by another client",
        "Failed to destroy compute instances: In use by another client",
        gone.format(0),
        "Unable to destroy GPU instance ID  2 from GPU  0: In use by another client",
        "Failed to destroy GPU instances: In use by another client",
        gone.format(1),
        "Successfully destroyed GPU instance ID  2 from GPU  0",
    ]


SHARE = """
import ctypes
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceSetMigMode(card, 1)
within = n.nvmlDeviceCreateGpuInstance(card, 5)
small = n.nvmlGpuInstanceCreateComputeInstance(within, 0)
try:
    n.nvmlGpuInstanceCreateComputeInstance(within, 3)
except n.NVMLError as error:
    print(error)
large = n.nvmlGpuInstanceCreateComputeInstance(within, 1)
infos = [n.nvmlComputeInstanceGetInfo(item) for item in (small, large)]
print([(info.id, info.profileId, info.placement.start, info.placement.size) for info in infos])
devices = [n.nvmlDeviceGetMigDeviceHandleByIndex(card, index) for index in range(2)]
print([n.nvmlDeviceGetName(item) for item in devices])
attributes = [n.nvmlDeviceGetAttributes_v2(item) for item in devices]
print([(item.multiprocessorCount, item.gpuInstanceSliceCount, item.computeInstanceSliceCount) for item in attributes])
print([(n.nvmlDeviceGetGpuInstanceId(item), n.nvmlDeviceGetComputeInstanceId(item)) for item in devices])
print(len({n.nvmlDeviceGetUUID(item) for item in devices}))
print([n.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(within, kind) for kind in (0, 7, 1, 3)])
n.nvmlComputeInstanceDestroy(small)
print(n.nvmlDeviceGetName(n.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)), n.nvmlDeviceGetComputeInstanceId(devices[1]))
"""


def test_compute_instances_share_a_gpu_instance_through_nvml(home: Path) -> None:
    lines = run(home, "--model", "h200", "--", sys.executable, "-c", SHARE).stdout.splitlines()

    assert lines == [
        "Insufficient Resources",
        "[(0, 0, 0, 1), (1, 1, 2, 2)]",
        "['NVIDIA H200 MIG 1c.4g.71gb', 'NVIDIA H200 MIG 2c.4g.71gb']",
        "[(16, 4, 1), (32, 4, 2)]",
        "[(1, 0), (1, 1)]",
        "2",
        "[1, 0, 0, 0]",
        "NVIDIA H200 MIG 2c.4g.71gb 1",
    ]


DIVIDE = """
import ctypes
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
print(n.nvmlDeviceSetMigMode(card, 1), n.nvmlDeviceGetMigMode(card))
first = n.nvmlDeviceCreateGpuInstance(card, 9)
second = n.nvmlDeviceCreateGpuInstanceWithPlacement(card, 19, ctypes.byref(n.c_nvmlGpuInstancePlacement_t(2, 1)))
print([n.nvmlGpuInstanceGetInfo(item).id for item in (first, second)])
print(n.nvmlDeviceGetGpuInstanceRemainingCapacity(card, 19))
compute = n.nvmlGpuInstanceCreateComputeInstance(second, 0)
device = n.nvmlDeviceGetMigDeviceHandleByIndex(card, 0)
print(n.nvmlDeviceGetGpuInstanceId(device), n.nvmlDeviceGetMemoryInfo(device).total >> 20)
try:
    n.nvmlGpuInstanceDestroy(second)
except n.NVMLError as error:
    print(error)
n.nvmlGpuInstanceDestroy(first)
print(n.nvmlGpuInstanceGetInfo(second).id, n.nvmlDeviceGetGpuInstanceId(device))
n.nvmlComputeInstanceDestroy(compute)
n.nvmlGpuInstanceDestroy(second)
print(n.nvmlDeviceSetMigMode(card, 0), n.nvmlDeviceGetMigMode(card))
"""


def test_instances_are_made_and_destroyed_through_nvml(home: Path) -> None:
    lines = run(home, "--model", "h200", "--", sys.executable, "-c", DIVIDE).stdout.splitlines()

    assert lines == ["0 [1, 1]", "[2, 9]", "3", "9 16384", "In use by another client", "9 9", "0 [0, 0]"]
