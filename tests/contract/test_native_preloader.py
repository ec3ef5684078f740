"""The library that does nothing loads before all others, in programs of every C library."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from simgpu.page import native
from tests.fixtures import debian

# A program that prints what is mapped into it.
PROGRAM = """
#include <stdio.h>

int main(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) fputs(line, stdout);
    return !maps;
}
"""


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_it_needs_nothing_and_offers_nothing(machine: str) -> None:
    library = native.preloader(machine)
    shown = subprocess.run(["readelf", "-dh", library], capture_output=True, text=True, check=True).stdout
    names = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert "Library soname: [preloader.so]" in shown
    assert "NEEDED" not in shown
    assert {"x86_64": "X86-64", "aarch64": "AArch64"}[machine] in shown
    assert names == ""


def test_programs_of_glibc_load_it() -> None:
    done = subprocess.run(
        ["cat", "/proc/self/maps"], env={"LD_PRELOAD": str(native.preloader())}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert "preloader.so" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the C library comes from an amd64 package")
def test_programs_of_musl_load_it(tmp_path: Path) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text(PROGRAM)
    target = ["-target", "x86_64-linux-musl", "-dynamic"]
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *target, source, "-o", program], check=True, timeout=280)
    command = [debian.program("musl", "lib/ld-musl-x86_64.so.1"), program]
    done = subprocess.run(
        command, env={"LD_PRELOAD": str(native.preloader())}, capture_output=True, text=True, check=True
    )
    assert "preloader.so" in done.stdout
    assert done.stderr == ""
