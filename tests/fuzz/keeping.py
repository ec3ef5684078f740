"""The corpus in the tree: of what runs found, the few inputs that reach most, and bounds on their number and size.

What an input of a target in Python reaches is traced line by line: slow, and enough for some hundred inputs. Targets in
C start from pages that the project describes; of them, inputs are kept by hand that once broke one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.target import CORPUS, ROOT, SCRATCH_ENV, Target, kept

MAX_FILES = 24  # of a target
MAX_BYTES = 12 << 10  # of a target
_MAX_INPUT = 2048  # bytes
_MAX_TRACED = 400  # inputs of a target
_SOURCES = str(ROOT / "src")

Lines = set[tuple[str, int, int]]  # pairs of lines that follow one another, in a file


def keep(names: list[str], work: Path) -> int:
    """Add what was found for these targets in Python to their corpus; return 1 if an input broke one."""
    failed = False
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ[SCRATCH_ENV] = scratch
        from tests.fuzz.registry import TARGETS  # noqa: PLC0415 - it imports most of the project

        for name in names:
            found = work / "corpus" / name / "found"
            if name in TARGETS and found.is_dir():
                failed |= _keep(TARGETS[name], found)
    return int(failed)


def _keep(target: Target, found: Path) -> bool:
    known = set(kept(target.name)) | {path.read_bytes() for path in found.iterdir()}
    inputs = sorted((data for data in known if len(data) <= _MAX_INPUT), key=lambda item: (len(item), item))
    step = max(1, len(inputs) // _MAX_TRACED)
    try:
        reached = {data: traced(target, data) for data in inputs[::step]}
        before = set[tuple[str, int, int]]().union(*(traced(target, data) for data in target.examples))
    except Exception as error:  # noqa: BLE001 - whatever the target raises
        print(f"{target.name}: an input breaks it: {type(error).__name__}: {error}")
        return True
    chosen = best(reached, before)
    folder = CORPUS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for data in chosen:
        (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    if not chosen:
        folder.rmdir()
    print(f"{target.name}: {len(chosen)} kept, {sum(map(len, chosen))} bytes")
    return False


def traced(target: Target, data: bytes) -> Lines:
    """Return what an input reaches in the project's sources."""
    found: Lines = set()

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_SOURCES):
            return None
        last = 0

        def line(frame: FrameType, _event: str, _argument: Any) -> Any:
            nonlocal last
            found.add((frame.f_code.co_filename, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    sys.settrace(call)
    try:
        target.check(data)
    finally:
        sys.settrace(None)
    return found


def best(reached: dict[bytes, Lines], before: Iterable[tuple[str, int, int]]) -> list[bytes]:
    """Return inputs within the bounds that reach most besides what was reached before: each the one that adds most."""
    chosen: list[bytes] = []
    seen, left = set(before), dict(reached)
    while left and len(chosen) < MAX_FILES:
        data = max(left, key=lambda item: (len(left[item] - seen), -len(item), item))
        if not left[data] - seen:
            break
        if sum(map(len, chosen)) + len(data) <= MAX_BYTES:
            chosen.append(data)
            seen |= left[data]
        del left[data]
    return chosen
