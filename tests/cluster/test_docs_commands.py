"""Every command in the README and the guides is run, in order and in one shell, as a reader would paste them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simgpu.cluster import binaries

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
README = ROOT / "README.md"
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [README, *(page for page in GUIDES if "```console" in page.read_text())]  # others are run on the real node
ENDLESS = re.compile(
    r" (-w|-f)$|label_nodes|(simgpu|fakedev-)\s?exporter(?! --help)"
)  # commands that run until they are stopped
ELSEWHERE = ("make test", "make check", "make bench")  # run by whoever runs this


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    return [
        line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line and not line.startswith("#")
    ]


class Shell:
    """A shell that goes on from one command to the next."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash"], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str) -> tuple[int, str]:
        """Exit code and output of one line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{\n{command}\n}} </dev/null\nprintf '\\n[ended %d]\\n' $?\n")
        self._process.stdin.flush()
        output = ""
        for line in self._process.stdout:
            if ended := re.fullmatch(r"\[ended (\d+)\]\n", line):
                return int(ended[1]), output
            output += line
        raise AssertionError(f"the shell ended: {output}")

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture
def environment(tmp_path: Path, programs: Callable[..., dict[str, Path]]) -> Iterator[dict[str, str]]:
    programs(*binaries.LOCAL_CLUSTER)
    settings = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    yield settings
    for written in ("out.csv", "load.html", "rtx-a5000.yaml"):
        (ROOT / written).unlink(missing_ok=True)
    for name in ("simgpu", "left", "right", "other"):
        subprocess.run([BIN / "simgpu", "down", "--name", name], env=settings, check=True, capture_output=True)


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    """Commands that are stopped when the page is done."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.terminate()
        process.communicate(timeout=20)


def start(command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a command that goes on, and wait for the first line that it prints."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first, f"{command}: ended without a word"
    assert process.poll() is None, f"{command}: {first}{process.stdout.read()}"
    return process


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_work(
    page: Path, environment: dict[str, str], running: list[subprocess.Popen[str]]
) -> None:
    script = commands(page)
    with_simgpu = {**environment, "PATH": f"{BIN}{os.pathsep}{environment['PATH']}"}
    without = os.pathsep.join(folder for folder in environment["PATH"].split(os.pathsep) if Path(folder) != BIN)
    shell = Shell({**environment, "PATH": without} if page == README else with_simgpu)
    try:
        for command in script:
            if command in ELSEWHERE:
                continue
            if ENDLESS.search(command):
                running.append(start(command, with_simgpu))
                continue
            code, output = shell.run(command)
            assert code == 0, f"{command}\n{output}"
    finally:
        shell.close()
    for process in running:
        assert process.poll() is None, f"{shlex.join(map(str, process.args))} ended"  # type: ignore[arg-type]
