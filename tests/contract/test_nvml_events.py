"""Errors of a card, from the simulation to every program of the machine: NVML's events, nvidia-smi, the kernel log."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simgpu.controllers.equipping import Equipment
from simgpu.dra.node_devices import MigPart
from simgpu.machines.health import DeviceFailure
from simgpu.node.kernel_log import KernelLog
from simgpu.page import events, writer
from simgpu.sim import activity
from simgpu.topology.devices import part_id
from tests.fixtures import nvml, smi
from tests.fixtures.equipment import IDS, equipment, spec

WATCHER = """
import json, sys
import pynvml as N
N.nvmlInit()
events = N.nvmlEventSetCreate()
for index in range(N.nvmlDeviceGetCount()):
    card = N.nvmlDeviceGetHandleByIndex(index)
    N.nvmlDeviceRegisterEvents(card, N.nvmlDeviceGetSupportedEventTypes(card) & int(sys.argv[1], 0), events)
print("ready", flush=True)
for line in sys.stdin:
    found = []
    try:
        while True:
            event = N.nvmlEventSetWait_v2(events, int(line))
            found.append([event.eventType, event.eventData, event.gpuInstanceId, event.computeInstanceId])
            line = "0"
    except N.NVMLError as error:
        found.append(error.value)
    print(json.dumps(found), flush=True)
"""
ERRORS, LOST, TIMEOUT = "0xffeb", 15, 10  # all but clocks and P-states
NO_INSTANCE = 0xFFFFFFFF
CORRECTED, UNCORRECTED, P_STATE, XID, CLOCK, MIG, UNAVAILABLE = 1, 2, 4, 8, 16, 0x100, 0x4000


class Watcher:
    """A program that waits for events of all cards."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._line() == "ready\n"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def events(self, milliseconds: int = 0) -> list[Any]:
        """All that there is now; the last is the code of the wait that had nothing more."""
        return [item[:2] if isinstance(item, list) else item for item in self.located(milliseconds)]

    def located(self, milliseconds: int = 0) -> list[Any]:
        """The same, each with the numbers of its GPU instance and compute instance."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{milliseconds}\n")
        self._process.stdin.flush()
        found: list[Any] = json.loads(self._line())
        return found


@contextlib.contextmanager
def watcher(made: Equipment, types: str = ERRORS) -> Iterator[Watcher]:
    with subprocess.Popen(
        [sys.executable, "-c", WATCHER, types], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=nvml.environment(made.pages),
    ) as process:  # fmt: skip
        try:
            yield Watcher(process)
        finally:
            process.kill()


@pytest.fixture
def made(tmp_path: Path) -> Equipment:
    """A node's GPUs, which made a step."""
    found = equipment(tmp_path)
    found.equip(spec(2))
    step(found, 1.0)
    return found


def step(made: Equipment, seconds: float) -> None:
    made.box.step(seconds, clock=time.time())
    made.stepped(seconds)


