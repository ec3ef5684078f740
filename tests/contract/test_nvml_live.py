"""NVML while something happens: processes come and go, threads start and stop, settings are made, cards fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import nvml, pages

# Processes.


@pytest.fixture
def family() -> Iterator[list[int]]:
    """A process with two children: the pids of all three."""
    program = "sleep 600 & sleep 600 & echo $! $$; wait"
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        last, first = map(int, parent.stdout.readline().split())
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        assert str(last) in children
        yield sorted({first, *map(int, children)})
        os.killpg(parent.pid, signal.SIGKILL)


def test_processes_share_the_memory_in_use_in_every_form_of_the_call(family: list[int], tmp_path: Path) -> None:
    used = (7 << 30) + 1
    rows = pages.hold(pages.recorded(open=1, memory_used=used, usage=50, sample_count=1), *family)
    rows[0]["samples"][0]["time_us"] = 1000
    listing = "[(p.pid, p.usedGpuMemory) for p in N.nvmlDeviceGetComputeRunningProcesses{}(card)]"
    details = "N.nvmlDeviceGetRunningProcessDetailList(card, N.nvmlProcessDetailList_v1, 0)"
    told = nvml.ask(
        pages.write(tmp_path, rows),
        [
            listing.format("_v3"),
            listing.format("_v2"),
            f"[(p.pid, p.usedGpuMemory) for p in {details}]",
            "[(p.pid, p.smUtil) for p in N.nvmlDeviceGetProcessUtilization(card, 0)]",
            "[(p.pid, p.smUtil) for p in N.nvmlDeviceGetProcessesUtilizationInfo(card, 0)]",
            "N.nvmlDeviceGetProcessUtilization(card, 1000)",
            f"N.nvmlSystemGetProcessName({family[0]})",
            "N.nvmlSystemGetProcessName(2**22 + 1)",
        ],
    )

    assert [pid for pid, _ in told[0]] == family
    assert sum(memory for _, memory in told[0]) == used
    assert told[1] == told[2] == told[0]
    assert sum(use for _, use in told[3]) == 50
    assert told[3] == told[4]
    assert told[5:] == ["ERR 6 Not Found", "sh", "ERR 6 Not Found"]


def test_the_oldest_form_of_the_process_list_has_entries_of_two_figures(family: list[int], tmp_path: Path) -> None:
    program = """
import ctypes, json
library = ctypes.CDLL("libnvidia-ml.so.1")
class Entry(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong)]
card, count, entries = ctypes.c_void_p(), ctypes.c_uint(3), (Entry * 3)()
library.nvmlInit()
library.nvmlDeviceGetHandleByIndex(0, ctypes.byref(card))
few = ctypes.c_uint(2)
codes = [library.nvmlDeviceGetComputeRunningProcesses(card, ctypes.byref(few), entries),
         library.nvmlDeviceGetComputeRunningProcesses(card, ctypes.byref(count), entries)]
print(json.dumps([codes, few.value, [(entry.pid, entry.memory) for entry in entries]]))
"""
    rows = pages.hold(pages.recorded(open=1, memory_used=300), *family)
    codes, needed, entries = json.loads(nvml.run(pages.write(tmp_path, rows), program))

    assert (codes, needed) == ([7, 0], 3)
    assert entries == [[pid, 100] for pid in family]


def test_who_asks_is_not_among_the_processes(tmp_path: Path) -> None:
    program = """
import os, pynvml as N
N.nvmlInit()
found = N.nvmlDeviceGetComputeRunningProcesses(N.nvmlDeviceGetHandleByIndex(0))
print(os.getpid() in [process.pid for process in found], len(found) > 0)
"""
    root = pages.write(tmp_path, pages.recorded(open=1, processes=1, memory_used=1 << 30))

    assert nvml.run(root, program).split() == ["False", "True"]


def test_a_card_that_nobody_has_open_has_no_processes(family: list[int], tmp_path: Path) -> None:
    root = pages.write(tmp_path, pages.hold(pages.recorded(open=0), *family))

    assert nvml.ask(
        root, ["N.nvmlDeviceGetComputeRunningProcesses(card)", "N.nvmlDeviceGetProcessUtilization(card, 0)"]
    ) == [
        [],
        "ERR 6 Not Found",
    ]


# Threads.


def test_threads_may_ask_while_others_start_and_stop_the_library(tmp_path: Path) -> None:
    """Every answer is right, or says that the library is not started; nothing crashes."""
    program = """
import ctypes, json, threading, time
library = ctypes.CDLL("libnvidia-ml.so.1")
card = ctypes.c_void_p()
library.nvmlInit()
library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
library.nvmlShutdown()
end, wrong, answers = time.monotonic() + 3, [], [0, 0]
def ask():
    power, name = ctypes.c_uint(), ctypes.create_string_buffer(96)
    while time.monotonic() < end:
        for code, right in ((library.nvmlDeviceGetPowerUsage(card, ctypes.byref(power)), power.value == 77440),
                            (library.nvmlDeviceGetName(card, name, 96), name.value == b"NVIDIA H200")):
            answers[code != 0] += 1
            if code not in (0, 1) or (code == 0 and not right):
                wrong.append((code, power.value, name.value.decode()))
