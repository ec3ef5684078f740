"""The boot id of this machine: saved times of the monotonic clock are valid only for the same boot."""

from __future__ import annotations

import functools
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def current() -> str:
    """Return the boot id; empty if the system has none."""
    return _text(_BOOT)


@functools.cache
def _text(path: Path) -> str:
    """Read a file once and keep the text: later no file descriptor may be available."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
