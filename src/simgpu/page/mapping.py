"""Files of pages, mapped into memory, and how a page is written so that readers see it whole."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simgpu.page import layout

FILE: Final = "page"
ROOM: Final = (layout.DTYPE.itemsize + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
_SEQUENCES: Final = 1 << 8 * layout.DTYPE["sequence"].itemsize  # one more than the highest: after it they begin anew


class Publisher:
    """Writes pages under a seqlock."""

    def __init__(self) -> None:
        self._fence = threading.Lock()

    def publish(self, row: Any, mapped: npt.NDArray[Any]) -> None:
        """Write a page: the sequence is odd meanwhile; the lock is a memory barrier."""
        page = mapped[0]
        before = int(page["sequence"]) | 1
        with self._fence:
            page["sequence"] = before
        with self._fence:
            row["sequence"] = before
            mapped[0] = row
        with self._fence:
            page["sequence"] = (before + 1) % _SEQUENCES


def _usable(path: Path) -> bool:
    """Whether there is a page to reuse, interrupted write or not: readers that have it open see the card again."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    known = np.array([layout.MAGIC, layout.MAJOR], "<u4").tobytes()
    return len(content) >= mmap.PAGESIZE and content.startswith(known)  # that of an older version grows in place


def open_page(folder: Path) -> npt.NDArray[Any]:
    """Map the page in a folder for writing; one that is there is reused, also one of an older version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    if not _usable(path):
        _make(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, ROOM)
        os.posix_fallocate(descriptor, 0, ROOM)  # on a full disk an error now, and not a signal at a write
        return np.frombuffer(mmap.mmap(descriptor, ROOM), layout.DTYPE, count=1)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Create an empty page atomically."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".page-")
    made = Path(name)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(bytes(ROOM))
        made.chmod(0o644)
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)
