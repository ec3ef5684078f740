"""Where the programs for pods are: built with the package, one of each for every processor."""

from __future__ import annotations

import platform
from pathlib import Path

from simgpu import errors

BUILT = Path(__file__).parent / "built"
LIBRARY = "libnvidia-ml.so.1"
TOOL = "nvidia-smi"
PRELOADER = "preloader.so"

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def library(machine: str | None = None) -> Path:
    """`libnvidia-ml.so.1` for this machine, or another."""
    return _find(LIBRARY, machine)


def tool(machine: str | None = None) -> Path:
    """`nvidia-smi` for this machine, or another."""
    return _find(TOOL, machine)


def preloader(machine: str | None = None) -> Path:
    """A library that does nothing, for those that have one loaded before all others."""
    return _find(PRELOADER, machine)


def _find(name: str, machine: str | None) -> Path:
    asked = machine or platform.machine()
    folder = _MACHINES.get(asked.lower())
    if folder is None or platform.system() != "Linux":
        raise errors.InputError("machine", f"{name} is there for Linux on x86_64 and aarch64, not for {asked}")
    path = BUILT / folder / name
    if not path.is_file():
        raise errors.InputError(name, f"was not built; `make setup` builds it ({path})")
    return path
