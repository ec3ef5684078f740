"""Runs the levels of tests and says what was run: `python -m tests.levels [LEVEL ...]`.

Each level is a folder beside this file; `lint` is the one without. With SIMGPU_REQUIRE=all (or a list of
levels) a skipped test counts as a failure there.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from tests import young

ROOT = Path(__file__).parent.parent
ORDER = ("lint", "unit", "golden", "contract", "cluster", "e2e", "browser")
YOUNG = ("unit", "golden")  # run as on a machine that was just started
BIN = Path(sys.executable).parent

LINT: tuple[tuple[str, list[str | Path]], ...] = (
    ("ruff check", [BIN / "ruff", "check", "--quiet", "."]),
    ("ruff format", [BIN / "ruff", "format", "--quiet", "--check", "."]),
    ("mypy", [BIN / "mypy", "--no-error-summary"]),
    ("layers", [BIN / "lint-imports", "--no-logo"]),
)


@dataclasses.dataclass
class Result:
    """What became of one level."""

    level: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def available() -> list[str]:
    """The levels that have something in them."""
    return [level for level in ORDER if level == "lint" or any((ROOT / "tests" / level).glob("**/test_*.py"))]


def run_lint() -> Result:
    """Each linter counts as one test."""
    result = Result("lint")
    for name, command in LINT:
        outcome = subprocess.run(command, cwd=ROOT, capture_output=name == "layers", text=True, check=False)
        if outcome.returncode == 0:
            result.passed += 1
        else:
            result.failed += 1
            print(f"{outcome.stdout or ''}{name}: failed", flush=True)
    return result


def run_pytest(level: str) -> Result:
    """One pytest run over the level's folder."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        prefix = young.prefix() if level in YOUNG else []
        if level in YOUNG and not prefix:
            print("no time namespace can be made: this runs with the machine's own uptime", flush=True)
        command = [*prefix, sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", f"tests/{level}"]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        result = read_report(level, report)
    if code != 0 and not result.failed:
        result.failed += 1  # pytest itself failed: a collection error, an interrupt
    return result


def read_report(level: str, report: Path) -> Result:
    """Counts from pytest's JUnit file."""
    result = Result(level)
    if not report.exists():
        return result
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        result.failed += failed
        result.skipped += skipped
        result.passed += total - failed - skipped
    return result


def run_level(level: str) -> Result:
    """Run one level and take its time."""
    print(f"\n=== {level} ===", flush=True)
    started = time.monotonic()
    result = run_lint() if level == "lint" else run_pytest(level)
    result.seconds = time.monotonic() - started
    return result


def main(wanted: list[str]) -> int:
    """Run the levels asked for, or all, and print what became of them."""
    known = available()
    unknown = [level for level in wanted if level not in ORDER]
    if unknown:
        print(f"no such level: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    results = [run_level(level) for level in known if not wanted or level in wanted]
    print(f"\n{'level':<10} {'time':>8} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for result in results:
        print(f"{result.level:<10} {result.seconds:>6.1f} s {result.passed:>7} {result.failed:>7} {result.skipped:>8}")
    passed, failed = sum(result.passed for result in results), sum(result.failed for result in results)
    print(f"{passed} passed, {failed} failed, {sum(result.skipped for result in results)} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