def test_an_error_reaches_every_program_once_and_all_agree_on_it(made: Equipment, tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    with watcher(made) as first, watcher(made) as second:
        made.box.fail({1: DeviceFailure.MEMORY})
        step(made, 2.0)
        made.log_errors(KernelLog(path, host="node-a").write)
        expected = [[UNCORRECTED, 0], [XID, 48], TIMEOUT]
        assert first.events(5000) == expected
        assert second.events(5000) == expected
        assert first.events() == [TIMEOUT]

    shown = smi.say(made.pages, "-q", "-d", "ECC", "-i", "1")
    assert re.search(r"DRAM Uncorrectable\s+: 1\n", shown)
    rows = smi.say(made.pages, "dmon", "-s", "e", "-c", "1").splitlines()
    names, values = rows[0].split()[1:], [line.split() for line in rows if not line.startswith("#")]
    assert [row[names.index("dbecc")] for row in values] == ["0", "1"]
    logged = [line for line in path.read_text().splitlines() if "Xid" in line]
    assert len(logged) == 1
    place = made.box.devices[1].pci_bus_id[4:-2].lower()
    assert f"NVRM: Xid (PCI:{place}): 48, pid=" in logged[0]
    page = writer.read(made.pages / IDS[1] / "page")
    assert page is not None
    time_us = int(page["events"][0][0]["time_us"])
    assert time.strftime("%H:%M:%S", time.localtime(time_us / 1e6)) in logged[0]


def test_a_card_that_falls_off_the_bus_reports_it_before_it_is_lost(made: Equipment) -> None:
    with watcher(made) as waiting:
        made.box.fail({0: DeviceFailure.LOST})
        step(made, 2.0)
        assert waiting.events(5000) == [[XID, 79], [UNAVAILABLE, 0], LOST]
        assert waiting.events() == [LOST]
        made.box.fail({})
        step(made, 3.0)
        assert waiting.events() == [TIMEOUT]


def test_errors_between_two_looks_are_all_delivered(made: Equipment) -> None:
    with watcher(made) as waiting:
        card = int(made.box.machine.ids[0])
        for second in range(2, 5):
            made.box.engine.strike(card, "hangs")
            step(made, float(second))
        made.box.engine.strike(card, "corrected")
        step(made, 5.0)
        assert waiting.events(5000) == [[XID, 43]] * 3 + [[CORRECTED, 0], TIMEOUT]


def test_an_error_while_the_agent_is_restarted_is_delivered_once(made: Equipment, tmp_path: Path) -> None:
    with watcher(made) as waiting:
        made.box.fail({0: DeviceFailure.MEMORY})
        made.state.save(made.box)  # it ends before the page shows the error
        made.close()
        resumed = equipment(tmp_path)
        resumed.equip(spec(2))
        step(resumed, 2.0)
        assert waiting.events(5000) == [[UNCORRECTED, 0], [XID, 48], TIMEOUT]
        resumed.close()
        again = equipment(tmp_path)
        again.equip(spec(2))
        step(again, 3.0)
        assert waiting.events() == [TIMEOUT]


def test_changes_of_clocks_p_state_and_instances_are_events(made: Equipment) -> None:
    with watcher(made, "0xffff") as waiting:
        busy = activity.Profile("busy", (activity.Activity({"usage": activity.Value(1, 1)}),))
        made.box.admit(busy, [0])
        step(made, 5.0)
        found = waiting.events(5000)
        assert [CLOCK, 0] in found
        assert found[-1] == TIMEOUT
    with watcher(made) as waiting:
        made.equip(made.spec)  # nothing changes
        assert waiting.events() == [TIMEOUT]


def test_a_division_of_a_card_is_an_event(made: Equipment) -> None:
    with watcher(made) as waiting:
        made.equip(made.spec, {IDS[0]: (MigPart("1g.18gb", 0, 7, 16384),)})
        assert waiting.events(5000) == [[MIG, 0], TIMEOUT]


def erring(event: str) -> activity.Profile:
    """A workload that has one error, and works on."""
    values = {"usage": activity.Value(0.5, 0.5), event: activity.Value(1, 1, period=1.0)}
    return activity.Profile("erring", (activity.Activity(values, seconds=1.5), activity.Activity({})))


@pytest.mark.parametrize(("event", "xid"), [("hangs", 43), ("uncorrected", 48)])
def test_an_error_of_a_workload_on_a_mig_instance_names_the_instance(made: Equipment, event: str, xid: int) -> None:
    made.equip(made.spec, {IDS[0]: (MigPart("1g.18gb", 0, 7, 16384), MigPart("3g.71gb", 4, 2, 71424))})
    step(made, 2.0)
    with watcher(made) as waiting:
        for number, second in ((2, 3.0), (7, 6.0)):
            made.box.admit(erring(event), [part_id(IDS[0], number)])
            step(made, second + 1.2)
            *found, last = waiting.located(5000)
            assert [item for item in found if item[0] == XID] == [[XID, xid, number, 0]]
            assert [item for item in found if item[0] != XID] == [[UNCORRECTED, 0, NO_INSTANCE, NO_INSTANCE]] * (
                xid == 48
            )
            assert last == TIMEOUT
        made.box.fail({0: DeviceFailure.MEMORY})  # of the card, whatever was on its instances before
        step(made, 9.0)
        assert waiting.located(5000)[1] == [XID, 48, NO_INSTANCE, NO_INSTANCE]
        made.box.admit(erring(event), [1])  # which is not divided
        step(made, 10.2)
        assert [XID, xid, NO_INSTANCE, NO_INSTANCE] in waiting.located(5000)
    page = writer.read(made.pages / IDS[0] / "page")
    assert page is not None
    places = [it.origin.gpu_instance for it in events.since(page[0], 0) if it.type == events.XID]
    assert places == [2, 7, -1]
