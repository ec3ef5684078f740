"""Builds programs from their pinned Go modules into the cache.

Safe against company and accidents: a lock per module lets one process build while others wait and then
use the result; a program appears in the cache by rename, whole or not at all; the compiler's own cache is
kept while a build is unfinished, so a killed one resumes, and deleted when it is done.
"""

from __future__ import annotations

import asyncio
import collections
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu import errors, units
from simgpu.cluster import locks, paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simgpu.cluster.binaries import Binary, Module
    from simgpu.cluster.progress import Progress

_KEPT_LINES = 15
_LONGEST_LINE = 1024 * 1024


class BuildError(errors.SimgpuError):
    """A program could not be built; the message holds what the compiler said."""


def cached(binary: Binary) -> Path:
    """Where the cache has, or would have, a program."""
    return paths.cache() / "bin" / f"{binary.module.name}-{binary.module.version}" / binary.name


def go_program() -> str | None:
    """The Go command, if there is one."""
    return shutil.which("go")


async def build(wanted: Sequence[Binary], progress: Progress) -> None:
    """Build programs into the cache; those that are there already cost nothing."""
    by_module: dict[Module, list[Binary]] = collections.defaultdict(list)
    for binary in wanted:
        by_module[binary.module].append(binary)
    for module, members in by_module.items():
        for binary in members:
            progress.update(binary.name, "waiting for its turn")
        await _build_module(module, members, progress)


async def _build_module(module: Module, members: list[Binary], progress: Progress) -> None:
    label = f"{module.name}-{module.version}"
    scratch = paths.cache() / "build" / label

    def waiting() -> None:
        for binary in members:
            progress.update(binary.name, "waiting for another process that is building it")

    try:
        async with locks.exclusive(paths.cache() / "locks" / label, waiting=waiting):
            missing = [binary for binary in members if not cached(binary).exists()]
            if missing:
                check_disk(paths.cache(), module.disk_gib, f"building {label}")
            for binary in missing:
                await _build_one(binary, scratch, progress)
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise BuildError(errors.explain(error)) from error
    for binary in members:
        progress.done(binary.name, f"{module.version} in the cache")


async def _build_one(binary: Binary, scratch: Path, progress: Progress) -> None:
    started = time.monotonic()
    total = len((await _go(binary, scratch, ["list", "-deps", binary.package], _downloads(binary, progress))).split())
    scratch.mkdir(parents=True, exist_ok=True)
    unfinished = scratch / binary.name
    compiled = 0

    def follow(_: str) -> None:
        nonlocal compiled
        compiled += 1
        spent = units.format_seconds(time.monotonic() - started)
        progress.update(binary.name, f"compiling: {compiled} of at most {total} packages, {spent}")

    flags = ["-v", "-trimpath", "-buildvcs=false", "-ldflags", _ldflags(binary.module)]
    progress.update(binary.name, "compiling")
    await _go(binary, scratch, ["build", *flags, "-o", str(unfinished), binary.package], follow)
    target = cached(binary)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished.rename(target)
    progress.done(binary.name, f"{binary.module.version} built in {units.format_seconds(time.monotonic() - started)}")


def _downloads(binary: Binary, progress: Progress) -> Callable[[str], None]:
    def follow(line: str) -> None:
        if line.startswith("go: downloading "):
            progress.update(binary.name, f"downloading {line.split()[2]}")

    progress.update(binary.name, "resolving modules")
    return follow


def _ldflags(module: Module) -> str:
    major, minor = module.version.split(".")[:2]
    stamps = (stamp.format(version=module.version, major=major, minor=minor) for stamp in module.stamps)
    return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in stamps)])


async def _go(binary: Binary, scratch: Path, args: list[str], follow: Callable[[str], None]) -> str:
    """Run the Go command in the module's folder; its standard output, with each line of the other followed."""
    program = go_program()
    if program is None:
        raise BuildError("Go is not installed")
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
        "GOWORK": "off",
        "GOCACHE": str(scratch / "go-cache"),
    }
    process = await asyncio.create_subprocess_exec(
        program,
        *args,
        cwd=binary.module.directory,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
        process_group=0,  # a Ctrl-C reaches us alone, and we end the build
    )
    try:
        output, complaints = await asyncio.gather(_all_of(process.stdout), _lines_of(process.stderr, follow))
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if code != 0:
        raise _failure(binary, complaints)
    return output


async def _all_of(stream: asyncio.StreamReader | None) -> str:
    return (await stream.read()).decode() if stream is not None else ""


async def _lines_of(stream: asyncio.StreamReader | None, follow: Callable[[str], None]) -> list[str]:
    kept: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
    while stream is not None and (raw := await stream.readline()):
        line = raw.decode("utf-8", "replace").rstrip()
        kept.append(line)
        follow(line)
    return list(kept)


def _failure(binary: Binary, complaints: list[str]) -> BuildError:
    said = "\n".join(f"  {line}" for line in complaints)
    if re.search("no space left on device", said, re.IGNORECASE):
        return BuildError(
            f"the disk of {paths.cache()} is full, and building {binary.name} takes about "
            f"{binary.module.disk_gib:.0f} GiB; free some space and run the command again, it goes on where it stopped"
        )
    return BuildError(f"{binary.name} {binary.module.version} could not be built; Go said:\n{said}")


def check_disk(where: Path, gib: float, purpose: str) -> None:
    """Refuse to start what the disk cannot hold."""
    where.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(where).free
    if free < gib * 1024**3:
        raise BuildError(
            f"{purpose} needs {gib:.1f} GiB on the disk of {where}, and {units.format_bytes(free)} are free; "
            "free some, or point XDG_CACHE_HOME (cache) or XDG_STATE_HOME (clusters) to another disk"
        )
