"""Building programs with Go: together, killed half-way, on a full disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simgpu.cluster import binaries, build, locate, paths, progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")

TESTED = [name for name in binaries.ALL if name != "kwokctl"]  # which only a benchmark compares with

BUILDER = """
import asyncio, sys
from pathlib import Path
from simgpu.cluster import binaries, build
from simgpu.cli import progress
binaries.MODULE = Path(sys.argv[1])
module = binaries.Module("hello", "example.com/hello", (1, 0, 0), (2, 0, 0), ("main.version=v{version}",))
hello = binaries.Binary("hello", module, "example.com/hello")
asyncio.run(build.build([hello], progress.Plain(), disk_gib=0.001))
"""


GO_MOD = """
module example.com/tools

go 1.22

require example.com/hello v1.2.3

replace example.com/hello => ./source
"""
GO_MAIN = """
package main

var version = "v0.0.0"

func main() { println("hello " + version) }
"""


@pytest.fixture
def hello(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> binaries.Binary:
    """A tiny module with one program, and an empty cache."""
    tools = tmp_path / "module"
    source = tools / "source"
    source.mkdir(parents=True)
    (tools / "go.mod").write_text(GO_MOD)
    (source / "go.mod").write_text("module example.com/hello\n\ngo 1.22\n")
    (source / "main.go").write_text(GO_MAIN)
    monkeypatch.setattr(binaries, "MODULE", tools)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = binaries.Module("hello", "example.com/hello", (1, 0, 0), (2, 0, 0), ("main.version=v{version}",))
    return binaries.Binary("hello", module, "example.com/hello")


def start_builder() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(binaries.MODULE)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def build_now(*wanted: binaries.Binary) -> None:
    asyncio.run(build.build(wanted, progress.Silent(), disk_gib=0.001))


def test_a_build_is_stamped_with_its_version_and_leaves_no_scratch(hello: binaries.Binary) -> None:
    assert build.last_time([hello]) is None
    build_now(hello)
    printed = subprocess.run([build.cached(hello)], capture_output=True, text=True, check=True).stderr
    assert printed == "hello v1.2.3\n"
    assert not (paths.cache() / "build").exists()
    assert build.last_time([hello]) is not None


def test_two_processes_build_at_once_and_both_get_the_program(hello: binaries.Binary) -> None:
    builders = [start_builder(), start_builder()]
    said = [builder.communicate(timeout=120)[1] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0], said
    assert sum("built in" in text for text in said) == 1
    assert sum("waiting for another process" in text for text in said) == 1
    subprocess.run([build.cached(hello)], check=True, capture_output=True)


def test_a_build_killed_half_way_leaves_nothing_broken(hello: binaries.Binary) -> None:
    builder = start_builder()
    scratch = paths.cache().parent / "go-build"  # Go's own, below XDG_CACHE_HOME
    deadline = time.monotonic() + 60
    while not scratch.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.communicate(timeout=30)
    assert not build.cached(hello).exists()
    build_now(hello)
    subprocess.run([build.cached(hello)], check=True, capture_output=True)


def test_a_source_that_does_not_compile_is_reported_in_gos_words(hello: binaries.Binary) -> None:
    (binaries.MODULE / "source" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(build.BuildError, match="undefined: nonsense"):
        build_now(hello)
    assert not build.cached(hello).exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four mebibytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_fills_up_during_a_build_says_so(
    hello: binaries.Binary, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    with pytest.raises(build.BuildError, match="is full"):
        build_now(hello)


def test_a_disk_that_is_too_small_is_refused_before_the_build(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    with pytest.raises(build.BuildError, match=r"needs 4.5 GiB on the disk of .*4.0 MiB are free"):
        asyncio.run(build.build([binaries.ALL["etcd"]], progress.Silent()))


def test_the_pinned_module_is_complete_and_unchanged() -> None:
    listed = subprocess.run(
        ["go", "list", "-f", "{{.Name}}", *(binary.package for binary in binaries.ALL.values())],
        cwd=binaries.MODULE,
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert set(listed.stdout.split()) == {"main"}


@pytest.fixture(scope="session")
def every_program(programs: Callable[..., dict[str, Path]]) -> dict[str, Path]:
    """All that tests use."""
    return programs(*TESTED)


@pytest.mark.parametrize("name", TESTED)
async def test_every_program_runs_and_says_its_version(name: str, every_program: dict[str, Path]) -> None:
    version = await locate.program_version(every_program[name], binaries.ALL[name])
    assert version is not None
    if every_program[name] == build.cached(binaries.ALL[name]):
        assert binaries.dotted(version) == binaries.ALL[name].module.version
    else:
        assert binaries.ALL[name].module.fits(version)
