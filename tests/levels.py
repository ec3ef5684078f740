"""Runs the levels of tests and reports what was run: `python -m tests.levels [LEVEL ...]`.

Each level is a folder beside this file; `lint` is the one without. Levels do not disturb each other, so two run at a
time, and each prints its output when it ends. Before them come what they need: Python packages, the programs of
`native/` and those of Kubernetes, side by side too; this module itself needs no more than `make setup`. With
SIMGPU_REQUIRE=all (or a list of levels) a skipped test counts as a failure there.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

from simgpu.cluster import binaries
from tests import young

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
ORDER = ("lint", "unit", "golden", "contract", "fuzz", "cluster", "e2e", "browser")
YOUNG = ("unit", "golden")  # run as on a machine that was just started
SPREAD = {  # over two processes; with a control plane or a node each, files stay together
    "unit": ("-n", "2"),
    "contract": ("-n", "2", "--dist", "loadfile"),
    "cluster": ("-n", "2", "--dist", "loadfile"),
    "e2e": ("-n", "2", "--dist", "loadfile"),
}

# What is long and what others wait for starts first.
START = ("packages", "programs", "native", "cluster", "e2e", "contract", "unit", "golden", "fuzz", "lint", "browser")
AT_ONCE = 2
NEEDS: dict[str, tuple[str, ...]] = {
    "native": ("packages",),
    "lint": ("packages",),
    "unit": ("packages",),
    "golden": ("packages", "native"),
    "contract": ("packages", "native"),
    "fuzz": ("packages", "native"),
    "cluster": ("packages", "native", "programs"),
    "e2e": ("packages", "native", "programs"),
    "browser": ("packages", "native", "programs"),
}
PREPARATIONS: dict[str, list[str]] = {
    "packages": ["make", "--no-print-directory", "dev"],
    "native": [sys.executable, "-m", "native.build"],
    # All but the one that only a benchmark is compared with.
    "programs": [str(BIN / "simgpu"), "tools", *(name for name in binaries.ALL if name != "kwokctl")],
}
LINT: dict[str, list[str]] = {
    "ruff check": [str(BIN / "ruff"), "check", "--quiet", "."],
    "ruff format": [str(BIN / "ruff"), "format", "--quiet", "--check", "."],
    "mypy": [str(BIN / "mypy"), "--no-error-summary"],
    "layers": [str(BIN / "lint-imports"), "--no-logo"],
}
HEARTBEAT_SECONDS = 30.0
SLOWEST = 10


@dataclasses.dataclass
class Result:
    """What became of one level, or of something prepared for it."""

    name: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    tests: list[tuple[float, str]] = dataclasses.field(default_factory=list)


def available() -> list[str]:
    """The levels that have something in them."""
    return [level for level in ORDER if level == "lint" or any((ROOT / "tests" / level).glob("**/test_*.py"))]


def preparations(levels: list[str]) -> list[str]:
    """What has to be there before these levels can run."""
    return [name for name in PREPARATIONS if any(name in NEEDS.get(level, ()) for level in levels)]


class Runner:
    """Runs jobs, at most so many at a time, each as soon as what it needs is done."""

    def __init__(self, jobs: list[str], logs: Path) -> None:
        self._waiting = [name for name in START if name in jobs]
        self._logs = logs
        self._alone = len(jobs) == 1
        self._started: dict[str, float] = {}
        self._changed = asyncio.Condition()
        self.results: dict[str, Result] = {}

    async def run(self) -> None:
        """Run everything."""
        beat = asyncio.create_task(self._heartbeat())
        try:
            await asyncio.gather(*(self._work() for _ in range(AT_ONCE)))
        finally:
            beat.cancel()

    async def _work(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._waiting or self._next() is not None)
                name = self._next()
                if name is None:
                    return
                self._waiting.remove(name)
            self._started[name] = time.monotonic()
            result = await self._one(name)
            result.seconds = time.monotonic() - self._started.pop(name)
            async with self._changed:
                self.results[name] = result
                self._changed.notify_all()

    def _next(self) -> str | None:
        """The first job, if its needs are done, or what is prepared meanwhile: a short level does not delay a long one.

        One that a failed preparation makes impossible runs too, and fails.
        """
        pending = {*self._waiting, *self._started}
        ready = [name for name in self._waiting if not pending.intersection(NEEDS.get(name, ()))]
        levels = [name for name in self._waiting if name not in PREPARATIONS]
        return next((name for name in ready if name in PREPARATIONS or name == levels[0]), None)

    async def _one(self, name: str) -> Result:
        log = self._logs / f"{name}.txt"
        if name in PREPARATIONS:
            result = Result(name)
            result.failed = int(await self._call(PREPARATIONS[name], log) != 0)
        elif name == "lint":
            result = await self._lint(log)
        else:
            result = await self._pytest(name, log)
        if not self._alone and log.stat().st_size:
            print(f"\n=== {name} ===\n{log.read_text(errors='replace').rstrip()}", flush=True)
        return result

    async def _lint(self, log: Path) -> Result:
        """Each linter counts as one test."""
        result = Result("lint")
        for name, command in LINT.items():
            scratch = log.with_suffix(".part")
            failed = await self._call(command, scratch, capture=True) != 0
            result.passed, result.failed = result.passed + (not failed), result.failed + failed
            if failed:
                text = f"{scratch.read_text()}{name}: failed\n"
                print(text, end="", flush=True) if self._alone else log.open("a").write(text)
        log.touch()
        return result

    async def _pytest(self, level: str, log: Path) -> Result:
        """One pytest run over the level's folder."""
        report = self._logs / f"{level}.xml"
        prefix = young.prefix() if level in YOUNG else []
        if level in YOUNG and not prefix:
            print(f"{level}: no time namespace can be made, so it runs with the machine's own uptime", flush=True)
        command = [*prefix, sys.executable, "-m", "pytest", "-q", *SPREAD.get(level, ()), f"tests/{level}"]
        command.append(f"--junitxml={report}")
        code = await self._call(command, log)
        result = read_report(level, report)
        if code != 0 and not result.failed:
            result.failed += 1  # pytest itself failed: a collection error, an interrupt
        return result

    async def _call(self, command: list[str], log: Path, *, capture: bool = False) -> int:
        """Run a command; its output goes to the log, or straight on where nothing else runs."""
        with log.open("wb") as file:
            output = None if self._alone and not capture else file
            # Compiled modules are kept: pytest rewrites every module of tests, in each of its processes.
            environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=environ, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                return await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()

    async def _heartbeat(self) -> None:
        while not self._alone:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            doing = [f"{name} {self._progress(name)}" for name in self._started]
            print(f"… {', '.join(doing)}", flush=True)

    def _progress(self, name: str) -> str:
        log = self._logs / f"{name}.txt"
        text = log.read_text(errors="replace") if log.exists() else ""
        percents = re.findall(r"\[ *(\d+)%\]", text)
        reached = f"{percents[-1]} %" if percents else text.strip().rpartition("\n")[2][:60].strip() or "started"
        return f"{reached}, {time.monotonic() - self._started[name]:.0f} s"


