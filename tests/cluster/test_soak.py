"""A short soak, as `make soak` runs a long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from soak import plan
from soak.results import Result

SECONDS, SEED = 45, 28  # a seed that begins with a kill of ours and one of the control plane: a slow machine has few
LIMIT_SECONDS, END_SECONDS = 450, 120  # of the run, and of a run that is told to end


def finished(command: list[str]) -> tuple[int, str]:
    """The exit status and the output of a command; if that takes too long, it is told to end, with its cluster."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except BaseException:
            process.terminate()
            try:
                sys.stdout.write(process.communicate(timeout=END_SECONDS)[0])
            finally:
                process.kill()  # unless it has ended
            raise
    return process.returncode, output


def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "soak", "--seconds", str(SECONDS), "--seed", str(SEED), "--out", str(tmp_path)]
    code, output = finished(command)
    assert code == 0, output
    result = msgspec.json.decode((tmp_path / "soak.json").read_bytes(), type=Result)
    assert any(result.faults.get(kind) for kind in plan.KILLS_OF_OURS)
    assert any(result.faults.get(kind) for kind in plan.KILLS if kind not in plan.KILLS_OF_OURS)
    assert any(result.faults.get(kind) for kind in plan.NETWORK_FAULTS)
    assert result.load["pods"] > 0
    assert result.load["claims"] > 0
    assert result.kubelet_pods > 0
    assert result.load.get("workload documents", 0) > 0
    assert result.edits
    assert result.fresh_starts >= 1
    assert all(result.growth[name].seconds > 0 for name in plan.OURS)
    assert f"seed {SEED}" in output
    assert "counters that fell                   0" in output
    if result.impossible:
        pytest.skip(f"faults without which the rest held: {result.impossible}")
