"""`make fuzz`: it tries what it is asked to, and reports what breaks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROPERTIES = """
from hypothesis import given, strategies as st
from tests.fixtures import fuzzing

@fuzzing.inputs(1)
@given(st.integers())
def test_good(value):
    assert value == value

@fuzzing.inputs(1)
@given(st.integers())
def test_bad(value):
    assert value < 1000
"""


def fuzz(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.fuzz", "--jobs", "2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, done.stdout + done.stderr


def test_targets_are_chosen_by_name() -> None:
    code, output = fuzz("--inputs", "500", "gpu-fract*")
    assert (code, output.splitlines()[-1].split()) == (0, ["good", "500", "gpu-fraction"])


def test_what_breaks_is_shown_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    file = tmp_path / "test_properties.py"
    file.write_text(PROPERTIES)
    code, output = fuzz("--inputs", "10000", "--file", str(file))
    assert code == 1
    assert "again: SIMGPU_FUZZ_INPUTS=10000 " in output
    assert "assert 1000 < 1000" in output
    assert [line.split()[0] for line in output.splitlines()[-2:]] == ["good", "FAILED"]
