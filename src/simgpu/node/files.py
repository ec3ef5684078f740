"""Atomic file replacement, and only when the content differs; removal."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path


def put(path: Path, content: bytes, mode: int, *, durable: bool = False) -> None:
    """Replace a file atomically unless it has this content already.

    A `durable` one is synced before it is renamed, and its folder afterwards: the new content survives a power cut.
    """
    if holds(path, content):
        return
    unfinished = path.with_name(unfinished_name(path.name))
    unfinished.unlink(missing_ok=True)
    with unfinished.open("xb") as file:  # never follows a symbolic link left by another process
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        if durable:
            os.fsync(file.fileno())
    unfinished.rename(path)
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_contents(folder: Path) -> None:
    """Remove everything in a folder, but not the folder. Symbolic links are not followed."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def unfinished_name(name: str) -> str:
    """Return the name of the temporary file that is renamed to `name`."""
    return f".{name}.unfinished"


def holds(path: Path, content: bytes) -> bool:
    """Whether this is a regular file with exactly this content; symbolic links and pipes are not."""
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
