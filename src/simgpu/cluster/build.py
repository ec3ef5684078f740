"""Builds programs from the pinned Go module into the cache: all missing ones in one call of `go build`.

Only one process builds at a time; others wait for its lock and use the result. A program is renamed into the cache, so
it is complete or absent. Compiled packages are in Go's own cache, which Go trims, so an interrupted build resumes where
it stopped and later builds reuse shared packages.
"""

from __future__ import annotations

import asyncio
import collections
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from simgpu import errors, units
from simgpu.cluster import binaries, durations, locks, paths
from simgpu.cluster.binaries import Binary, Module, Version
from simgpu.cluster.progress import Progress

ITEM = "programs"

_KEPT_LINES = 15
_MAX_LINE_BYTES = 1024 * 1024
_MIN_PACKAGES_FOR_ESTIMATE = 100
_DISK_GIB = 4.5  # of all programs and their compiled packages


class BuildError(errors.SimgpuError):
    """A program could not be built; the message holds the output of Go."""


def cached(binary: Binary) -> Path:
    """Return the path of a program in the cache, whether or not it exists."""
    return paths.cache() / "bin" / f"{binary.module.name}-{binary.module.version}" / binary.name


def go_program() -> str | None:
    """Return the path of the Go command, or None."""
    return shutil.which("go")


def go_version(program: str) -> Version | None:
    """Return the version of a Go command, None if it prints none. OSError or SubprocessError if it does not run."""
    printed = subprocess.run([program, "version"], capture_output=True, timeout=20, check=True).stdout
    return binaries.parse_version(printed.decode("utf-8", "replace").replace("go1", "1"))


async def build(wanted: Sequence[Binary], progress: Progress, *, disk_gib: float = _DISK_GIB) -> None:
    """Build programs into the cache, except those that are there already."""

    def waiting() -> None:
        progress.update(ITEM, "waiting for another process that is building them")

    try:
        async with locks.exclusive(paths.cache() / "locks" / "build", waiting=waiting):
            missing = [binary for binary in wanted if not cached(binary).exists()]
            if missing:
                check_disk(paths.cache(), disk_gib, "building programs")
                await _build(missing, progress)
            elif wanted:
                progress.done(ITEM, "in the cache")
    except OSError as error:
        raise BuildError(errors.explain(error)) from error


async def _build(missing: list[Binary], progress: Progress) -> None:
    started = time.monotonic()
    packages = [binary.package for binary in missing]
    progress.update(ITEM, "resolving modules")
    total = len((await _go(missing, ["list", "-deps", *packages], _downloads(progress))).split())
    unfinished = paths.cache() / "build"
    unfinished.mkdir(parents=True, exist_ok=True)
    flags = ["-v", "-trimpath", "-buildvcs=false", "-ldflags", _ldflags(missing), "-gcflags=all=-dwarf=false"]
    progress.update(ITEM, f"compiling: at most {total} packages")
    await _go(missing, ["build", *flags, "-o", f"{unfinished}{os.sep}", *packages], _compiled(total, progress))
    for binary in missing:
        target = cached(binary)
        target.parent.mkdir(parents=True, exist_ok=True)
        paths.sync(unfinished / binary.output)
        (unfinished / binary.output).rename(target)
        paths.sync(target.parent)
    shutil.rmtree(unfinished, ignore_errors=True)
    spent = time.monotonic() - started
    durations.remember(_kind(missing), spent)
    names = ", ".join(binary.name for binary in missing)
    progress.done(ITEM, f"{names} built in {units.format_seconds(spent)}")


def last_time(missing: Iterable[Binary]) -> float | None:
    """Return how many seconds the last build of these programs took on this machine, or None."""
    return durations.recall(_kind(missing))


def _kind(missing: Iterable[Binary]) -> str:
    return f"build {' '.join(sorted(binary.name for binary in missing))}"


def _downloads(progress: Progress) -> Callable[[str], None]:
    def follow(line: str) -> None:
        if line.startswith("go: downloading "):
            progress.update(ITEM, f"downloading {line.split()[2]}")

    return follow


def _compiled(total: int, progress: Progress) -> Callable[[str], None]:
    """Count the packages that `go build -v` prints, and estimate the time left from their rate."""
    started, count = time.monotonic(), 0

    def follow(_: str) -> None:
        nonlocal count
        count += 1
        spent = time.monotonic() - started
        left = ""
        if _MIN_PACKAGES_FOR_ESTIMATE < count < total:
            left = f", about {units.format_rough_seconds(spent / count * (total - count))} left"
        progress.update(ITEM, f"compiling: {count} of at most {total} packages{left}")

    return follow


def _ldflags(missing: Iterable[Binary]) -> str:
    """Return linker flags; -X of a symbol that a program does not have is ignored, so all are given."""
    modules = {binary.module: None for binary in missing}
    return " ".join(["-s", "-w", *(f"-X {stamp}" for module in modules for stamp in _stamps(module))])


def _stamps(module: Module) -> list[str]:
    major, minor = module.version.split(".")[:2]
    return [stamp.format(version=module.version, major=major, minor=minor) for stamp in module.stamps]


async def _go(missing: list[Binary], args: list[str], follow: Callable[[str], None]) -> str:
    """Run the Go command in the module's folder and return its stdout; `follow` is called with each stderr line."""
    program = go_program()
    if program is None:
        raise BuildError("Go is not installed")
    process = await asyncio.create_subprocess_exec(
        program,
        *args,
        cwd=binaries.MODULE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
        process_group=0,  # Ctrl-C reaches only this process, which ends the build
    )
    try:
        output, stderr_lines = await asyncio.gather(_all_of(process.stdout), _lines_of(process.stderr, follow))
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGINT)  # Go then ends its compilers and removes their files
            await process.wait()
    if code != 0:
        raise _failure(missing, stderr_lines)
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


def _failure(missing: list[Binary], stderr_lines: list[str]) -> BuildError:
    output = "\n".join(f"  {line}" for line in stderr_lines)
    names = ", ".join(binary.name for binary in missing)
    if re.search("no space left on device", output, re.IGNORECASE):
        return BuildError(
            f"the disk of {paths.cache()} is full, and building {names} takes about "
            f"{_DISK_GIB:.0f} GiB; free some space and run the command again; it resumes where it stopped"
        )
    return BuildError(f"{names} could not be built; Go printed:\n{output}{_advice()}")


def _advice() -> str:
    """Return a hint if Go is too old: its own error does not mention that."""
    program = go_program()
    try:
        version = go_version(program) if program is not None else None
    except (OSError, subprocess.SubprocessError):
        return ""
    if version is None or version >= binaries.oldest_go():
        return ""
    have, need = binaries.dotted(version), binaries.dotted(binaries.oldest_go())
    return f"\n{program} is Go {have}; install Go {need} or newer"


def check_disk(where: Path, gib: float, purpose: str) -> None:
    """Raise BuildError if fewer than `gib` GiB are free."""
    where.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(where).free
    if free < gib * 1024**3:
        raise BuildError(
            f"{purpose} needs {gib:.1f} GiB on the disk of {where}, and {units.format_bytes(free)} are free; "
            "free some, or set XDG_CACHE_HOME (cache) or XDG_STATE_HOME (clusters) to another disk"
        )