def restart():
    while time.monotonic() < end:
        if library.nvmlInit_v2() or library.nvmlShutdown():
            wrong.append("restart")
threads = [threading.Thread(target=part) for part in [ask] * 6 + [restart] * 2]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps([wrong, min(answers), library.nvmlShutdown()]))
"""
    wrong, least, stopped = json.loads(nvml.run(pages.write(tmp_path, pages.recorded()), program))

    assert wrong == []
    assert least > 0, "both kinds of answer were seen"
    assert stopped == 1, "all starts were undone"


def test_a_fork_in_the_middle_of_a_call_leaves_a_child_that_can_go_on(tmp_path: Path) -> None:
    """As with a program that measures in a thread while it starts workers: they ask, stop and start again."""
    program = """
import ctypes, os, threading, time
library = ctypes.CDLL("libnvidia-ml.so.1")
card, power, going = ctypes.c_void_p(), ctypes.c_uint(), True
library.nvmlInit()
library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))
def ask():
    count, room = ctypes.c_uint(), ctypes.create_string_buffer(1 << 16)
    while going:
        count.value = 1000
        library.nvmlDeviceGetPowerUsage(card, ctypes.byref(power))
        library.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), room)
threads = [threading.Thread(target=ask) for _ in range(4)]
[thread.start() for thread in threads]
codes = []
for _ in range(60):
    child = os.fork()
    if child == 0:
        count, room = ctypes.c_uint(1000), ctypes.create_string_buffer(1 << 16)
        os._exit(library.nvmlDeviceGetPowerUsage(card, ctypes.byref(power))
                 or library.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), room)
                 or library.nvmlShutdown() or library.nvmlInit())
    codes.append(os.waitpid(child, 0)[1])
