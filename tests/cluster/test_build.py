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

BUILDER = """
import asyncio, sys
from pathlib import Path
from simgpu.cluster import binaries, build
from simgpu.cli import progress
binaries.MODULES = Path(sys.argv[1])
module = binaries.Module("hello", "example.com/hello", (1, 0, 0), (2, 0, 0), ("main.version=v{version}",), 0.001)
asyncio.run(build.build([binaries.Binary("hello", module, "example.com/hello")], progress.Plain()))
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
    modules = tmp_path / "modules"
    source = modules / "hello" / "source"
    source.mkdir(parents=True)
    (modules / "hello" / "go.mod").write_text(GO_MOD)
    (source / "go.mod").write_text("module example.com/hello\n\ngo 1.22\n")
    (source / "main.go").write_text(GO_MAIN)
    monkeypatch.setattr(binaries, "MODULES", modules)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    module = binaries.Module("hello", "example.com/hello", (1, 0, 0), (2, 0, 0), ("main.version=v{version}",), 0.001)
    return binaries.Binary("hello", module, "example.com/hello")


def start_builder() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(binaries.MODULES)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_a_build_is_stamped_with_its_version_and_leaves_no_scratch(hello: binaries.Binary) -> None:
    asyncio.run(build.build([hello], progress.Silent()))
    printed = subprocess.run([build.cached(hello)], capture_output=True, text=True, check=True).stderr
    assert printed == "hello v1.2.3\n"
    assert list((paths.cache() / "build").iterdir()) == []


def test_two_processes_build_at_once_and_both_get_the_program(hello: binaries.Binary) -> None:
    builders = [start_builder(), start_builder()]
    said = [builder.communicate(timeout=120)[1] for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0], said
    assert sum("built in" in text for text in said) == 1
    assert sum("waiting for another process" in text for text in said) == 1
    subprocess.run([build.cached(hello)], check=True, capture_output=True)


def test_a_build_killed_half_way_leaves_nothing_broken(hello: binaries.Binary) -> None:
    builder = start_builder()
    scratch = paths.cache() / "build" / "hello-1.2.3" / "go-cache"
    deadline = time.monotonic() + 60
    while not scratch.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(builder.pid, signal.SIGKILL)
    builder.communicate(timeout=30)
    assert not build.cached(hello).exists()
    asyncio.run(build.build([hello], progress.Silent()))
    subprocess.run([build.cached(hello)], check=True, capture_output=True)


def test_a_source_that_does_not_compile_is_reported_in_gos_words(hello: binaries.Binary) -> None:
    (binaries.MODULES / "hello" / "source" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(build.BuildError, match="undefined: nonsense"):
        asyncio.run(build.build([hello], progress.Silent()))
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
        asyncio.run(build.build([hello], progress.Silent()))


def test_a_disk_that_is_too_small_is_refused_before_the_build(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    with pytest.raises(build.BuildError, match=r"needs 1.0 GiB on the disk of .*4.0 MiB are free"):
        asyncio.run(build.build([binaries.ALL["etcd"]], progress.Silent()))


def test_every_pinned_module_is_complete_and_unchanged() -> None:
    for module in (binaries.KUBERNETES, binaries.ETCD, binaries.KWOK, binaries.HELM, binaries.CONTAINERD):
        packages = [binary.package for binary in binaries.ALL.values() if binary.module == module]
        environment = {**os.environ, "GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
        listed = subprocess.run(
            ["go", "list", "-f", "{{.Name}}", *packages],
            cwd=module.directory,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert listed.returncode == 0, listed.stderr
        assert set(listed.stdout.split()) == {"main"}


@pytest.fixture(scope="session")
def every_program(programs: Callable[..., dict[str, Path]]) -> dict[str, Path]:
    """All of them: from a cold machine this takes most of the time of all tests."""
    return programs(*binaries.ALL)


@pytest.mark.parametrize("name", binaries.ALL)
async def test_every_program_runs_and_says_its_version(name: str, every_program: dict[str, Path]) -> None:
    version = await locate.program_version(every_program[name], binaries.ALL[name])
    assert version is not None
    if every_program[name] == build.cached(binaries.ALL[name]):
        assert locate.dotted(version) == binaries.ALL[name].module.version
    else:
        assert binaries.ALL[name].module.fits(version)
