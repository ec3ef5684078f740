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

@given(st.none())
def test_left_out(value):
    raise AssertionError
"""


def test_chosen_targets_are_tried_and_what_breaks_is_shown_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    file = tmp_path / "test_properties.py"
    file.write_text(PROPERTIES)
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "10000", "--file", str(file), "go*", "bad"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "again: SIMGPU_FUZZ_INPUTS=10000 " in done.stdout
    assert "assert 1000 < 1000" in done.stdout
    assert [line.split() for line in done.stdout.splitlines()[-2:]] == [
        ["good", "10,000", "good"],
        ["FAILED", "10,000", "bad"],
    ]
