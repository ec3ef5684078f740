"""One library file for every program: what it exports, what it needs, and where it loads."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Final

import pytest

from simgpu.page import native
from tests.fixtures import debian, nvml, pages

MACHINES: Final = ("x86_64", "aarch64")
SHOWN: Final = f"{pages.RECORDED['uuid']}, NVIDIA H200, 99, 1906, 691.26\n"  # as the real one, when this was recorded


def compiled(folder: Path, machine: str) -> Path:
    nvml.reader(folder / "program", machine)
    return folder / "program"


def names(library: Path) -> set[str]:
    shown = subprocess.run(["readelf", "--dyn-syms", "--wide", library], capture_output=True, text=True, check=True)
    rows = [line.split() for line in shown.stdout.splitlines()]
    return {row[7].partition("@")[0] for row in rows if len(row) > 7 and row[3] == "FUNC" and row[6] != "UND"}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_function_of_the_real_library_is_exported_and_nothing_else(machine: str) -> None:
    promised = (nvml.ROOT / "native" / "nvml" / "symbols.txt").read_text().split()

    assert len(promised) == 404
    assert names(native.library(machine)) == set(promised)


@pytest.mark.parametrize("machine", MACHINES)
def test_no_other_library_is_needed(machine: str) -> None:
    shown = subprocess.run(
        ["readelf", "-d", native.library(machine)], capture_output=True, text=True, check=True
    ).stdout

    assert "Library soname: [libnvidia-ml.so.1]" in shown
    assert "NEEDED" not in shown


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the C library comes from an amd64 package")
def test_programs_of_musl_load_it(tmp_path: Path) -> None:
    loader = debian.program("musl", "lib/ld-musl-x86_64.so.1")
    folder = pages.write(tmp_path / "pages", pages.recorded(**pages.LOAD))
    found = {"LD_LIBRARY_PATH": str(native.library("x86_64").parent), "SIMGPU_PAGES": str(folder)}
    command = [loader, compiled(tmp_path, "x86_64")]

    assert subprocess.run(command, capture_output=True, text=True, env=found, timeout=20, check=False).stdout == SHOWN


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the emulator comes from an amd64 package")
def test_programs_of_arm64_load_it(tmp_path: Path) -> None:
    emulator = debian.program("qemu-user-static", "usr/bin/qemu-aarch64-static")
    loader = debian.program("musl", "lib/ld-musl-aarch64.so.1", machine="arm64")
    folder = pages.write(tmp_path / "pages", pages.recorded(**pages.LOAD))
    found = [f"LD_LIBRARY_PATH={native.library('aarch64').parent}", f"SIMGPU_PAGES={folder}"]
    command: list[str | Path] = [
        emulator,
        *(part for name in found for part in ("-E", name)),
        loader,
        compiled(tmp_path, "aarch64"),
    ]

    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=60, check=False)

    assert done.stdout == SHOWN, done.stderr
