"""The driver's lines about errors in the kernel log: their form, and that each error has its lines once."""

from __future__ import annotations

import contextlib
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simgpu import errors
from simgpu.controllers.equipping import Equipment
from simgpu.machines.health import DeviceFailure
from simgpu.machines.saved import Moment
from simgpu.node.kernel_log import KernelLog
from simgpu.page import events
from simgpu.topology import pools
from simgpu.topology.devices import Device
from tests.fixtures.equipment import equipment, spec

GPU = pools.build(spec(1), "node-a")[0]
FORM = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d node-a kernel: \[ *(\d+\.\d{6})\] (NVRM: .+)")


def log(path: Path, *, wall: float = 2000.0, uptime: float = 500.0) -> KernelLog:
    return KernelLog(path, host="node-a", clock=lambda: Moment("", wall, uptime))


def messages(path: Path) -> list[str]:
    found = [FORM.fullmatch(line) for line in path.read_text().splitlines()]
    assert all(found)
    return [match[2] for match in found if match]


def xid(number: int, at: float = 1990.0) -> events.CardEvent:
    return events.CardEvent(int(at * 1e6), events.XID, number)


def of(device: Device, *found: events.CardEvent, pid: int = 0) -> events.CardErrors:
    return events.CardErrors(device, found, pid)


def test_a_line_has_the_drivers_form_and_the_time_of_the_error(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    assert log(path).write([of(GPU, xid(48, at=1990.25), events.CardEvent(1, events.UNCORRECTED))])

    *introduction, line = path.read_text().splitlines()
    place = GPU.pci_bus_id[4:-2].lower()
    found = FORM.fullmatch(line)
    assert found is not None
    assert line.startswith(time.strftime("%b ", time.localtime(1990.25)))
    assert found[1] == "490.250000"
    assert found[2].startswith(
        f"NVRM: Xid (PCI:{place}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit"
    )
    assert [item.partition("NVRM: ")[2] for item in introduction] == [
        f"GPU at PCI:{place}: {GPU.uuid}", f"GPU Board Serial Number: {GPU.serial}",
    ]  # fmt: skip


def test_errors_of_several_cards_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    first, second = pools.build(spec(2), "node-a")
    written, path = log(tmp_path / "kern.log"), tmp_path / "kern.log"
    assert written.write([of(first, xid(43, at=3.0)), of(second, xid(79, at=1.0), xid(48, at=4.0))])

    found = [match[1] for text in messages(path) if (match := re.match(r"NVRM: Xid \(\S+\): (\d+),", text))]
    assert found == ["79", "43", "48"]
    assert "GPU has fallen off the bus." in messages(path)[2]


def test_a_hang_names_the_process_and_what_it_calls_itself_cannot_forge_lines(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    for pid, name in ((7, "python\n"), (8, "x\nNVRM: \x1b[31m\n")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(name)
    written = KernelLog(path, host="node-a", clock=lambda: Moment("", 2000.0, 500.0), proc=tmp_path)
    assert written.write([of(GPU, xid(43), pid=7)])
    assert written.write([of(GPU, xid(43), pid=8)])
    assert written.write([of(GPU, xid(43), pid=9)])  # gone
    assert written.write([of(GPU, xid(48), pid=7)])

    found = [match[1] for text in messages(path) if (match := re.search(r"Xid .*?, (pid=.*?, name=.*?), ", text))]
    unknown = "pid='<unknown>', name=<unknown>"
    assert found == ["pid=7, name=python", "pid=8, name=x?NVRM: ?[31m", unknown, unknown]


def test_lines_that_were_written_before_a_crash_are_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    log(path).write([of(GPU, xid(43))])
    before = path.read_text()
    again = log(path, uptime=500.001)  # clocks differ a little
    assert again.write([of(GPU, xid(43))])
    assert path.read_text() == before

    assert again.write([of(GPU, xid(43))])  # another one in the same second
    assert len(messages(path)) == len(before.splitlines()) + 1


def test_a_path_that_cannot_be_written_is_reported_and_later_failures_are_retried(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match=r"--kernel-log.*; specify a file of its own, such as /var/log/"):
        log(tmp_path / "missing" / "kern.log")
    folder = tmp_path / "log"
    folder.mkdir()
    written = log(folder / "kern.log")
    (folder / "kern.log").unlink()
    folder.rmdir()
    assert not written.write([of(GPU, xid(43))])
    folder.mkdir()
    assert written.write([of(GPU, xid(43))])
    assert len(messages(folder / "kern.log")) == 3


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Let files grow to this size only, as on a disk that is nearly full: a write is cut off there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_is_cut_off_leaves_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    log(path).write([of(GPU, xid(43))])
    before = path.read_text()
    again, found = log(path), [of(GPU, xid(43), xid(48))]  # the first was written before a crash
    with file_limit(len(before) + 20):
        assert not again.write(found)
        assert not again.write(found)
    assert path.read_text() == before
    assert again.write(found)
    assert path.read_text().startswith(before)
    assert len(messages(path)) == len(before.splitlines()) + 1


# Over restarts of the agent.


def step(made: Equipment, seconds: float) -> None:
    made.box.step(seconds, clock=time.time())
    made.stepped(seconds)


def lines(made: Equipment, path: Path) -> list[str]:
    made.log_errors(KernelLog(path, host="node-a").write)
    return [text for text in messages(path) if "Xid" in text] if path.stat().st_size else []


def test_an_error_is_logged_once_whatever_becomes_of_the_agent(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    made = equipment(tmp_path)
    made.equip(spec(2))
    step(made, 1.0)
    made.box.fail({1: DeviceFailure.MEMORY})
    step(made, 2.0)
    assert [re.sub(r".*: (\d+),.*", r"\1", text) for text in lines(made, path)] == ["48"]
    made.close()

    resumed = equipment(tmp_path)  # with the failure, which goes on
    resumed.equip(spec(2))
    resumed.box.fail({1: DeviceFailure.MEMORY})
    step(resumed, 3.0)
    assert len(lines(resumed, path)) == 1
    resumed.box.fail({1: DeviceFailure.LOST})
    resumed.state.save(resumed.box)  # it dies before the page shows the error
    resumed.close()

    last = equipment(tmp_path)
    last.equip(spec(2))
    step(last, 4.0)
    assert [re.sub(r".*Xid.*: (\d+),.*", r"\1", text) for text in lines(last, path)] == ["48", "79"]


def test_a_log_that_is_turned_on_later_begins_with_the_next_error(tmp_path: Path) -> None:
    made = equipment(tmp_path)
    made.equip(spec(1))
    step(made, 1.0)
    made.box.fail({0: DeviceFailure.MEMORY})
    step(made, 2.0)
    made.log_errors(lambda _errors: True)  # as the agent does without a log
    assert not lines(made, tmp_path / "kern.log")
