"""Tries properties with very many inputs: `python -m tests.fuzz [--inputs N] [--jobs N] [--seed N] [TARGET ...]`.

A target has a name and a command that tries so many inputs from a seed, and fails if one of them breaks it. Those of
`PROPERTIES` are the property tests that have `fuzzing.inputs`: each takes its number from the environment. Targets run
in rounds, each in a process of its own, so that a long run needs no more memory than a short one. A failure is printed
with the command that repeats it, and the others go on.
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
from typing import NamedTuple

from tests.fixtures.fuzzing import INPUTS_ENV

ROOT = Path(__file__).parent.parent
INPUTS = 1_000_000
ROUND = 100_000  # inputs of one process
PROPERTIES = ("tests/contract/test_annotated.py", "tests/contract/test_device_type.py")


class Target(NamedTuple):
    """What is tried: a test, by its pytest id."""

    name: str
    test: str

    def command(self, seed: int) -> list[str]:
        """Return the command that tries it."""
        return [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", f"--hypothesis-seed={seed}",
            self.test,
        ]  # fmt: skip


class Round(NamedTuple):
    """Some inputs for one target."""

    target: Target
    inputs: int
    seed: int

    def run(self) -> str:
        """Try them, and return the output if that failed."""
        environment = {**os.environ, INPUTS_ENV: str(self.inputs)}
        done = subprocess.run(
            self.target.command(self.seed), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return ""
        again = shlex.join([f"{INPUTS_ENV}={self.inputs}", *self.target.command(self.seed)])
        return f"{done.stdout}{done.stderr}\nagain: {again}\n"


def targets(files: tuple[str, ...]) -> list[Target]:
    """Return all targets in files of property tests."""
    found: list[Target] = []
    for file in files:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", f"--rootdir={ROOT}", file]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listed.returncode:
            sys.exit(f"{listed.stdout}{listed.stderr}the targets of {file} cannot be listed")
        tests = [line.partition("::")[2] for line in listed.stdout.splitlines() if "::" in line]
        found += (Target(_short(test), f"{file}::{test}") for test in tests)
    return found


def _short(test: str) -> str:
    """Return the parameter in a test's id, or the name of the test without what all have."""
    found = re.search(r"\[(.*)\]$", test)
    return found[1] if found else test.removeprefix("test_")


def rounds(target: Target, inputs: int, first: int) -> Iterator[Round]:
    """Yield the rounds of a target, from the first seed."""
    for seed, start in enumerate(range(0, inputs, ROUND), first):
        yield Round(target, min(ROUND, inputs - start), seed)


def run(chosen: list[Target], *, inputs: int, jobs: int, seed: int) -> int:
    """Try all, and return how many targets failed."""
    began, done, failed = time.monotonic(), dict.fromkeys(chosen, 0), set[Target]()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        items = (item for target in chosen for item in rounds(target, inputs, seed))
        by_turns = sorted(items, key=lambda item: item.seed)
        running = {pool.submit(item.run): item for item in by_turns}
        for future in concurrent.futures.as_completed(running):
            target, tried, its_seed = running[future]
            done[target] += tried
            if output := future.result():
                failed.add(target)
                print(output, flush=True)
            speed = sum(done.values()) / (time.monotonic() - began)
            print(
                f"{target.name}: {done[target]:,} of {inputs:,} (seed {its_seed}); {speed:,.0f} a second in all",
                flush=True,
            )
    for target in chosen:
        print(f"{'FAILED' if target in failed else 'good':<7} {done[target]:>12,}  {target.name}")
    return len(failed)


def main() -> int:
    """Read the options, and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Try properties with very many inputs.")
    parser.add_argument("--inputs", type=int, default=INPUTS, help="of each target (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="of the first round, the next ones count on (default: a new one)")
    parser.add_argument("--list", action="store_true", help="list the targets only")
    parser.add_argument("--file", action="append", help="a file of property tests instead of those known")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="names or patterns; all without one")
    options = parser.parse_args()
    known = targets(tuple(options.file or PROPERTIES))
    wanted = options.targets or ["*"]
    chosen = [item for item in known if any(fnmatch.fnmatchcase(item.name, pattern) for pattern in wanted)]
    if options.list or not chosen:
        print("\n".join(item.name for item in known))
        return 0 if options.list else 2
    seed = random.randrange(2**32) if options.seed is None else options.seed
    return 1 if run(chosen, inputs=max(1, options.inputs), jobs=max(1, options.jobs), seed=seed) else 0


if __name__ == "__main__":
    sys.exit(main())