going = False
[thread.join() for thread in threads]
print(set(codes))
"""
    root = pages.write(tmp_path, pages.recorded(open=1, processes=1, memory_used=1 << 30))

    assert nvml.run(root, program) == "{0}\n"


# Settings.


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """Takes settings at a socket, and allows all but those of 666: where, and what was asked for."""
    path, asked = tmp_path / "owner.sock", list[Any]()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, connection.makefile("rw") as stream:
                        setting = json.loads(stream.readline())["Set"]
                        asked.append([setting["Device"], setting["Setting"], setting["Values"]])
                        stream.write("4\n" if 666 in setting["Values"] else "0\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield path, asked
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_settings_go_to_the_owner_of_the_card(owner: tuple[Path, list[Any]], tmp_path: Path) -> None:
    path, asked = owner
    questions = {
        "N.nvmlDeviceSetPowerManagementLimit(card, 350000)": ["power_limit", [350000, 0]],
        "N.nvmlDeviceSetPowerManagementLimit_v2(card, 0, 300000)": ["power_limit", [300000, 0]],
        "N.nvmlDeviceSetGpuLockedClocks(card, 900, 1200)": ["sm_clocks", [900, 1200]],
        "N.nvmlDeviceSetGpuLockedClocks(card, 0, 9999)": ["sm_clocks", [345, 1980]],
        "N.nvmlDeviceResetGpuLockedClocks(card)": ["reset_sm_clocks", [0, 0]],
        "N.nvmlDeviceSetMemoryLockedClocks(card, 2201, 2201)": ["memory_clocks", [2201, 2201]],
        "N.nvmlDeviceResetMemoryLockedClocks(card)": ["reset_memory_clocks", [0, 0]],
        "N.nvmlDeviceSetApplicationsClocks(card, 3201, 1500)": ["applications_clocks", [3201, 1500]],
        "N.nvmlDeviceResetApplicationsClocks(card)": ["reset_applications_clocks", [0, 0]],
        "N.nvmlDeviceSetPersistenceMode(card, 0)": ["persistence", [0, 0]],
        "N.nvmlDeviceSetComputeMode(card, 3)": ["compute_mode", [3, 0]],
        "N.nvmlDeviceClearEccErrorCounts(card, 0)": ["ecc_clear", [0, 0]],
    }
    root = pages.write(tmp_path / "pages", pages.recorded(control=str(path)))
    told = nvml.ask(root, [*questions, "N.nvmlDeviceSetGpuLockedClocks(card, 666, 700)"])

    assert [answer for answer in told[:-1] if answer not in (None, 0)] == []
    assert asked[:-1] == [[pages.RECORDED["uuid"], *setting] for setting in questions.values()]
    assert told[-1] == "ERR 4 Insufficient Permissions"


@pytest.mark.parametrize(
    "question",
    [
        "N.nvmlDeviceSetPowerManagementLimit(card, 199999)",
        "N.nvmlDeviceSetPowerManagementLimit(card, 700001)",
        "N.nvmlDeviceSetGpuLockedClocks(card, 1500, 900)",
        "N.nvmlDeviceSetGpuLockedClocks(card, 100, 200)",
        "N.nvmlDeviceSetMemoryLockedClocks(card, 5000, 6000)",
        "N.nvmlDeviceSetApplicationsClocks(card, 3200, 1500)",
        "N.nvmlDeviceSetPersistenceMode(card, 2)",
        "N.nvmlDeviceSetComputeMode(card, 4)",
        "N.nvmlDeviceClearEccErrorCounts(card, 2)",
    ],
)
def test_settings_beyond_what_the_card_can_do_are_refused_unasked(
    question: str, owner: tuple[Path, list[Any]], tmp_path: Path
) -> None:
    path, asked = owner
    root = pages.write(tmp_path / "pages", pages.recorded(control=str(path)))

    assert nvml.ask(root, [question]) == ["ERR 2 Invalid Argument"]
    assert asked == []


@pytest.mark.parametrize("control", ["", "/nowhere/owner.sock"])
def test_without_an_owner_that_listens_nothing_may_be_set(control: str, tmp_path: Path) -> None:
    questions = ["N.nvmlDeviceSetPowerManagementLimit(card, 350000)", "N.nvmlDeviceSetMigMode(card, 1)"]
    root = pages.write(tmp_path, pages.recorded(control=control))

    assert nvml.ask(root, questions) == ["ERR 4 Insufficient Permissions"] * 2


# Errors of cards.

WAITING = """
import json, os, sys, threading
from pathlib import Path
import numpy as np
import pynvml as N
from simgpu.page import layout
N.nvmlInit()
cards = [N.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
def page_of(card):
    return np.memmap(Path(os.environ["SIMGPU_PAGES"]) / N.nvmlDeviceGetUUID(card) / "page", layout.DTYPE, "r+")
def fail(card, xid):
    page = page_of(card)
    page["events"][0][page["event_count"][0] % layout.EVENTS] = (1, N.nvmlEventTypeXidCriticalError, xid)
    page["event_count"] += 1
def wait(events, milliseconds):
    try:
        event = N.nvmlEventSetWait_v2(events, milliseconds)
    except N.NVMLError as error:
        return error.value
    return [N.nvmlDeviceGetIndex(event.device), event.eventType, event.eventData, event.gpuInstanceId]
"""


def waiting(tmp_path: Path, rest: str) -> Any:
    return json.loads(nvml.run(pages.write(tmp_path, pages.cards("h200", 2, event_count=5)), WAITING + rest))


def test_an_error_of_a_watched_card_is_an_event_told_once(tmp_path: Path) -> None:
    program = """
events = N.nvmlEventSetCreate()
for card in cards:
    N.nvmlDeviceRegisterEvents(card, N.nvmlEventTypeXidCriticalError, events)
told = [wait(events, 0)]
fail(cards[1], 79)
told += [wait(events, 1000), wait(events, 30)]
N.nvmlEventSetFree(events)
print(json.dumps(told + [wait(events, 0)]))
"""
    assert waiting(tmp_path, program) == [10, [1, 8, 79, 0xFFFFFFFF], 10, 2]


def test_one_of_several_threads_that_wait_is_told(tmp_path: Path) -> None:
    program = """
events = N.nvmlEventSetCreate()
N.nvmlDeviceRegisterEvents(cards[0], N.nvmlEventTypeXidCriticalError, events)
told = []
threads = [threading.Thread(target=lambda: told.append(wait(events, 1500))) for _ in range(3)]
[thread.start() for thread in threads]
fail(cards[0], 48)
fail(cards[1], 13)
[thread.join() for thread in threads]
print(json.dumps(sorted(told, key=str)))
"""
    assert waiting(tmp_path, program) == [10, 10, [0, 8, 48, 0xFFFFFFFF]]


def test_who_waits_for_a_card_that_is_lost_learns_it(tmp_path: Path) -> None:
    program = """
events = N.nvmlEventSetCreate()
N.nvmlDeviceRegisterEvents(cards[0], N.nvmlEventTypeXidCriticalError, events)
page_of(cards[0])["stale_ns"] = 1
try:
    N.nvmlDeviceRegisterEvents(cards[1], 1 << 40, events)
except N.NVMLError as error:
    print(json.dumps([wait(events, 2000), error.value]))
"""
    assert waiting(tmp_path, program) == [15, 3]


@pytest.mark.parametrize(("load", "idle"), [(0, True), (100, False)])
def test_time_with_nothing_to_do_is_counted(load: int, idle: bool, tmp_path: Path) -> None:
    program = f"""
import pynvml as N
N.nvmlInit()
card = N.nvmlDeviceGetHandleByIndex(0)
def rest():
    return N.nvmlDeviceGetFieldValues(card, [N.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION])[0].value.ullVal
while N.nvmlDeviceGetUtilizationRates(card).gpu != {load}:
    pass
energy, before = N.nvmlDeviceGetTotalEnergyConsumption(card), rest()
while N.nvmlDeviceGetTotalEnergyConsumption(card) == energy:
    pass
print(rest() > before + 1_000_000)  # a millisecond
"""
    simgpu = str(Path(sys.executable).parent / "simgpu")
    command = [simgpu, "run", "--load", str(load), "--", sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path).stdout

    assert told == f"{idle}\n"
