"""The driver's lines where the kernel log is a device: the machine's own, and one that takes lines as it does."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import time
import tty
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from simgpu.machines.health import HANG_XID, LOST_XID
from simgpu.node.kernel_log import KernelLog
from simgpu.page import events
from simgpu.topology import pools
from simgpu.topology.devices import Device
from tests.fixtures.equipment import spec

KMSG = Path("/dev/kmsg")
GPU = msgspec.structs.replace(pools.build(spec(1), "node-a")[0], pci_bus_id="0000FFFF:FF:1F.0")  # no machine has it
RECORD = 8192  # bytes, which no record exceeds
SECONDS = 10.0


def errors_of(device: Device, *numbers: int, pid: int = 0) -> list[events.CardErrors]:
    found = [events.CardEvent(1_000_000 + at, events.XID, number) for at, number in enumerate(numbers)]
    return [events.CardErrors(device, found, pid)]


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def following(path: Path) -> Iterator[int]:
    """A reader of the records that come from now on; skips the test where the log cannot be read and written."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(opened(path, os.O_WRONLY))
            reader = stack.enter_context(opened(path, os.O_RDONLY))
        except (PermissionError, FileNotFoundError) as error:
            pytest.skip(f"reading and writing {path} needs root, and the device: {error}")
        os.lseek(reader, 0, os.SEEK_END)
        yield reader


def records(reader: int) -> Iterator[str]:
    """Records as they come; others write to the log too, and a reader that is too slow misses some."""
    until = time.monotonic() + SECONDS
    while (left := until - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                yield os.read(reader, RECORD).decode()


def test_the_machines_kernel_log_has_an_error_as_one_record_of_the_level_of_a_warning(tmp_path: Path) -> None:
    mark = f"simgpu-{uuid.uuid4().hex[:8]}"  # the name of the process, so that whoever reads the log knows
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "comm").write_text(f"{mark}\n")
    with following(KMSG) as reader:
        log = KernelLog(KMSG, host="node-a", proc=tmp_path)
        log._introduced.add(GPU.uuid)  # so that it is one line: the log is the machine's
        assert log.write(errors_of(GPU, HANG_XID, pid=7))
        record = next((item for item in records(reader) if mark in item), "")
    head, _, rest = record.partition(";")
    assert rest.splitlines()[0] == f"NVRM: Xid (PCI:ffff:ff:1f): 43, pid=7, name={mark}, Ch 00000008"
    assert int(head.split(",")[0]) & 7 == 4


def test_a_device_gets_each_line_by_itself_with_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    real = os.write

    def write(descriptor: int, content: bytes) -> int:
        written.append(content)
        return real(descriptor, content)

    leader, follower = pty.openpty()
    try:
        tty.setraw(follower)
        log = KernelLog(Path(os.ttyname(follower)), host="node-a")
        monkeypatch.setattr(os, "write", write)
        assert log.write(errors_of(GPU, HANG_XID, LOST_XID))
        assert log.write(errors_of(GPU, HANG_XID))  # nothing is kept of a device: the page knows what it has
        got = b""
        while got.count(b"\n") < len(written) and select.select([leader], [], [], SECONDS)[0]:
            got += os.read(leader, RECORD)
    finally:
        os.close(leader)
        os.close(follower)
    assert got.splitlines(keepends=True) == written
    assert all(line.startswith(b"<4>NVRM: ") and line.count(b"\n") == 1 for line in written)
    assert [line.split(b": ")[1].split(b" ")[0] for line in written] == [b"GPU", b"GPU", b"Xid", b"Xid", b"GPU", b"Xid"]
