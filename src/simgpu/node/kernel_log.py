"""Lines of the kernel log for errors of GPUs, as NVIDIA's driver writes them: health watchers look for these.

They go to the kernel log itself (/dev/kmsg), or to a file in the form of kern.log. Which errors are new is the caller's
business; a file is also checked for lines that were written before a crash.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from simgpu import errors
from simgpu.machines.health import HANG_XID, LOST_XID, MEMORY_XID
from simgpu.machines.saved import Moment
from simgpu.node import state
from simgpu.page import events

_log = logging.getLogger(__name__)

_UNKNOWN: Final = "pid='<unknown>', name=<unknown>"
_REASONS: Final = {
    HANG_XID: "Ch 00000008",
    MEMORY_XID: "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 0, "
    "subpartition 0.",
    LOST_XID: "GPU has fallen off the bus.",
}
_ADVICE: Final = "specify a file of its own, such as /var/log/simgpu/kern.log"
_WARNING: Final = "<4>"  # the level of a line without one of its own
_TAIL_BYTES: Final = 64 << 10
_MAX_NAME: Final = 15  # characters that the kernel keeps of a program's name
_UPTIME: Final = re.compile(r" kernel: \[ *\d+\.\d+\] ")


class KernelLog:
    """Writes lines to a file or to the kernel log; a path that cannot be written is an `InputError`."""

    def __init__(
        self, path: Path, *, host: str, clock: Callable[[], Moment] = state.now, proc: Path = Path("/proc")
    ) -> None:
        self._path = path
        self._host = host
        self._clock = clock
        self._proc = proc
        self._introduced: set[str] = set()
        self._problem = ""
        try:
            os.close(self._open())
            self._is_device = stat.S_ISCHR(path.stat().st_mode)
            self._known = Counter[str]() if self._is_device else _tail(path)
        except OSError as error:
            raise errors.InputError("--kernel-log", f"{errors.explain(error)}; {_ADVICE}") from None

    def write(self, found: Iterable[events.CardErrors]) -> bool:
        """Write the lines of errors in the order of their times; return whether they are written."""
        happened = [(event, card) for card in found for event in card.events if event.type == events.XID]
        introduced = set(self._introduced)
        lines = [
            (event.time_us / 1e6, text)
            for event, card in sorted(happened, key=lambda item: item[0].time_us)
            for text in self._texts(event.data, card, introduced)
        ]
        try:
            self._send(lines)
        except OSError as error:
            if (problem := errors.explain(error)) != self._problem:
                _log.warning("errors of GPUs are not in the kernel log: %s", problem)
            self._problem = errors.explain(error)
            return False
        self._introduced, self._problem = introduced, ""
        return True

    def _texts(self, xid: int, card: events.CardErrors, introduced: set[str]) -> Iterator[str]:
        """Yield the lines of an error; before the first of a card, which card it is."""
        device = card.device
        domain, bus, rest = device.pci_bus_id.lower().split(":")
        place = f"{int(domain, 16):04x}:{bus}:{rest.partition('.')[0]}"
        if device.uuid not in introduced:
            introduced.add(device.uuid)
            yield f"NVRM: GPU at PCI:{place}: {device.uuid}"
            if device.serial:
                yield f"NVRM: GPU Board Serial Number: {device.serial}"
        about = self._process(card.pid) if xid == HANG_XID else _UNKNOWN
        yield f"NVRM: Xid (PCI:{place}): {xid}, {about}, {_REASONS.get(xid, 'unknown error')}"
        if xid == LOST_XID:
            yield f"NVRM: GPU {place}.0: GPU has fallen off the bus."

    def _process(self, pid: int) -> str:
        """Return a process as the driver names it; a program chooses its own name, which may be anything."""
        try:
            name = (self._proc / str(pid) / "comm").read_text(errors="replace").removesuffix("\n") if pid else ""
        except OSError:
            return _UNKNOWN
        plain = "".join(letter if letter.isprintable() else "?" for letter in name[:_MAX_NAME])
        return f"pid={pid}, name={plain}" if plain else _UNKNOWN

    def _send(self, lines: Sequence[tuple[float, str]]) -> None:
        if self._is_device:
            for _, text in lines:  # each with a descriptor of its own: the kernel limits the rate of one
                self._append(f"{_WARNING}{text}\n")
            return
        known = self._known.copy()  # needed again if this fails
        new = [line for at, text in lines if not _take(known, line := self._stamped(at, text))]
        if new:
            self._append("".join(f"{line}\n" for line in new))
        self._known.clear()  # what the one before wrote concerns the first errors alone

    def _stamped(self, at: float, text: str) -> str:
        """Return a line as log daemons write it: local time, host, and seconds since the machine's start."""
        current = self._clock()
        uptime = max(0.0, current.uptime - max(0.0, current.clock - at))
        local = time.localtime(at)
        month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[local.tm_mon - 1]
        stamp = f"{month} {local.tm_mday:2d} {time.strftime('%H:%M:%S', local)}"
        return f"{stamp} {self._host} kernel: [{uptime:12.6f}] {text}"

    def _append(self, text: str) -> None:
        descriptor = self._open()
        try:
            content = text.encode()
            written = os.write(descriptor, content)
            if written != len(content):
                if not self._is_device:
                    _take_back(descriptor, written)
                raise OSError(f"{self._path}: only a part of the lines could be written")
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)


def _take_back(descriptor: int, written: int) -> None:
    """Remove the last bytes written to a file, unless another process has appended to it since."""
    end = os.lseek(descriptor, 0, os.SEEK_CUR)
    if os.fstat(descriptor).st_size == end:
        os.ftruncate(descriptor, end - written)


def _take(known: Counter[str], line: str) -> bool:
    """Take a line out of those known; return whether it was among them."""
    key = _UPTIME.sub(" kernel: ", line)
    known[key] -= 1
    return known[key] >= 0


def _tail(path: Path) -> Counter[str]:
    """Return the last lines of a file without their uptimes, which differ by the rounding of clocks."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    return Counter(_UPTIME.sub(" kernel: ", line) for line in lines)
