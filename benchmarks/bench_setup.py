"""Figures of the first minutes: from a clone to a cluster, Python packages, and programs built from source."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks import frame
from simgpu.cluster import binaries, build, locate, progress

ROOT = Path(__file__).parent.parent
BASE = str(getattr(sys, "_base_executable", None) or sys.executable)


async def figures() -> AsyncIterator[frame.Figure]:
    """All of them; the last one takes a quarter of an hour."""
    yield await new_clone()
    yield await packages()
    yield await build_time()


async def new_clone() -> frame.Figure:
    """`make run` in a new clone with everything cached, against `simgpu up` in one that is set up."""
    await locate.ensure(binaries.LOCAL_CLUSTER, progress.Silent())

    async def ours() -> float:
        with tempfile.TemporaryDirectory() as folder:
            clone, state = Path(folder) / "clone", {"XDG_STATE_HOME": f"{folder}/state"}
            call(["git", "clone", "-q", str(ROOT), str(clone)])
            spent = await asyncio.to_thread(call, ["make", "run"], clone, state)
            call(["make", "stop"], clone, state)
        return spent

    async def ready() -> float:
        simgpu = str(Path(sys.executable).parent / "simgpu")
        with tempfile.TemporaryDirectory() as folder:
            state = {"XDG_STATE_HOME": folder}
            spent = await asyncio.to_thread(call, [simgpu, "up", "--sample"], ROOT, state)
            call([simgpu, "down"], ROOT, state)
        return spent

    value, baseline = await frame.alternate(ours, ready, chunks=3)
    return frame.Figure("setup.clone", value, baseline, "s", "'simgpu up --sample' where all is set up")


async def packages() -> frame.Figure:
    """Run-time packages of a new clone from warm caches, against pip in a new environment."""

    async def ours() -> float:
        with tempfile.TemporaryDirectory() as folder:
            call(["git", "clone", "-q", str(ROOT), folder])
            return await asyncio.to_thread(call, ["make", "setup"], Path(folder))

    async def pip() -> float:
        with tempfile.TemporaryDirectory() as folder:
            call(["git", "clone", "-q", str(ROOT), folder])
            constraint = {"PIP_CONSTRAINT": "constraints.txt"}
            install = [".venv/bin/python", "-m", "pip", "install", "-q", "--editable", ".[fast]"]
            spent = call([BASE, "-m", "venv", ".venv"], Path(folder))
            return spent + await asyncio.to_thread(call, install, Path(folder), constraint)

    value, baseline = await frame.alternate(ours, pip, chunks=3)
    return frame.Figure("setup.packages", value, baseline, "s", "venv and pip")


async def build_time() -> frame.Figure:
    """The programs of a local cluster in one build, against one build each with a cache of its own."""
    wanted = [binaries.ALL[name] for name in binaries.LOCAL_CLUSTER]
    call(["go", "list", "-deps", *(binary.package for binary in wanted)], binaries.MODULE)

    async def together() -> float:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            started = time.monotonic()
            await build.build(wanted, progress.Silent())
            return time.monotonic() - started

    async def apart() -> float:
        spent = 0.0
        for binary in wanted:
            with tempfile.TemporaryDirectory() as folder:
                os.environ["XDG_CACHE_HOME"] = folder
                started = time.monotonic()
                await build.build([binary], progress.Silent())
                spent += time.monotonic() - started
        return spent

    before = os.environ.get("XDG_CACHE_HOME")
    try:
        value, baseline = await frame.alternate(together, apart, chunks=1)
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before
    return frame.Figure("setup.build", value, baseline, "s", "one build for each program")


def call(command: list[str], where: Path = ROOT, variables: dict[str, str] | None = None) -> float:
    """How many seconds a command takes; it must succeed."""
    started = time.monotonic()
    environment = {**os.environ, **(variables or {})}
    subprocess.run(command, cwd=where, env=environment, check=True, capture_output=True)
    return time.monotonic() - started
