"""The wall clock of SimGPU's processes, which a soak sets forward and back while they run.

A small library stands before the C library in these processes (`clock.c`). The programs of Kubernetes ask the kernel
themselves, so theirs stays.
"""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
_SHIFT = "SIMGPU_SOAK_CLOCK"
_CLOSE_SECONDS = 10.0


class SteppedClock:
    """A clock for processes that are started with `environ`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._library = folder / "clock.so"
        self.set(0.0)

    def build(self) -> None:
        """Compile the library."""
        compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-gnu.2.17"]
        options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-s"]
        subprocess.run([*compiler, *options, str(SOURCE), "-o", str(self._library)], check=True)

    def set(self, seconds: float) -> None:
        """Shift the clock by so many seconds from the machine's."""
        data = struct.pack("=q", round(seconds * 1e9))
        if not self._file.exists():
            self._file.write_bytes(data)
        with self._file.open("r+b") as file:  # the same file: processes have it mapped
            file.write(data)

    def is_shown_to(self, pids: Iterable[int], seconds: float) -> bool:
        """Return whether a new process has the clock shifted by so many seconds, and these have the same clock."""
        command = [sys.executable, "-S", "-c", "import time; print(time.time())"]
        done = subprocess.run(command, env={**os.environ, **self.environ}, capture_output=True, text=True, check=True)
        off = float(done.stdout) - time.time() - seconds  # this process has the machine's clock
        return abs(off) < _CLOSE_SECONDS and all(map(self._is_of, pids))

    def _is_of(self, pid: int) -> bool:
        try:
            return str(self._library) in Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            return True  # it has just ended

    @property
    def environ(self) -> dict[str, str]:
        """Variables of a process whose clock this is."""
        before = os.environ.get("LD_PRELOAD", "")
        return {"LD_PRELOAD": f"{self._library} {before}".strip(), _SHIFT: str(self._file)}
