"""Tries every input from outside with very many inputs: `python -m tests.fuzz [--inputs N] [--jobs N] [TARGET ...]`.

A target has a name and a command that tries so many inputs from a seed, and fails if one of them breaks it. There are
those of `guided`, and the property tests that have `fuzzing.inputs`. Targets run in rounds, each in a process of its
own, so that a long run needs no more memory than a short one. A failure is printed with the command that repeats it,
its input is kept below `build/fuzz`, and the others go on. What reached further is kept there too, for the next rounds,
and so are the numbers of inputs; `--keep` adds the best inputs to the corpus in the tree, and the numbers to those that
the documentation quotes. `--resume` tries only what is missing after all these.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tests.fixtures.fuzzing import INPUTS_ENV
from tests.fuzz import figures, guided, keeping, native
from tests.fuzz.target import ROOT

INPUTS = 1_000_000
ROUND = 250_000  # inputs of one process
WORK_ENV = "SIMGPU_FUZZ_WORK"
WORK = Path(os.environ.get(WORK_ENV, ROOT / "build" / "fuzz"))  # what runs find and count
PROPERTIES = ("tests/contract/test_annotated.py", "tests/contract/test_device_type.py")
_NAMES = re.compile(r'^ +(?:Target\()?"([a-z-]+)",(?: |$)', re.MULTILINE)
_SHOWN = 6000  # characters of the output of a failure


class Tried(NamedTuple):
    """What became of a round: the number of inputs, and of a failure its output."""

    inputs: int
    failure: str = ""


class FuzzTarget(Protocol):
    """What is tried."""

    @property
    def name(self) -> str:
        """The name."""

    def run(self, inputs: int, seed: int) -> Tried:
        """Try so many inputs."""


class Property(NamedTuple):
    """A property test, by its pytest id."""

    name: str
    test: str

    def run(self, inputs: int, seed: int) -> Tried:
        """Run the test: it takes the number of inputs from the environment."""
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", f"--hypothesis-seed={seed}",
            self.test,
        ]  # fmt: skip
        done = _run(command, {INPUTS_ENV: str(inputs)})
        if done.returncode == 0:
            return Tried(inputs)
        return Tried(inputs, f"{done.stdout}\nagain: {shlex.join([f'{INPUTS_ENV}={inputs}', *command])}\n")


class Guided(NamedTuple):
    """A target of `guided`, in a module of them."""

    name: str
    module: str = guided.REGISTRY

    def run(self, inputs: int, seed: int) -> Tried:
        """Run libFuzzer: the input that breaks the target is kept, and is enough to repeat the failure."""
        failures = WORK / "failures"
        failures.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.fuzz.guided", "--module", self.module, self.name, "--"]
        limits = [f"-runs={inputs}", f"-seed={seed % 2**32 or 1}", f"-artifact_prefix={failures}/{self.name}-"]
        done = _run([*command, *limits], {guided.CORPUS_ENV: str(WORK / "corpus")})
        counted = re.search(rf"{guided.COUNTED} +(\d+)", done.stdout)
        tried = int(counted[1]) if counted else 0
        if done.returncode == 0:
            return Tried(tried)
        written = re.search(r"Test unit written to (\S+)", done.stdout)
        again = shlex.join([*command, *([written[1]] if written else limits)])
        return Tried(tried, f"{_relevant(done.stdout)}\nagain: {again}\n")


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", check=False,
    )  # fmt: skip


def _relevant(output: str) -> str:
    """Return an output from the error on, without the progress before it."""
    found = re.search(r" === Uncaught|==\d+==|runtime error:|Traceback", output)
    return (output[found.start() :] if found else output[-_SHOWN:])[:_SHOWN]


def properties(files: tuple[str, ...]) -> list[FuzzTarget]:
    """Return all targets in files of property tests."""
    found: list[FuzzTarget] = []
    for file in files:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", f"--rootdir={ROOT}", file]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listed.returncode:
            sys.exit(f"{listed.stdout}{listed.stderr}the targets of {file} cannot be listed")
        tests = [line.partition("::")[2] for line in listed.stdout.splitlines() if "::" in line]
        found += (Property(_short(test), f"{file}::{test}") for test in tests)
    return found


def _short(test: str) -> str:
    """Return the parameter in a test's id, or the name of the test without what all have."""
    found = re.search(r"\[(.*)\]$", test)
    return found[1] if found else test.removeprefix("test_")


