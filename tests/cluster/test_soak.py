"""A short soak, as `make soak` runs a long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from soak.results import Result

SECONDS, SEED = 30, 11


def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "soak", "--seconds", str(SECONDS), "--seed", str(SEED), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result = msgspec.json.decode((tmp_path / "soak.json").read_bytes(), type=Result)
    assert result.kills >= 2
    assert sum(result.faults.values()) > result.kills
    assert result.load["pods"] > 50
    assert result.load["claims"] > 0
    assert result.edits
    assert result.fresh_starts >= 1
    assert f"seed {SEED}" in done.stdout
    assert "counters that fell                   0" in done.stdout
