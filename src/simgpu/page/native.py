"""Paths of the native programs for pods, one of each per architecture.

A wheel contains them. In a source tree they are built when they are first needed.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

from simgpu import errors
from simgpu.vocabulary import LIBRARY, SMI

BUILT = Path(__file__).parent / "built"
SOURCES = Path(__file__).parents[3] / "native"
LAYOUT = Path(__file__).parent / "layout.py"
PRELOADER = "preloader.so"

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def ensure() -> None:
    """Build the programs for this machine, where they are missing or outdated."""
    library()
    tool()


def library(machine: str | None = None) -> Path:
    """Return the path of `libnvidia-ml.so.1` for an architecture, by default this machine's."""
    return _find(LIBRARY, machine)


def tool(machine: str | None = None) -> Path:
    """Return the path of `nvidia-smi` for an architecture, by default this machine's."""
    return _find(SMI, machine)


def preloader(machine: str | None = None) -> Path:
    """Return the path of a library that does nothing, for use in `ld.so.preload`."""
    return _find(PRELOADER, machine)


def _find(name: str, machine: str | None) -> Path:
    architecture = machine or platform.machine()
    folder = _MACHINES.get(architecture.lower())
    if folder is None or platform.system() != "Linux":
        raise errors.InputError("machine", f"{name} is for Linux on x86_64 and aarch64, not for {architecture}")
    path = BUILT / folder / name
    if (not path.is_file() or _outdated()) and not (_build() and path.is_file()):
        raise errors.SimgpuError(f"{path} is missing; reinstall the package, or run 'make native' in its sources")
    return path


def _outdated() -> bool:
    """Whether this is a source tree in which a source is newer than the programs."""
    try:
        built = (BUILT / "digest").stat().st_mtime
    except FileNotFoundError:
        return False
    sources = [path for path in SOURCES.rglob("*") if path.suffix in {".c", ".h", ".txt", ".py"}]
    return any(path.stat().st_mtime > built for path in [*sources, *([LAYOUT] if sources else ())])


def _build() -> bool:
    """Build all programs if this is a source tree, and return whether that worked; output goes to standard error."""
    if not (SOURCES / "build.py").is_file():
        return False
    make = ["make", "--no-print-directory", "-C", str(SOURCES.parent), "native"]
    try:
        return subprocess.run(make, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode == 0
    except OSError:
        return False
