"""Which start of the machine this is: what was saved by the monotonic clock means nothing after the next one."""

from __future__ import annotations

import functools
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def current() -> str:
    """The id of this start; empty where the system gives none."""
    return _text(_BOOT)


@functools.cache
def _text(path: Path) -> str:
    """Read once: later there may be no file to be had for it."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
