"""Files that others read at any moment: replaced as a whole, and only where they hold something else."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def put(path: Path, content: bytes, mode: int, *, lasting: bool = False) -> None:
    """Let a file hold this; one that does is left alone. One that is `lasting` is whole after a power cut too."""
    if holds(path, content):
        return
    unfinished = path.with_name(unfinished_name(path.name))
    unfinished.unlink(missing_ok=True)
    with unfinished.open("xb") as file:  # never through a link that somebody left there
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        if lasting:
            os.fsync(file.fileno())
    unfinished.rename(path)


def unfinished_name(name: str) -> str:
    """What a file is called until it is whole."""
    return f".{name}.unfinished"


def holds(path: Path, content: bytes) -> bool:
    """Whether there is a file with this and nothing more; a link, or a pipe that would let us wait, is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(len(content) + 1) == content
    finally:
        os.close(descriptor)
