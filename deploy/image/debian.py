"""Programs and file systems from Debian packages, unpacked into folders: nothing is installed or started.

`machine` is Debian's name of a processor other than this one, such as `arm64`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from deploy.image import cached

# As root apt drops its privileges for a download, and then cannot write where we want it.
_AS_ROOT = ("-o", "APT::Sandbox::User=root")
_SECONDS = 240


class UnavailableError(Exception):
    """Packages cannot be had on this machine."""


def program(package: str, path: str, *, machine: str = "") -> Path:
    """Return a program of a package: from PATH if it is there, else unpacked once into the cache."""
    found = shutil.which(Path(path).name)
    if found is not None and not machine:
        return Path(found)
    name = f"{package}-{machine}" if machine else package
    return cached.made(f"debian/{name}", lambda folder: unpack([package], folder, machine=machine)) / path


def system(package: str) -> Path:
    """Return a package with all that it needs, as the root of a file system."""
    return cached.made(f"debian/{package}-system", lambda folder: unpack(closure(package), folder))


def launcher(root: Path, path: str, folder: Path) -> Path:
    """Write a script that runs a program of a `system` with that system's libraries; return the script."""
    (loader,) = root.glob("lib/*/ld-linux-*.so.*")
    libraries = os.pathsep.join(str(found) for found in root.glob("**/lib/*-linux-gnu"))
    folder.mkdir(exist_ok=True)
    script = folder / Path(path).name
    script.write_text(f'#!/bin/sh\nexec {loader} --library-path {libraries} {root}/{path} "$@"\n')
    script.chmod(0o755)
    return script


def closure(*packages: str, machine: str = "") -> list[str]:
    """Return packages and all that they need, as NAME=VERSION: what apt would install into an empty system."""
    with _lists(machine) as options, tempfile.NamedTemporaryFile() as empty:
        given = [*options, "-o", f"Dir::State::status={empty.name}", "--no-install-recommends", "--simulate"]
        printed = _apt("install", *given, *packages)
    found = re.findall(r"^Inst ([^\s:]+)\S* \((\S+)", printed, re.MULTILINE)
    return sorted(f"{name}={version}" for name, version in found)


def unpack(packages: Sequence[str], folder: Path, *, machine: str = "") -> None:
    """Write the files of packages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch, _lists(machine) as options:
        _apt("download", *_AS_ROOT, *options, *packages, folder=Path(scratch))
        for archive in sorted(Path(scratch).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True, timeout=120)


def _apt(command: str, *arguments: str, folder: Path | None = None) -> str:
    """Return what apt-get prints; its lists are refreshed where they are outdated."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError(f"'apt-get {command}' is needed, and this is not Debian")
    line = ["apt-get", "-q", command, *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode != 0:
        if os.geteuid() != 0:
            raise UnavailableError(f"'{' '.join(line)}' fails, and only root can refresh the lists")
        subprocess.run(["apt-get", "update", "-qq"], check=True, timeout=_SECONDS)
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(line)}: {done.stderr}")
    return done.stdout


@contextmanager
def _lists(machine: str) -> Iterator[list[str]]:
    """Yield options for apt: lists of its own for another processor, so that this system's do not change."""
    if not machine:
        yield []
        return
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "lists" / "partial").mkdir(parents=True)
        settings = {
            "APT::Architecture": machine, "APT::Architectures": machine, "Dir::State::lists": f"{scratch}/lists",
            "Dir::Cache": scratch,
        }  # fmt: skip
        options = [*_AS_ROOT, *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]
        _apt("update", *options)
        yield options
