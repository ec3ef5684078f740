"""A load test whose API server is restarted in mid-run: survived or reported, and never a hang."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from simgpu.cli import progress
from simgpu.cluster import lifecycle, processes
from simgpu.kube import client as kube_client
from simgpu.kube import kubeconfig, resources
from tests.fixtures.cluster import eventually

SIMGPU = Path(sys.executable).parent / "simgpu"


async def test_a_run_survives_a_restart_of_the_api_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = lifecycle.UpSettings(name="restarted", nodes=1)
    outcome = await lifecycle.up(settings, progress.Plain())
    folder = Path(outcome.status.kubeconfig).parent
    try:
        environ = {**os.environ, "KUBECONFIG": outcome.status.kubeconfig, "CL2_JOB_RUNNING_TIME_MS": "1000"}
        process = await asyncio.create_subprocess_exec(
            SIMGPU, "loadtest", "churn", "--nodes", "2", "--report-dir", tmp_path / "report", env=environ,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with kube_client.Client(kubeconfig.load(outcome.status.kubeconfig)) as client:

            async def running() -> bool:
                pods = await client.list(resources.PODS)
                return any(pod.status.phase == "Running" for pod in pods)

            await eventually(running)
        await processes.stop(folder, only=frozenset({"kube-apiserver"}))
        await lifecycle.up(settings, progress.Plain())
        async with asyncio.timeout(180):
            said, _ = await process.communicate()
        assert process.returncode in {0, 1}, said.decode()
        results = json.loads((tmp_path / "report" / "results.json").read_text())
        assert results["pods"] > 0
        assert results["leftovers"] == []
        assert "nothing is left" in said.decode()
    finally:
        await lifecycle.down("restarted", progress.Plain())
