"""`make fuzz`: it tries what it is asked to, and reports what breaks."""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import figures, guided, native
from tests.fuzz.__main__ import WORK_ENV, names_in_python
from tests.fuzz.target import DEEP

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
    environment = {**os.environ, WORK_ENV: str(tmp_path / "work")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "again: SIMGPU_FUZZ_INPUTS=10000 " in done.stdout
    assert "assert 1000 < 1000" in done.stdout
    assert [line.split() for line in done.stdout.splitlines()[-2:]] == [
        ["good", "10,000", "good"],
        ["FAILED", "10,000", "bad"],
    ]


def test_a_run_that_was_stopped_is_resumed_with_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "test_properties.py"
    file.write_text(PROPERTIES)
    environment = {**os.environ, WORK_ENV: str(tmp_path / "work")}
    for options, tried in (("30", "30"), ("50 --resume", "20"), ("50 --resume", "0"), ("5", "5")):
        command = [sys.executable, "-m", "tests.fuzz", "good", "--file", str(file), "--inputs", *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1].split() == ["good", tried, "good"]
    assert figures.counted(tmp_path / "work") == figures.Figures({"good": 55})


def test_kept_figures_add_up_and_a_new_clone_tries_only_what_is_missing_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(figures, "DOCUMENT", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("before\n<!-- fuzz -->\nold\n<!-- /fuzz -->\nafter\n")
    first, second = tmp_path / "clone", tmp_path / "another clone"
    figures.count(first, figures.Figures({"one": 700_000, "two": 5}, {"two": 1}))
    figures.keep(first, ["one"])
    figures.keep(first, ["one"])
    assert figures.before(first) == figures.Figures({"one": 700_000, "two": 5}, {"two": 1})
    figures.keep(first, ["two"])
    figures.count(second, figures.Figures({"one": 300_000}))
    assert figures.before(second).inputs == {"one": 1_000_000, "two": 5}
    figures.keep(second, ["one", "two"])
    assert figures.load(figures.RESULTS) == figures.Figures({"one": 1_000_000, "two": 5}, {"two": 1})
    before, _, after = figures.DOCUMENT.read_text().partition(figures.table(figures.load(figures.RESULTS)))
    assert (before, after) == ("before\n<!-- fuzz -->\n", "<!-- /fuzz -->\nafter\n")


def test_the_documentation_quotes_the_figures_that_were_kept() -> None:
    kept = figures.load(figures.RESULTS)
    assert kept.inputs.keys() == {*names_in_python(), *native.NAMES}
    assert figures.table(kept) in figures.DOCUMENT.read_text()


PLANTED = """
from simgpu.topology import inline
from simgpu.catalog import models
from simgpu import errors
from tests.fuzz.target import Target

CATALOG = models.load()

def check(data):
    try:
        found = inline.parse(data.decode("latin-1"), CATALOG, field="x")
    except errors.InputError:
        return
    assert len(found.gpus) != 7

TARGETS = {"planted": Target("planted", check, (b"h200:3",), (), 64)}
"""


@pytest.mark.timeout(240)
def test_coverage_leads_to_an_input_that_breaks_a_target_and_the_input_is_kept_to_repeat_it(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("there is no atheris for this machine or this Python")
    (tmp_path / "planted_targets.py").write_text(PLANTED)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), WORK_ENV: str(tmp_path / "work")}
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "100000", "--module", "planted_targets"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[0] == "FAILED"
    (again,) = [line.removeprefix("again: ") for line in done.stdout.splitlines() if line.startswith("again: ")]
    kept = Path(shlex.split(again)[-1])
    assert b":7" in kept.read_bytes() or b"," in kept.read_bytes()
    repeated = subprocess.run(shlex.split(again), capture_output=True, text=True, check=False, env=environment)
    assert repeated.returncode == 1
    assert "AssertionError" in repeated.stdout


def test_an_input_that_takes_too_much_of_the_processors_time_breaks_a_target() -> None:
    guided.bounded(len, math.inf)(b"x")
    with pytest.raises(guided.TooSlow, match="of the processor's time"):
        guided.bounded(len, -1.0)(b"x")


def test_the_project_is_imported_only_when_it_can_be_instrumented() -> None:
    script = "import sys, tests.fuzz.guided; print([name for name in sys.modules if name.startswith('simgpu')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


RECORDING = """
import pathlib
from tests.fuzz.target import Target

def check(data):
    with pathlib.Path({file!r}).open("a") as file:
        print(data.hex(), file=file)

EXAMPLES = (b"{{}}", b"x", b"y" * 9000, *(bytes([one]) for one in range(60)))
TARGETS = {{"recording": Target("recording", check, EXAMPLES)}}
"""


def test_a_target_tries_all_that_it_starts_from_even_if_no_time_is_left(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("there is no atheris for this machine or this Python")
    file = tmp_path / "tried"
    (tmp_path / "recording_targets.py").write_text(RECORDING.format(file=str(file)))
    command = [sys.executable, "-m", "tests.fuzz.guided", "--module", "recording_targets", "--seconds", "0"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, "recording"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    inputs = {bytes.fromhex(line) for line in file.read_text().splitlines()}
    assert inputs >= {b"", b"{}", b"x", b"y" * 9000, b"{" + DEEP + b"}", *(bytes([one]) for one in range(60))}
    assert len(inputs) == 65
