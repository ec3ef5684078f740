"""The boot id of this machine: saved times of the monotonic clock are valid only for the same boot."""

from __future__ import annotations

import functools
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@functools.cache  # later no file descriptor may be available
def current() -> str:
    """Return the boot id; empty if the system has none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
