"""Runs tests as on a machine that was started a minute ago, in a time namespace.

On Linux the monotonic clock starts with the machine, so whatever subtracts from it, or takes 0 for long ago, fails on
a young machine only. Root may make such a namespace; others may where user namespaces are allowed to them.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

UPTIME: Final = 60  # seconds that the namespace's clocks start at
YOUNG: Final = 3600.0  # seconds of uptime below which a machine counts as one that was just started

_CLOCKS: Final = {"monotonic": time.CLOCK_MONOTONIC, "boottime": time.CLOCK_BOOTTIME}
_OFFSETS: Final = Path("/proc/self/timens_offsets")


def is_young() -> bool:
    """Whether the clock of this process is that of a machine which was just started."""
    return time.monotonic() < YOUNG


@functools.cache
def prefix() -> list[str]:
    """What to put before a command so that its clocks start at a minute; nothing where that cannot be done."""
    unshare = shutil.which("unshare")
    if unshare is None or not _OFFSETS.exists():
        return []
    own = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
    clocks = [f"--{name}={offset}" for name, offset in _offsets().items()]
    command = [unshare, *own, "--time", *clocks, "--fork", "--kill-child", "--"]
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if tried.returncode == 0 else []


def _offsets() -> dict[str, int]:
    """Seconds to add to each clock of the machine: a namespace inside another one counts from the machine's, too."""
    before = {name: int(seconds) for name, seconds, _ in map(str.split, _OFFSETS.read_text().splitlines())}
    return {name: before[name] + UPTIME - int(time.clock_gettime(clock)) for name, clock in _CLOCKS.items()}
