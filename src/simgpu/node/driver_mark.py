"""The mark of a driver folder: that it is an agent's, which files agents made there, and which pods may still use them.

It is written before the files that it names, and removed after them: whatever ends an agent in between, the next one
knows what to remove, and nothing else is.
"""

from __future__ import annotations

import logging
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from simgpu.kube import errors as kube_errors
from simgpu.node import files

NAME: Final = ".simgpu"

_MAX_PATH, _MAX_PART = 2048, 240  # bytes: while a file is written, it has a longer name

_log = logging.getLogger(__name__)


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Files that agents made, by path below the folder.

    Where the driver was switched off, `pods` are those, by uid, that had GPUs then and still have.
    """

    files: tuple[str, ...] = ()
    pods: tuple[str, ...] | None = None


def read(root: Path) -> Mark | None:
    """Return the mark of a folder; None if it has none, and is not ours."""
    try:
        content = (root / NAME).read_bytes()
    except OSError:
        return None
    try:
        mark = msgspec.json.decode(content, type=Mark)
    except kube_errors.DECODING as error:
        _log.warning("which files of %s are ours is unknown: %s: %s", root, NAME, error)
        return Mark()
    return Mark(tuple(name for name in mark.files if _is_below(name)), mark.pods)


def _is_below(name: str) -> bool:
    """Whether a path leads nowhere else than below the folder, to what can be a file of ours."""
    path = PurePosixPath(name)
    parts = path.parts
    leads_below = bool(parts) and not path.is_absolute() and ".." not in parts and "\0" not in name
    is_possible = len(name.encode()) <= _MAX_PATH and all(len(part.encode()) <= _MAX_PART for part in parts)
    return leads_below and is_possible and parts[0] != NAME


def write(root: Path, mark: Mark) -> None:
    """Mark a folder as ours, durably."""
    files.put(root / NAME, msgspec.json.encode(mark), 0o644, durable=True)


def remove(root: Path) -> None:
    """Remove the mark."""
    for name in (files.unfinished_name(NAME), NAME):
        (root / name).unlink(missing_ok=True)


def others(root: Path) -> list[str]:
    """Return the names of entries that are not the mark, written or being written."""
    return sorted(path.name for path in root.iterdir() if path.name not in (NAME, files.unfinished_name(NAME)))
