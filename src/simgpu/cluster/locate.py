"""Locates each program: in the folder of `--bin-dir`, on PATH, in the cache, by download, or by building it.

In that order: `--bin-dir` (any version, as the user chose it), PATH if the version is supported, the cache, official
release files if they can be reached, a build with Go.
"""

from __future__ import annotations

import asyncio
import collections
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from simgpu import errors, units
from simgpu.cluster import binaries, build, origins, releases
from simgpu.cluster.binaries import Binary, Version
from simgpu.cluster.progress import Progress
from simgpu.cluster.releases import ReleaseSource

_VERSION_TIMEOUT_SECONDS = 20.0


class Found(msgspec.Struct, frozen=True):
    """A program on this machine."""

    path: Path
    version: Version
    source: str  # --bin-dir, PATH, cache, download or build
    url: str | None = None  # of the release file that it was downloaded from


async def find(binary: Binary, bin_dir: Path | None = None) -> Found | None:
    """Return a program that is installed, or None; nothing is downloaded or built."""
    if bin_dir is not None:
        if not bin_dir.is_dir():
            raise errors.InputError("--bin-dir", f"{bin_dir} is not a folder")
        given = bin_dir / binary.name
        if given.exists():
            version = await program_version(given, binary)
            if version is None:
                raise errors.InputError("--bin-dir", f"{given} does not run, or prints no version")
            return Found(given.absolute(), version, "--bin-dir")
    on_path = shutil.which(binary.name)
    if on_path is not None:
        version = await program_version(Path(on_path), binary)
        if version is not None and binary.module.fits(version):
            return Found(Path(on_path).absolute(), version, "PATH")
    kept = build.cached(binary)
    if kept.exists():
        return _in_cache(binary, "cache")
    return None


async def ensure(
    names: Iterable[str], progress: Progress, bin_dir: Path | None = None, source: ReleaseSource | None = None
) -> dict[str, Found]:
    """Return the programs by name, downloaded or built if they are missing."""
    wanted = [binaries.named(name) for name in names]
    found = {binary.name: await find(binary, bin_dir) for binary in wanted}
    missing = [binary for binary in wanted if found[binary.name] is None]
    source = source or releases.choose()
    _announce(found, missing, source, progress)
    unavailable = await _download(missing, progress, source)
    if unavailable and build.go_program() is None:
        raise errors.SimgpuError(_missing_programs(unavailable))
    if unavailable:
        await build.build(unavailable, progress)
    made = {binary.name: _in_cache(binary, "build" if binary in unavailable else "download") for binary in missing}
    return {binary.name: found[binary.name] or made[binary.name] for binary in wanted}


async def _download(missing: list[Binary], progress: Progress, source: ReleaseSource) -> list[Binary]:
    """Download programs. Return those that failed; each reason is reported."""
    if not missing or not source.allowed:
        return missing
    from simgpu.cluster import download  # noqa: PLC0415 - slow to import, and seldom needed

    missed = await download.download(missing, progress, source)
    for reason in dict.fromkeys(each.reason for each in missed):
        names = ", ".join(each.binary.name for each in missed if each.reason == reason)
        progress.note(reason if build.go_program() is None else f"{reason}; building {names} from source instead")
    return [each.binary for each in missed]


def _announce(
    found: Mapping[str, Found | None], missing: list[Binary], source: ReleaseSource, progress: Progress
) -> None:
    """Report which programs are installed, which are missing, and how long a build takes."""
    sources = collections.Counter(place.source for place in found.values() if place is not None)
    here = ", ".join(f"{count} from {source}" for source, count in sources.items())
    if not missing:
        progress.done(build.ITEM, here)
        return
    names = ", ".join(binary.name for binary in missing)
    before = build.last_time(missing)
    expected = f"took {units.format_seconds(before)} last time" if before else "takes about five minutes on two cores"
    ways = ["to download"] if source.allowed else []
    ways += [f"to build, which {expected}"] if build.go_program() is not None else []
    here += "; " if here else ""
    progress.update(
        build.ITEM, f"{here}{len(missing)} missing ({names}): {', or '.join(ways) or 'cannot be downloaded or built'}"
    )


async def program_version(path: Path, binary: Binary) -> Version | None:
    """Return the version that a program prints; None if it does not run or prints none."""
    if not os.access(path, os.X_OK):
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            path,
            *binary.version_args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_VERSION_TIMEOUT_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return binaries.parse_version(output.decode("utf-8", "replace")) if process.returncode == 0 else None


def _in_cache(binary: Binary, source: str) -> Found:
    path = build.cached(binary)
    origin = origins.origin_of(path)
    return Found(path, binary.module.pinned, source, None if origin is None else origin.url)


def _missing_programs(missing: list[Binary]) -> str:
    bounds = {each: map(binaries.dotted, (each.module.oldest, each.module.below)) for each in missing}
    needs = "\n".join(f"  {each.name} {oldest} or newer, below {below}" for each, (oldest, below) in bounds.items())
    go = binaries.dotted(binaries.oldest_go())
    return (
        "these programs are neither on PATH nor in the cache, were not downloaded, and Go is not installed to build "
        f"them:\n{needs}\n"
        f"Either install Go {go} or newer and run the command again; name a mirror of the release files with --mirror; "
        "put the programs on PATH; or name their folder with --bin-dir."
    )
