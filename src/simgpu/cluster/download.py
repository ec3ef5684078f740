"""Downloads programs from the official releases into the cache.

The checksum of each file and the version of each program are verified; then the program is synced and renamed into the
cache: durable, and complete or absent. A lock per file lets one process download while others wait and use the result;
an interrupted download is resumed.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from simgpu import errors, units
from simgpu.cluster import archives, binaries, build, checksums, fetch, locate, locks, origins, paths, releases
from simgpu.cluster.binaries import Binary
from simgpu.cluster.progress import Progress
from simgpu.cluster.releases import File, ReleaseSource

# Hosts that did not respond to this process, and why: they are not contacted again.
_unreachable: dict[str, str] = {}


class Missed(msgspec.Struct, frozen=True):
    """A program that could not be downloaded."""

    binary: binaries.Binary
    reason: str


class VerificationError(errors.SimgpuError):
    """A downloaded file failed verification and was deleted."""


async def download(
    wanted: Sequence[Binary], progress: Progress, source: ReleaseSource, *, limits: fetch.FetchLimits | None = None
) -> list[Missed]:
    """Download programs into the cache. Return those that failed, with the reason."""
    architecture = releases.architecture()
    if architecture is None:
        return [Missed(binary, "there are no release files for this architecture") for binary in wanted]
    wanted_of: dict[File, list[tuple[Binary, str]]] = collections.defaultdict(list)
    for binary in wanted:
        release = releases.release_of(binary, architecture)
        wanted_of[release.file].append((binary, release.member))
    limits = limits or fetch.FetchLimits()
    slots = asyncio.Semaphore(limits.at_once)
    async with fetch.Fetcher(limits) as fetcher:
        unreached = await _unreachable_hosts(fetcher, wanted_of, source)
        reason = f"release hosts cannot be reached ({'; '.join(f'{host}: {why}' for host, why in unreached.items())})"
        missed, jobs = [], []
        for file, members in wanted_of.items():
            if unreached.keys() & _hosts(file, source).keys():
                missed += [Missed(binary, reason) for binary, _ in members]
            else:
                jobs.append(_Job(fetcher, limits, file, source, members, progress).run(slots))
        return [*missed, *(each for result in await asyncio.gather(*jobs) for each in result)]


async def unreachable(wanted: Sequence[Binary], source: ReleaseSource) -> dict[str, str]:
    """Return the release hosts of these programs that do not respond, with the reason."""
    architecture = releases.architecture()
    if architecture is None:
        return {"releases": "none for this architecture"}
    files = {releases.release_of(binary, architecture).file for binary in wanted}
    async with fetch.Fetcher(fetch.FetchLimits()) as fetcher:
        return await _unreachable_hosts(fetcher, files, source)


async def _unreachable_hosts(fetcher: fetch.Fetcher, files: Iterable[File], source: ReleaseSource) -> dict[str, str]:
    """Contact all hosts concurrently. Return those that do not respond, with the reason."""
    hosts = {host: url for file in files for host, url in _hosts(file, source).items()}
    untried = [host for host in hosts if host not in _unreachable]
    problems = await asyncio.gather(*(fetcher.problem(hosts[host]) for host in untried))
    _unreachable.update({host: problem for host, problem in zip(untried, problems, strict=True) if problem is not None})
    return {host: _unreachable[host] for host in hosts if host in _unreachable}


def _hosts(file: File, source: ReleaseSource) -> dict[str, str]:
    """Return the hosts of a file and of its checksum, each with a URL there."""
    names = [file.name] if file.name in checksums.pinned() else [file.checksum, file.name]
    return {source.host(name): source.url(name) for name in names}


@dataclasses.dataclass(frozen=True)
class _Job:
    """One release file, and the programs to install from it, each with its path in the archive."""

    fetcher: fetch.Fetcher
    limits: fetch.FetchLimits
    file: File
    source: ReleaseSource
    members: list[tuple[Binary, str]]
    progress: Progress

    @property
    def _url(self) -> str:
        return self.source.url(self.file.name)

    async def run(self, slots: asyncio.Semaphore) -> list[Missed]:
        """Download the file and install its programs. Return those that failed."""
        label = self.file.name.replace("/", "_")
        try:
            async with slots, locks.exclusive(paths.cache() / "locks" / label, waiting=self._waiting):
                return await self._install_all(fetch.Partial(paths.cache() / "download" / label))
        except (fetch.FetchError, VerificationError) as error:
            reason = str(error)
        except OSError as error:
            reason = errors.explain(error)
        return [Missed(binary, reason) for binary, _ in self.members if not build.cached(binary).exists()]

    def _waiting(self) -> None:
        for binary, _ in self.members:
            self.progress.update(binary.name, "waiting for another process that is downloading it")

    async def _install_all(self, partial: fetch.Partial) -> list[Missed]:
        absent = [(binary, member) for binary, member in self.members if not build.cached(binary).exists()]
        missed: list[Missed] = []
        if absent:
            started = time.monotonic()
            for binary, _ in absent:
                self.progress.update(binary.name, f"downloading {fetch.shown(self._url)}")
            checksum = await self._fetch(partial)
            for binary, member in absent:
                try:
                    await self._install(partial.path, binary, member, checksum)
                except VerificationError as error:
                    missed.append(Missed(binary, str(error)))
                else:
                    spent = units.format_seconds(time.monotonic() - started)
                    self.progress.done(binary.name, f"{binary.module.version} downloaded in {spent}")
            partial.discard()
        for binary, member in self.members:
            if (binary, member) not in absent:
                self.progress.done(binary.name, f"{binary.module.version} in the cache")
        return missed

    async def _fetch(self, partial: fetch.Partial) -> str:
        """Download the whole file and verify its checksum, which is returned."""
        expected, stated = await self._expected()
        actual = ""
        for _ in range(2):
            resumed = await self.fetcher.save(self._url, partial, self._follow)
            actual = await asyncio.to_thread(checksums.of, partial.path)
            if actual == expected:
                return actual
            partial.discard()
            if not resumed:
                break
            # The partial file may have been of another version, or damaged by a power failure: download all of it.
        raise VerificationError(f"{fetch.shown(self._url)}: SHA-256 is {actual}, but {expected} is {stated}; deleted")

    async def _expected(self) -> tuple[str, str]:
        pinned = checksums.pinned().get(self.file.name)
        if pinned is not None:
            return pinned, "pinned"
        url = self.source.url(self.file.checksum)
        published = checksums.published(await self.fetcher.read(url), self.file.name)
        if published is None:
            raise VerificationError(f"{fetch.shown(url)}: has no SHA-256 of {Path(self.file.name).name}")
        return published, f"stated by {fetch.shown(url)}"

    def _follow(self, held: int, total: int | None) -> None:
        whole = "" if total is None else f" of {units.format_bytes(total)}"
        for binary, _ in self.members:
            self.progress.update(binary.name, f"downloading {units.format_bytes(held)}{whole}")

    async def _install(self, downloaded: Path, binary: Binary, member: str, checksum: str) -> None:
        program = downloaded
        if member:
            program = downloaded.with_name(f"{downloaded.name}.{binary.name}")
            await asyncio.to_thread(self._extract, downloaded, member, program)
        try:
            program.chmod(0o755)
            await self._check_version(program, binary)
            target = build.cached(binary)
            target.parent.mkdir(parents=True, exist_ok=True)
            paths.sync(program)
            program.rename(target)
            paths.sync(target.parent)
            origins.record(target, fetch.shown(self._url), checksum)
        finally:
            program.unlink(missing_ok=True)

    def _extract(self, archive: Path, member: str, target: Path) -> None:
        try:
            archives.extract(archive, member, target, max_bytes=self.limits.file_bytes)
        except archives.ArchiveError as error:
            raise VerificationError(f"{fetch.shown(self._url)}: {error}") from error

    async def _check_version(self, program: Path, binary: Binary) -> None:
        version = await locate.program_version(program, binary)
        if version is None:
            raise VerificationError(f"{fetch.shown(self._url)}: {binary.name} does not run, or prints no version")
        if version != binary.module.pinned:
            stated = binaries.dotted(version)
            raise VerificationError(
                f"{fetch.shown(self._url)}: {binary.name} has version {stated}, not {binary.module.version}"
            )