def names_in_python() -> list[str]:
    """Return the names of all targets in Python, without importing them, which takes long."""
    sources = sorted((Path(__file__).parent / "inputs").glob("*.py"))
    found = (path.read_text().partition("\nTARGETS = (")[2] for path in sources)
    return [name for text in found for name in _NAMES.findall(text)]


def known(files: tuple[str, ...], module: str) -> list[FuzzTarget]:
    """Return all targets; files of property tests or a module of others are instead of those known."""
    if module:
        return [Guided(name, module) for name in guided.in_python(module)]
    if files:
        return properties(files)
    return [*map(Guided, (*names_in_python(), *native.NAMES)), *properties(PROPERTIES)]


class Round(NamedTuple):
    """Some inputs for one target."""

    target: FuzzTarget
    inputs: int
    seed: int

    def run(self) -> Tried:
        """Try them."""
        return self.target.run(self.inputs, self.seed)


def rounds(target: FuzzTarget, inputs: int, first: int) -> Iterator[Round]:
    """Yield the rounds of a target, from the first seed."""
    for seed, start in enumerate(range(0, inputs, ROUND), first):
        yield Round(target, min(ROUND, inputs - start), seed)


def run(chosen: list[FuzzTarget], *, inputs: int, jobs: int, seed: int, before: figures.Figures) -> int:
    """Try all, as many as are missing after those before, and return how many targets failed."""
    began, done, failed = time.monotonic(), {target.name: 0 for target in chosen}, set[str]()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        missing = {target: inputs - before.inputs.get(target.name, 0) for target in chosen}
        items = (item for target in chosen for item in rounds(target, missing[target], seed))
        by_turns = sorted(items, key=lambda item: item.seed)
        running = {pool.submit(item.run): item for item in by_turns}
        for future in concurrent.futures.as_completed(running):
            target, _, its_seed = running[future]
            tried, failure = future.result()
            done[target.name] += tried
            _count(target.name, tried, failed=bool(failure))
            if failure:
                failed.add(target.name)
                print(failure, flush=True)
            speed = sum(done.values()) / (time.monotonic() - began)
            print(
                f"{target.name}: {done[target.name]:,} of {missing[target]:,} (seed {its_seed}); "
                f"{speed:,.0f} a second in all",
                flush=True,
            )
    for name, tried in done.items():
        print(f"{'FAILED' if name in failed else 'good':<7} {tried:>12,}  {name}")
    return len(failed)


def _count(name: str, tried: int, *, failed: bool) -> None:
    """Add a round to the figures of all runs."""
    found = figures.counted(WORK)
    found.add(name, tried, failed=int(failed))
    figures.count(WORK, found)


def main() -> int:
    """Read the options, and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Try targets with very many inputs.")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="of each target (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="of the first round, the next ones count on (default: a new one)")
    parser.add_argument("--list", action="store_true", help="list the targets only")
    parser.add_argument(
        "--resume", action="store_true", help="try only what is missing after the runs before, kept ones included"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep what earlier runs found and counted in the tree, and try nothing"
    )
    parser.add_argument("--file", action="append", help="a file of property tests instead of the targets known")
    parser.add_argument("--module", default="", help="a module of guided targets instead of those known")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names or patterns; all without one")
    options = parser.parse_args()
    there = known(tuple(options.file or ()), options.module)
    wanted = options.targets or ["*"]
    chosen = [item for item in there if any(fnmatch.fnmatchcase(item.name, pattern) for pattern in wanted)]
    if options.list or not chosen:
        print("\n".join(item.name for item in there))
        return 0 if options.list else 2
    if options.keep:
        guided_names = [item.name for item in chosen if isinstance(item, Guided)]
        figures.keep(WORK, guided_names)
        return keeping.keep(guided_names, WORK)
    seed = random.randrange(2**32) if options.seed is None else options.seed
    before = figures.before(WORK) if options.resume else figures.Figures()
    inputs, jobs = max(1, options.inputs), max(1, options.jobs)
    return 1 if run(chosen, inputs=inputs, jobs=jobs, seed=seed, before=before) else 0


if __name__ == "__main__":
    sys.exit(main())
