"""Where things are kept on this machine: the cache outlives clusters, the state is one folder per cluster."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """Downloaded and built things, safe to delete."""
    return _base("XDG_CACHE_HOME", ".cache") / "simgpu"


def clusters() -> Path:
    """One folder per local cluster."""
    return _base("XDG_STATE_HOME", ".local/state") / "simgpu" / "clusters"


def _base(variable: str, default: str) -> Path:
    # The XDG rules say to ignore a relative path.
    given = os.environ.get(variable, "")
    return Path(given) if given.startswith("/") else Path.home() / default
