"""How the levels of tests are run: in which order, and what is reported of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import levels

REPORT = """<?xml version="1.0"?>
<testsuites><testsuite tests="4" failures="1" errors="1" skipped="1">
<testcase classname="tests.unit.test_a" name="test_one" time="0.5"/>
<testcase classname="tests.unit.test_b" name="test_two" time="2.0"/>
</testsuite></testsuites>
"""


def test_counts_and_times_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "unit.xml"
    report.write_text(REPORT)
    result = levels.read_report("unit", report)
    assert (result.passed, result.failed, result.skipped) == (1, 2, 1)
    assert max(result.tests) == (2.0, "unit/test_b::test_two")


def test_what_levels_need_is_prepared_for_them_alone() -> None:
    assert levels.preparations(["lint", "unit"]) == ["packages"]
    assert levels.preparations(["golden"]) == ["packages", "native"]
    assert levels.preparations(["unit", "e2e"]) == ["packages", "native", "programs"]


def test_every_level_and_preparation_has_its_turn() -> None:
    assert set(levels.START) == {*levels.ORDER, *levels.PREPARATIONS}


# Those that are prepared wait for one another: they can only end where they run at the same time.
PROGRAM = """
import sys, time
from pathlib import Path
trail, name = Path(sys.argv[1]), sys.argv[2]
def write(text):
    with trail.open("a") as file:
        file.write(text + " ")
write(f"+{name}")
while not {"+native", "+programs"} <= set(trail.read_text().split()):
    time.sleep(0.01)
write(f"-{name}")
"""


async def test_nothing_starts_before_what_it_needs_and_two_run_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trail = tmp_path / "trail"
    names = ["native", "programs"]
    commands = {name: [sys.executable, "-c", PROGRAM, str(trail), name] for name in [*names, "golden", "cluster"]}
    monkeypatch.setattr(levels, "PREPARATIONS", commands)
    monkeypatch.setattr(levels, "NEEDS", {**levels.NEEDS, "native": ()})
    runner = levels.Runner(list(commands), tmp_path)
    await runner.run()
    events = trail.read_text().split()
    assert set(runner.results) == set(commands)
    for name, needs in (("golden", ["native"]), ("cluster", names)):
        for need in needs:
            assert events.index(f"-{need}") < events.index(f"+{name}")
    assert max(map(events.index, ("+native", "+programs"))) < min(map(events.index, ("-native", "-programs")))
    running = [sum(1 if event[0] == "+" else -1 for event in events[: end + 1]) for end in range(len(events))]
    assert max(running) <= levels.AT_ONCE


def test_an_unknown_level_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert levels.main(["unti"]) == 2
    assert "no such level: unti; there are: lint, unit" in capsys.readouterr().err