def read_report(level: str, report: Path) -> Result:
    """Counts and times from pytest's JUnit file."""
    result = Result(level)
    if not report.exists():
        return result
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        result.failed += failed
        result.skipped += skipped
        result.passed += total - failed - skipped
        for case in suite.iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            result.tests.append((float(case.get("time", 0)), f"{level}/{name}"))
    return result


def print_summary(results: list[Result], seconds: float) -> None:
    """The table of levels, the slowest tests, and the closing line."""
    print(f"\n{'level':<10} {'time':>8} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for result in results:
        counts = f"{result.passed:>7} {result.failed:>7} {result.skipped:>8}"
        print(f"{result.name:<10} {result.seconds:>6.1f} s {'' if result.name in PREPARATIONS else counts}".rstrip())
    print(f"{'together':<10} {seconds:>6.1f} s")
    slowest = sorted((test for result in results for test in result.tests), reverse=True)[:SLOWEST]
    if slowest:
        print("\nslowest tests")
        for taken, name in slowest:
            print(f"{taken:>8.1f} s  {name}")
    passed, failed = sum(result.passed for result in results), sum(result.failed for result in results)
    print(f"\n{passed} passed, {failed} failed, {sum(result.skipped for result in results)} skipped")


def main(wanted: list[str]) -> int:
    """Run the levels asked for, or all, and print what became of them."""
    known = available()
    unknown = [level for level in wanted if level not in ORDER]
    if unknown:
        print(f"no such level: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    levels = [level for level in known if not wanted or level in wanted]
    jobs = [*preparations(levels), *levels]
    print(f"running {', '.join(jobs)}; {AT_ONCE} at a time", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:

        async def run() -> list[Result]:
            runner = Runner(jobs, Path(scratch))
            await runner.run()
            return [runner.results[name] for name in jobs]

        results = asyncio.run(run())
    print_summary(results, time.monotonic() - started)
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
