"""The corpus in the tree: of what runs found, the few inputs that reach most, and bounds on their number and size."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import guided
from tests.fuzz.target import CORPUS, ROOT

MAX_FILES = 24  # of a target
MAX_BYTES = 12 << 10  # of a target


def keep(names: list[str], work: Path) -> int:
    """Add what was found for these targets to their corpus; return 1 if that failed for one."""
    failed = False
    for name in names:
        found = work / "corpus" / name / "found"
        if found.is_dir() and any(found.iterdir()):
            failed |= _keep(name, found)
    return int(failed)


def _keep(name: str, found: Path) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        chosen = Path(scratch) / "chosen"
        chosen.mkdir()
        before = CORPUS / name
        before.mkdir(parents=True, exist_ok=True)
        folders = map(str, (chosen, before, found))
        command = [sys.executable, "-m", "tests.fuzz.guided", name, "--", "-set_cover_merge=1", *folders]
        environment = {**os.environ, guided.CORPUS_ENV: str(Path(scratch) / "work")}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
        if done.returncode:
            print(f"{name}: {done.stdout.decode(errors='replace')[-2000:]}")
            return True
        for path in before.iterdir():
            path.unlink()
        kept = smallest([path.read_bytes() for path in chosen.iterdir()])
        for data in kept:
            (before / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    print(f"{name}: {len(kept)} kept, {sum(map(len, kept))} bytes")
    return False


def smallest(inputs: list[bytes]) -> list[bytes]:
    """Return as many inputs as the bounds allow: small ones are tried fastest, and more of them fit."""
    kept: list[bytes] = []
    for data in sorted(inputs, key=lambda item: (len(item), item))[:MAX_FILES]:
        if sum(map(len, kept)) + len(data) <= MAX_BYTES:
            kept.append(data)
    return kept
