"""What earlier processes, the kernel and programs of pods leave on a node: state pages, marks, logs, cgroups."""

from __future__ import annotations

import functools
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from simgpu.machines import documents, quantities, saved
from simgpu.machines.saved import Moment
from simgpu.node import cgroups, cpu, device_nodes, driver, driver_mark, files
from simgpu.node.kernel_log import KernelLog
from simgpu.page import events, layout, mapping, outliving, showing, writer
from simgpu.sim import cards
from tests.fixtures import boxes, pages
from tests.fuzz.target import Target, encoded, numbered, scratch, split, text

_HOST, _NOW = "node-a", 1_700_000_000.0
_BEFORE = saved.empty(saved.Moment("", _NOW, 0.0))  # that could not be saved since
_STATE = [field.name for field in layout.PAGE if field.state]
_GROUP = "kubepods/podu/c"
_SECONDS = itertools.count(0.0, 100.0)  # of looks at cgroups: what failed is looked for again
_LOAD = {"Name": "train", "Profile": [{"Load": 80}], "Devices": ["nvidia0"]}


class _Writer:
    """A writer of the page of a card that has had an error, which takes over what is left: as often as it is asked to.

    What takes long, the same each time, is done once: describing the card, and reading its state.
    """

    def __init__(self) -> None:
        self.box, root = boxes.make("h200", 1), scratch() / "gpus"
        self.box.admit(documents.read(_LOAD).profile, ["nvidia0"])
        self.box.step(1.0, clock=_NOW + 1.0)
        self.box.engine.strike(int(self.box.machine.ids[0]), "hangs")
        self.box.step(2.0, clock=_NOW + 2.0)
        self.shown = showing.open_pages(self.box, root, interval=1.0, control="")
        self.pages, self.folder = self.shown.pages, writer.folder(root, self.box.devices[0].uuid)
        self.path = self.folder / writer.FILE
        self._described = self.pages._rows.copy()
        self.pages._cards.fill(lambda name: quantities.of_devices(self.box.machine, name), {})
        self._state = self.pages._rows[_STATE].copy()
        others = {*(layout.DTYPE.names or ())} - {*_STATE}  # which the state is not in
        assert all(np.array_equal(self.pages._rows[name], self._described[name]) for name in others)
        self.pages._cards.fill = self._fill  # type: ignore[method-assign,assignment]

    def take_over(self, data: bytes) -> None:
        """Go on from a page."""
        self.path.write_bytes(data)
        _check_resumed(outliving.resume(_BEFORE, self.folder.parent, monotonic_ns=1 << 62, uptime=1e9))
        mapped = mapping.open_page(self.folder)
        self.pages._places[0].maps = {self.folder.name: mapped}
        self.pages._rows[:] = self._described
        self.pages._counted[:] = writer._resume(self.pages._rows[0], mapped[0])

    def _fill(self, *_: object) -> None:
        self.pages._rows[_STATE] = self._state


def _check_resumed(found: saved.Saved) -> None:
    """Counters of a page are possible ones, and no time is beyond now."""
    assert _BEFORE.now <= found.now <= _BEFORE.now + 1e9
    for state in found.devices.values():
        assert all(0 <= value <= cards.MAX_COUNTED[name] for name, value in state.values.items())


@functools.cache
def _writer() -> _Writer:
    return _Writer()


def _page(data: bytes) -> None:
    """A writer takes over any page: it is valid then, and an error since is on it and reaches the kernel log once."""
    made, log = _writer(), scratch() / "kern.log"
    made.take_over(data)
    with np.errstate(all="raise"):
        for _ in range(2 if len(data) % 16 == 0 else 1):
            made.shown.write()
    row = writer.read(made.path)
    assert row is not None
    assert made.path.stat().st_size == mapping.ROOM
    assert row["product"][0] == made.box.devices[0].model.product.encode()
    assert all(row[name][0] <= highest for name, highest in writer.MODES.items())
    found = made.pages.unlogged()
    assert len(found) >= _was_struck(data, row[0])
    assert sum(len(item.events) for item in found) <= layout.EVENTS
    log.write_bytes(b"")
    assert KernelLog(log, host=_HOST).write(found)
    made.pages.set_logged()
    assert not made.pages.unlogged()


def _was_struck(data: bytes, row: Any) -> bool:
    """Return whether the page that was left is of this card and has no hang yet, but errors."""
    if len(data) < layout.DTYPE.itemsize:
        return False
    (page,) = np.frombuffer(data[: layout.DTYPE.itemsize], layout.DTYPE)
    known = page["magic"] == layout.MAGIC and page["major"] == layout.MAJOR and page["minor"] == layout.MINOR
    return bool(known and page["product"] == row["product"] and page["hangs"] == 0 < row["hangs"])


