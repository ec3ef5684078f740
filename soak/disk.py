"""A small disk of its own for the cluster's files, which a soak fills and slows down.

The disk is a file with a file system of its own, mounted where only this process and its children see it. It is slowed
down by the kernel's limits on write operations of a cgroup. Both need root; `SmallDisk.problem` says why where they
cannot be had.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_MIB = 1024**2
_SIZE = 4096 * _MIB  # of which only what is written takes up room
_MARK = "SIMGPU_SOAK_PRIVATE"
_LEFT = 64 * 1024  # bytes that a full disk has left at most
_SLOW_WRITES = 20  # a second
_PROBE, _PROBED_WRITES = "probe", 10
_SLOWED = 0.7 * _PROBED_WRITES / _SLOW_WRITES  # seconds that these take longer
_EMPTYING_SECONDS = 5.0  # until processes that end have left a cgroup


def enter_private_mounts() -> None:
    """Start this program again where its mounts are its own; do nothing where that cannot be done."""
    unshare = shutil.which("unshare")
    if _MARK in os.environ or os.geteuid() != 0 or unshare is None:
        return
    if subprocess.run([unshare, "--mount", "true"], check=False, capture_output=True).returncode == 0:
        own = [unshare, "--mount", "--propagation", "private", "--"]
        os.execve(unshare, [*own, *sys.orig_argv], {**os.environ, _MARK: "1"})


class SmallDisk:
    """The disk in `folder`, once it is mounted; otherwise an ordinary folder."""

    def __init__(self, scratch: Path) -> None:
        self.folder = scratch / "disk"
        self._image = scratch / "disk.img"
        self._filler = self.folder / "filler"
        self._mounted = False
        self.problem = ""
        self.folder.mkdir()

    def mount(self) -> None:
        """Make the disk and mount it."""
        if _MARK not in os.environ:
            self.problem = "mounts of its own need root"
            return
        with self._image.open("wb") as file:
            file.truncate(_SIZE)
        for command in (["mkfs.ext4", "-q", "-m", "0"], ["mount", "-o", "loop"]):
            rest = [str(self._image), str(self.folder)] if command[0] == "mount" else [str(self._image)]
            try:
                done = subprocess.run([*command, *rest], capture_output=True, text=True, check=False)
            except FileNotFoundError:
                self.problem = f"{command[0]} is not installed"
                return
            if done.returncode:
                self.problem = f"{command[0]}: {done.stderr.strip()[:200]}"
                return
        self._mounted = True

    def unmount(self) -> None:
        """Give the disk back."""
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)

    def fill(self) -> None:
        """Leave next to nothing free on the disk."""
        free = os.statvfs(self.folder)
        size = free.f_bavail * free.f_frsize - _LEFT
        with self._filler.open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, size))
        with self._filler.open("ab") as file, contextlib.suppress(OSError):
            while True:  # what was left by rounding
                os.write(file.fileno(), bytes(4096))

    def has_room(self) -> bool:
        """Return whether a write of some size succeeds."""
        probe = self.folder / _PROBE
        try:
            probe.write_bytes(bytes(_MIB))
        except OSError:
            return False
        finally:
            probe.unlink(missing_ok=True)
        return True

    def free(self) -> None:
        """Empty the disk again."""
        self._filler.unlink(missing_ok=True)

    @contextlib.contextmanager
    def slow(self, pids: Iterable[int]) -> Iterator[Path]:
        """Allow these processes few writes a second, and yield their cgroup. OSError where there is no such limit."""
        device = self.folder.stat().st_dev
        limit, group = _limit(os.major(device), os.minor(device))
        group.mkdir()
        try:
            (group / limit[0]).write_text(limit[1])
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    (group / "cgroup.procs").write_text(str(pid))
            yield group
        finally:
            _remove(group)

    def slows(self, group: Path) -> bool:
        """Return whether synced writes of a process in a cgroup take as much longer as the limit demands."""
        return self._seconds_of_writes(f"echo $$ > {group}/cgroup.procs && ") - self._seconds_of_writes("") > _SLOWED

    def _seconds_of_writes(self, before: str) -> float:
        start = time.monotonic()
        write = f"dd if=/dev/zero of={self.folder / _PROBE} bs=4k count={_PROBED_WRITES} oflag=dsync"
        subprocess.run(["sh", "-c", f"{before}exec {write}"], capture_output=True, check=True)
        (self.folder / _PROBE).unlink()
        return time.monotonic() - start


def _remove(group: Path) -> None:
    """Remove a cgroup, whose processes go back to its parent. Those that are ending cannot be moved."""
    deadline = time.monotonic() + _EMPTYING_SECONDS
    while True:
        for line in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(line)
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _limit(major: int, minor: int) -> tuple[tuple[str, str], Path]:
    """Return a file of a cgroup and what to write into it, and the cgroup to make."""
    name = f"simgpu-soak-{os.getpid()}"
    first = Path("/sys/fs/cgroup/blkio")
    if first.is_dir():
        return ("blkio.throttle.write_iops_device", f"{major}:{minor} {_SLOW_WRITES}"), first / name
    second = Path("/sys/fs/cgroup")
    if "io" not in (second / "cgroup.subtree_control").read_text().split():
        raise OSError("the cgroup controller for disks is off")
    return ("io.max", f"{major}:{minor} wiops={_SLOW_WRITES}"), second / name
