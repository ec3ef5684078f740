"""A cluster for a benchmark, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from simgpu.cli import progress
from simgpu.cluster import lifecycle


@contextlib.contextmanager
def state_home() -> Iterator[Path]:
    """A folder of its own for whatever a cluster writes."""
    before = os.environ.get("XDG_STATE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["XDG_STATE_HOME"]
            else:
                os.environ["XDG_STATE_HOME"] = before


def resident_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1024**2


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def cluster(nodes: int = 1, *, address: str = "127.0.0.1") -> AsyncIterator[lifecycle.UpResult]:
    """A running cluster."""
    with state_home():
        wish = lifecycle.UpSettings(name="bench", nodes=nodes, address=address)
        outcome = await lifecycle.up(wish, progress.Plain())
        try:
            yield outcome
        finally:
            await lifecycle.down("bench", progress.Plain())