def _mark(data: bytes) -> None:
    """Whatever a mark names, files outside of the folder stay, and it keeps no agent from its work."""
    root, outside = scratch() / "driver", scratch() / "outside"
    (root / "usr" / "bin").mkdir(parents=True, exist_ok=True)
    for path in (root / "usr" / "bin" / "nvidia-smi", root / "usr" / "bin" / ".nvidia-smi.unfinished", outside):
        path.touch()
    (root / driver_mark.NAME).write_bytes(data)
    made = driver.DriverFolder(root, outside, outside)
    mark = driver_mark.read(root)
    assert mark is not None
    released = made.release(["u"])
    assert released == (mark.pods is not None and "u" not in mark.pods)
    if not released:
        made.claim()
        made.show(())
        assert made.release(())
    assert not root.exists() or not made.is_ours
    assert outside.exists()
    files.remove_contents(root)


def _log(data: bytes) -> None:
    """Behind whatever is in a log and whatever a program calls itself, each line of ours is one of printable text."""
    content, _, name = data.rpartition(b"\0===\0")
    path, comm, card = scratch() / "kern.log", scratch() / "proc" / "7" / "comm", _writer().box.devices[0]
    comm.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    comm.write_bytes(name)
    made = KernelLog(path, host=_HOST, clock=lambda: Moment("", _NOW, 500.0), proc=scratch() / "proc")
    assert made.write([events.CardErrors(card, [events.CardEvent(int(_NOW * 1e6), events.XID, 43)], pid=7)])
    after = path.read_bytes()
    assert after.startswith(content)
    lines = after[len(content) :].decode().splitlines()
    assert all(line.isprintable() and f" {_HOST} kernel: [" in line for line in lines)
    was_there = f" {_HOST} kernel: [".encode() in content and b"] NVRM: Xid (PCI:" in content  # it is not repeated
    assert sum("NVRM: Xid" in line for line in lines) == 1 or was_there
    assert len(lines) <= 3


@functools.cache
def _groups() -> tuple[Path, dict[str, cpu.Meter]]:
    """Return the cgroup of a container in both versions' trees, and a meter for each."""
    roots = {name: scratch() / name for name in ("unified", "split")}
    for root in roots.values():
        (root / _GROUP).mkdir(parents=True)
    (roots["unified"] / "cgroup.controllers").touch()
    return roots["unified"] / _GROUP, {name: cpu.Meter(root) for name, root in roots.items()}


def _group(data: bytes) -> None:
    """Files of a cgroup have processes and a finite CPU time, or none; so has the list of drivers a number or none."""
    number, rest = split(data, 4)
    group, meters = _groups()
    if number == 0:
        (group / "cgroup.procs").write_bytes(rest)
        found = cgroups.ContainerProcesses(scratch() / "unified").pids("u", "c", 1.0)
        assert all(pid > 0 for pid in found)
        assert len(found) <= cgroups.MAX_PROCESSES
    elif number == 3:
        device_nodes.is_free(text(rest))
    else:
        name = ("unified", "split")[number - 1]
        (scratch() / name / _GROUP / ("cpu.stat", "cpuacct.usage")[number - 1]).write_bytes(rest)
        for _ in range(2):
            assert 0 <= meters[name].cores("u", "c", next(_SECONDS)) < math.inf


_MARK = json.dumps({"files": ["usr/bin/nvidia-smi", "lib/x/../y", "/etc/passwd", "../outside"], "pods": ["u", "v"]})
_LOGGED = (
    f"Nov 14 22:13:20 {_HOST} kernel: [  500.000000] NVRM: Xid (PCI:0000:03:00): 43, pid=7, name=python, Ch 00000008\n"
)
_FILES = (["1\n22\n", "0"], ["usage_usec 12\nuser_usec 3\n"], ["123456789\n"], ["Character devices:\n195 nvidia\n"])


_PAGES = (
    pages.cards("h200"), pages.cards("h200", accounting=1, **pages.LOAD), pages.cards("h200", mig=["1g.18gb"]),
    pages.hold(pages.cards("h200", accounting=1, **pages.LOAD), 1), pages.cards("t4"),
)  # fmt: skip

TARGETS = (
    Target(
        "state-pages", _page, tuple(made.tobytes().ljust(mapping.ROOM, b"\0") for made in _PAGES),
        max_length=mapping.ROOM + 64,
    ),
    Target("driver-marks", _mark, encoded([_MARK, '{"files":["usr"]}', "{}"]), ("usr/bin/nvidia-smi", ".simgpu")),
    Target("kernel-logs", _log, encoded([f"{_LOGGED}\0===\0python\n", "\0===\0x y\x1b[0m"])),
    Target("cgroup-files", _group, numbered(_FILES), ("usage_usec ", "Block devices:"), max_length=1 << 13),
)  # fmt: skip
