"""Tries targets with inputs that coverage guides: `python -m tests.fuzz.guided [--seconds N] NAME ... [-- OPTION ...]`.

Atheris instruments the project's modules when they are imported, once for all targets in Python; each target then runs
in a process of its own, as libFuzzer ends its process. Targets in C are programs with libFuzzer in them. OPTION is one
of libFuzzer's, and the path of a file repeats that input. `SIMGPU_FUZZ_CORPUS` is where inputs that reach further are
kept for the next run.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.fuzz.target import SCRATCH_ENV, Target

CORPUS_ENV = "SIMGPU_FUZZ_CORPUS"
REGISTRY = "tests.fuzz.registry"
ALL = "all"
IN_C = "native-"  # names of targets in C begin with it
COUNTED = "stat::number_of_executed_units:"
# Of one input, which takes milliseconds. libFuzzer's limit includes the time of other processes, which is most of it on
# a busy machine, so it is for inputs that hang; slow ones are found by the processor's time, in Python.
HANG_SECONDS = 300
SLOW_SECONDS = 20.0
MEMORY_MB = 4096


def arguments(target: Target, folder: Path, options: list[str]) -> list[str]:
    """Return libFuzzer's arguments for a target: its corpus is in `folder`, beside what it starts from."""
    seeds, found, words = folder / "seeds", folder / "found", folder / "words.txt"
    for made in (seeds, found):
        made.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(target.seeds()):
        (seeds / str(number)).write_bytes(data)
    words.write_text(target.dictionary())
    settings = {
        "timeout": HANG_SECONDS, "rss_limit_mb": MEMORY_MB, "max_len": target.max_length, "dict": words,
        "print_final_stats": 1,
    }  # fmt: skip
    folders = [] if any(not option.startswith("-") for option in options) else [str(found), str(seeds)]
    return [target.name, *(f"-{name}={value}" for name, value in settings.items()), *options, *folders]


class TooSlow(Exception):
    """An input took too much of the processor's time."""


def bounded(check: Callable[[bytes], object], seconds: float) -> Callable[[bytes], None]:
    """Return a check that fails after inputs that took more seconds of the processor's time."""

    def one(data: bytes) -> None:
        began = time.process_time()
        check(data)
        if (taken := time.process_time() - began) > seconds:
            raise TooSlow(f"this input took {taken:.1f} s of the processor's time")

    return one


def timed(check: Callable[[bytes], object], seconds: float, *, least: int) -> Callable[[bytes], None]:
    """Return a check that ends the process so many seconds after the first input, but tries as many as `least` before.

    libFuzzer knows whole seconds only, and counts them from its own start.
    """
    end, count = math.inf, 0

    def one(data: bytes) -> None:
        nonlocal end, count
        if not count:
            end = time.monotonic() + seconds
        elif count >= least and time.monotonic() > end:
            print(COUNTED, count, flush=True)
            os._exit(0)
        count += 1
        check(data)

    return one


def _in_python(target: Target, folder: Path, options: list[str], seconds: float | None) -> int:
    """Try a target in a process of its own, and return its exit code."""
    import atheris  # noqa: PLC0415 - there is none for some machines

    child = os.fork()
    if not child:
        os.dup2(1, 2)
        given, check = arguments(target, folder, options), bounded(target.check, SLOW_SECONDS)
        if seconds is not None:
            files = sum(1 for _ in folder.glob("*/*"))
            check = timed(check, seconds, least=1 + files)  # libFuzzer begins with nothing, and then tries all files
        atheris.Setup(given, check)
        atheris.Fuzz()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _in_c(target: Target, folder: Path, options: list[str], seconds: float | None) -> int:
    from tests.fuzz import native  # noqa: PLC0415 - it imports what has to be instrumented first

    # Counted from the start, but looked at after all files only; 0 would be no limit.
    limit = [] if seconds is None else [f"-max_total_time={max(1, math.ceil(seconds))}"]
    command = [str(native.program(target.name)), *arguments(target, folder, [*limit, *options])[1:]]
    return subprocess.run(command, env=native.environment(), stderr=subprocess.STDOUT, check=False).returncode


def in_python(module: str) -> Mapping[str, Target]:
    """Import all targets in Python, with the project's modules instrumented."""
    import atheris  # noqa: PLC0415 - there is none for some machines

    kept = os.dup(2)
    with Path(os.devnull).open("w") as nothing:  # for a line about each module
        os.dup2(nothing.fileno(), 2)
        try:
            with atheris.instrument_imports(include=["simgpu"], enable_loader_override=False):
                found: Mapping[str, Target] = importlib.import_module(module).TARGETS
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    return found


def _is_in_c(name: str) -> bool:
    return name.startswith(IN_C)


def _all_in_c() -> Mapping[str, Target]:
    from tests.fuzz import native  # noqa: PLC0415 - it imports what has to be instrumented first

    return native.targets()


def main(words: list[str]) -> int:
    """Try each target in turn, and return 1 if one of them failed."""
    at = words.index("--") if "--" in words else len(words)
    options = words[at + 1 :]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided")
    parser.add_argument("--seconds", type=float, help="of each target, besides what it starts from")
    parser.add_argument("--module", default=REGISTRY, help="that has the targets in Python (default: %(default)s)")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"or {ALL}, which means all in Python")
    given = parser.parse_args(words[:at])
    logging.disable(logging.WARNING)
    interpreted = {} if all(map(_is_in_c, given.names)) else in_python(given.module)
    compiled = _all_in_c() if any(map(_is_in_c, given.names)) else {}
    names = list(interpreted) if given.names == [ALL] else given.names
    failed = False
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="simgpu-fuzz-", dir=memory) as scratch:
        os.environ[SCRATCH_ENV] = scratch
        for name in names:
            print(f"target: {name}", flush=True)
            folder = Path(os.environ.get(CORPUS_ENV) or scratch) / name
            run = _in_c if name in compiled else _in_python
            code = run(compiled.get(name) or interpreted[name], folder, options, given.seconds)
            print(f"ended: {name} {code}", flush=True)
            failed |= code != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
