"""Every command in the README and the guides is run, in order, as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simgpu.cluster import binaries

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
ENDLESS = re.compile(r" (-w|-f)$|label_nodes|(simgpu|fakedev-)\s?exporter")  # commands that run until they are stopped
ELSEWHERE = ("make test", "make check", "make bench")  # run by whoever runs this


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    return [
        line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line and not line.startswith("#")
    ]


@pytest.fixture
def environment(tmp_path: Path, programs: Callable[..., dict[str, Path]]) -> Iterator[dict[str, str]]:
    programs(*binaries.LOCAL_CLUSTER)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PATH": path}
    yield settings
    for written in ("out.csv", "load.png", "rtx-a5000.yaml"):
        (ROOT / written).unlink(missing_ok=True)
    for name in ("simgpu", "left", "right", "other"):
        subprocess.run(["simgpu", "down", "--name", name], env=settings, check=True, capture_output=True)


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Commands that are stopped when the page is done."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_work(
    page: Path, environment: dict[str, str], running: list[subprocess.Popen[bytes]]
) -> None:
    script = commands(page)
    assert script
    for command in script:
        if command in ELSEWHERE:
            continue
        if ENDLESS.search(command):
            running.append(subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=ROOT, env=environment))
            with pytest.raises(subprocess.TimeoutExpired):
                running[-1].wait(3)
            continue
        line = command
        done = subprocess.run(
            ["bash", "-c", line], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
