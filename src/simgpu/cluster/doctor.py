"""Checks the requirements of SimGPU on this machine, and how to meet those that are missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import msgspec

from simgpu import units
from simgpu.cluster import binaries, build, download, locate, paths, record, releases

Verdict = Literal["good", "limited", "missing"]

_MEMORY_GIB = 2.0
_BUILD_GIB = 6.0
_DOWNLOAD_GIB = 1.0


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. With `missing`, `simgpu up` does not work; with `limited`, something else does not."""

    topic: str
    verdict: Verdict
    detail: str
    advice: str = ""


async def examine(bin_dir: Path | None = None) -> list[Finding]:
    """Run all checks."""
    missing = [name for name in binaries.LOCAL_CLUSTER if await locate.find(binaries.ALL[name], bin_dir) is None]
    downloads = await _release_files(missing)
    needs_build = bool(missing) and downloads.verdict != "good"
    cache_gib = _BUILD_GIB if needs_build else _DOWNLOAD_GIB if missing else 0.0
    return [
        _system(),
        downloads,
        _go(needed=needs_build),
        _programs(missing, downloads),
        _disk("cache disk", paths.cache(), cache_gib),
        _disk("cluster disk", paths.clusters(), 0.5),
        _memory(),
        _ports(),
        _root(),
        _cgroups(),
        _kmsg(),
    ]


def _system() -> Finding:
    system, python = platform.system(), platform.python_version()
    detail = f"{system} on {platform.machine()}, Python {python}"
    if system != "Linux":
        return Finding("system", "missing", detail, "clusters run on Linux; use a Linux machine or virtual machine")
    return Finding("system", "good", detail)


def _go(*, needed: bool) -> Finding:
    program = build.go_program()
    if program is None:
        advice = f"install Go {binaries.dotted(binaries.oldest_go())} or newer, or name their folder with --bin-dir"
        return Finding("Go", "missing" if needed else "good", "not installed", advice if needed else "")
    try:
        version = build.go_version(program)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Go", "missing" if needed else "limited", f"{program} does not run: {error}", "reinstall Go")
    if version is not None and version < binaries.oldest_go():
        # Go itself downloads a newer toolchain if GOTOOLCHAIN allows it.
        advice = f"install Go {binaries.dotted(binaries.oldest_go())} or newer, or set GOTOOLCHAIN=auto"
        return Finding("Go", "limited", f"{binaries.dotted(version)} at {program}", advice)
    return Finding("Go", "good", f"{binaries.dotted(version) if version else 'an unknown version'} at {program}")


async def _release_files(missing: list[str]) -> Finding:
    """Check that release files can be downloaded; hosts are contacted only if programs are missing."""
    source = releases.choose()
    if not missing:
        return Finding("downloads", "good", "not needed")
    if not source.allowed:
        return Finding("downloads", "limited", "disabled by SIMGPU_DOWNLOAD", "programs are built with Go instead")
    unreached = await download.unreachable([binaries.ALL[name] for name in missing], source)
    if not unreached:
        return Finding("downloads", "good", "release files can be reached")
    detail = "; ".join(f"{host}: {why}" for host, why in unreached.items())
    return Finding("downloads", "limited", detail, "set SIMGPU_MIRROR to a mirror, or let programs be built with Go")


def _programs(missing: list[str], downloads: Finding) -> Finding:
    if not missing:
        return Finding("programs", "good", "all that 'simgpu up' needs are installed")
    detail = f"not installed: {', '.join(missing)}"
    if downloads.verdict != "good" and build.go_program() is None:
        return Finding("programs", "missing", detail, "install Go, or name their folder with --bin-dir")
    does = "downloads" if downloads.verdict == "good" else "builds"
    return Finding(
        "programs", "limited", detail, f"the first 'simgpu up' {does} them; 'simgpu tools --all' does so now"
    )


def _disk(topic: str, where: Path, gib: float) -> Finding:
    at = _existing(where)
    free = shutil.disk_usage(at).free
    detail = f"{units.format_bytes(free)} free at {at}"
    if gib and not os.access(at, os.W_OK):
        advice = "set XDG_CACHE_HOME and XDG_STATE_HOME to writable folders"
        return Finding(topic, "missing", f"{at} is not writable", advice)
    if free < gib * 1024**3:
        return Finding(topic, "missing", detail, f"{gib:.1f} GiB are needed")
    return Finding(topic, "good", detail)


def _existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    while True:
        try:
            path.stat()
        except OSError:
            path = path.parent
        else:
            return path


def _memory() -> Finding:
    available = _available_memory()
    detail = f"{units.format_bytes(available)} available"
    if available < _MEMORY_GIB * 1024**3:
        return Finding("memory", "limited", detail, f"a small cluster needs about {_MEMORY_GIB:.0f} GiB")
    return Finding("memory", "good", detail)


def _available_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _ports() -> Finding:
    free = sum(record.port_is_free("127.0.0.1", port) for port in range(20000, 20100))
    if free < len(record.PORTS):
        return Finding(
            "ports",
            "missing",
            f"{free} of 100 loopback ports free",
            "other processes use the ports from 20000",
        )
    return Finding("ports", "good", "loopback ports are free")


def _root() -> Finding:
    if os.geteuid() == 0:
        return Finding("root", "good", "yes")
    return Finding("root", "limited", "no", "only tests with a real kubelet need root, not 'simgpu up'")


def _cgroups() -> Finding:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return Finding("cgroups", "good", "version 2")
    if Path("/sys/fs/cgroup/memory").exists():
        return Finding("cgroups", "good", "version 1")
    return Finding("cgroups", "limited", "none mounted", "only a real kubelet needs them: mount /sys/fs/cgroup")


def _kmsg() -> Finding:
    if os.access("/dev/kmsg", os.R_OK):
        return Finding("kmsg", "good", "readable")
    return Finding(
        "kmsg",
        "limited",
        "/dev/kmsg cannot be read",
        "only a real kubelet needs it: run as root, outside a container",
    )
