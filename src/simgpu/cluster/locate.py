"""Decides where each program comes from: a folder given, PATH, the cache, a download, or a build.

In that order, first that has it: `--bin-dir` (whatever its version: the user chose it), PATH when the
version fits, the cache, the official release files where they are within reach, a build with Go.
"""

from __future__ import annotations

import asyncio
import collections
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from simgpu import errors, units
from simgpu.cluster import binaries, build, origins, releases

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from simgpu.cluster.binaries import Binary, Version
    from simgpu.cluster.progress import Progress
    from simgpu.cluster.releases import ReleaseSource

_VERSION_TIMEOUT_SECONDS = 20.0


class Found(msgspec.Struct, frozen=True):
    """A program on this machine."""

    path: Path
    version: Version
    source: str
    url: str | None = None  # of the release file it was downloaded from


async def find(binary: Binary, bin_dir: Path | None = None) -> Found | None:
    """A usable program, without building one."""
    if bin_dir is not None:
        if not bin_dir.is_dir():
            raise errors.InputError("--bin-dir", f"{bin_dir} is not a folder")
        given = bin_dir / binary.name
        if given.exists():
            version = await program_version(given, binary)
            if version is None:
                raise errors.InputError("--bin-dir", f"{given} does not run, or does not say its version")
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
    """Every program named, downloaded or built where it must be."""
    wanted = [binaries.named(name) for name in names]
    found = {binary.name: await find(binary, bin_dir) for binary in wanted}
    missing = [binary for binary in wanted if found[binary.name] is None]
    source = source or releases.choose()
    _announce(found, missing, source, progress)
    unavailable = await _download(missing, progress, source)
    if unavailable and build.go_program() is None:
        raise errors.SimgpuError(_ways_out(unavailable))
    if unavailable:
        await build.build(unavailable, progress)
    made = {binary.name: _in_cache(binary, "build" if binary in unavailable else "download") for binary in missing}
    return {binary.name: found[binary.name] or made[binary.name] for binary in wanted}


async def _download(missing: list[Binary], progress: Progress, source: ReleaseSource) -> list[Binary]:
    """Download what can be had; the rest, with a line for each reason."""
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
    """Report what is here, what is not, and how long it takes if it has to be built."""
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
    progress.update(build.ITEM, f"{here}{len(missing)} missing ({names}): {', or '.join(ways) or 'no way to get them'}")


async def program_version(path: Path, binary: Binary) -> Version | None:
    """What a program says its version is; None if it does not run or does not say."""
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


def dotted(version: Version) -> str:
    """(1, 36, 4) as 1.36.4."""
    return ".".join(map(str, version))


def _in_cache(binary: Binary, source: str) -> Found:
    path = build.cached(binary)
    origin = origins.origin_of(path)
    return Found(path, _pinned(binary), source, None if origin is None else origin.url)


def _pinned(binary: Binary) -> Version:
    version = binaries.parse_version(binary.module.version)
    assert version is not None  # noqa: S101 - pinned versions are x.y.z; a unit test says so
    return version


def _ways_out(missing: list[Binary]) -> str:
    needs = "\n".join(
        f"  {binary.name} {dotted(binary.module.oldest)} or newer, below {dotted(binary.module.below)}"
        for binary in missing
    )
    go = dotted(binaries.oldest_go())
    return (
        "these programs are neither on PATH nor in the cache, were not downloaded, and Go is not there to build "
        f"them:\n{needs}\n"
        f"Ways out: install Go {go} or newer and run the command again; name a mirror of the release files with "
        "--mirror; put the programs on PATH; or give the folder that holds them with --bin-dir."
    )
