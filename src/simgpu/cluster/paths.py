"""Folders on this machine: the cache outlives clusters, the state is one folder per cluster."""

from __future__ import annotations

import os
from pathlib import Path

from simgpu import errors


def cache() -> Path:
    """Return the folder of downloaded and built programs, safe to delete."""
    return _base("XDG_CACHE_HOME", ".cache") / "simgpu"


def clusters() -> Path:
    """Return the folder that holds one folder per local cluster."""
    return _base("XDG_STATE_HOME", ".local/state") / "simgpu" / "clusters"


def sync(path: Path) -> None:
    """Make a file, or the entries of a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _base(variable: str, default: str) -> Path:
    # The XDG specification says to ignore relative paths.
    given = os.environ.get(variable, "")
    if given.startswith("/"):
        return Path(given)
    try:
        return Path.home() / default
    except RuntimeError:
        raise errors.InputError("HOME", f"is not set and this user has no home; set HOME or {variable}") from None
