"""Every input from outside: whatever it holds, it is used or refused, and nothing breaks.

All kept inputs are tried however long that takes, and others for a short time.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.image import debian
from tests.fuzz import __main__ as command
from tests.fuzz import figures, guided, keeping, native
from tests.fuzz.inputs import served
from tests.fuzz.target import CORPUS, ROOT, kept

SECONDS = 22.0  # for all targets in Python, besides importing them
SECONDS_IN_C = 1.0  # for each: libFuzzer adds one
LIMIT_SECONDS = 900  # of a test


def tried(names: Sequence[str], seconds: float, folder: Path) -> dict[str, int]:
    """Try targets, and return how many inputs each had; fails with the input of one that breaks."""
    words = [sys.executable, "-m", "tests.fuzz.guided", "--seconds", str(seconds), *names]
    options = [f"-artifact_prefix={folder}/"]
    done = subprocess.run(
        [*words, "--", *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, guided.CORPUS_ENV: str(folder)}, text=True, errors="replace", check=False,
    )  # fmt: skip
    found: dict[str, int] = {}
    for part in done.stdout.split("target: ")[1:]:
        name, _, output = part.partition("\n")
        ended = re.search(rf"^ended: {name} (-?\d+)$", output, re.MULTILINE)
        assert ended, output[-3000:]
        assert ended[1] == "0", f"{name}: {command._relevant(output)}"
        counted = re.search(rf"{guided.COUNTED} +(\d+)", output)
        found[name] = int(counted[1]) if counted else 0
    assert done.returncode == 0, done.stdout[-3000:]
    return found


@pytest.mark.timeout(LIMIT_SECONDS)
def test_no_input_of_a_target_in_python_breaks_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("there is no atheris for this machine or this Python")
    names = command.names_in_python()
    found = tried([guided.ALL], SECONDS / len(names), tmp_path)
    assert sorted(found) == sorted(names)
    assert all(count > len(list(kept(name))) for name, count in found.items()), found
    sys.stdout.write(f"{found}\n")


@pytest.fixture(scope="module")
def _clang() -> None:
    try:
        native.program(native.NAMES[0])
    except debian.UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.usefixtures("_clang")
@pytest.mark.parametrize("name", native.NAMES)
def test_no_input_of_a_target_in_c_breaks_it_or_does_what_c_leaves_undefined(name: str, tmp_path: Path) -> None:
    assert tried([name], SECONDS_IN_C, tmp_path)[name] > len(list(native.targets()[name].seeds()))


def test_examples_of_queries_have_answers_so_that_what_is_almost_one_reaches_the_code_behind_them() -> None:
    (target,) = [target for target in served.TARGETS if target.name == "http-queries"]
    answers = {example: target.check(example) for example in target.examples}
    refused = [name for name, answer in answers.items() if not str(answer).startswith("b'HTTP/1.1 200 OK")]
    assert not refused
    (pages,) = [answer for name, answer in answers.items() if name.startswith(b"api/v1/pods/")]
    assert '"state":"running"' in str(pages)


def test_the_documentation_lists_every_target() -> None:
    table = figures.DOCUMENT.read_text().partition("\n| part | targets |\n")[2].partition("\n\n")[0]
    listed = re.findall(r"`([a-z-]+)`", table)
    assert sorted(listed) == sorted([*command.names_in_python(), *native.NAMES])


def test_the_kept_inputs_are_few_and_small_and_belong_to_a_target() -> None:
    names = {*command.names_in_python(), *native.NAMES}
    for folder in CORPUS.iterdir():
        inputs = [path.read_bytes() for path in folder.iterdir()]
        assert folder.name in names
        assert inputs
        assert len(inputs) <= keeping.MAX_FILES
        assert sum(map(len, inputs)) <= keeping.MAX_BYTES
