"""Load tests in which a part of the cluster is restarted in mid-run: survived or reported, and never a hang."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from simgpu.cli import progress
from simgpu.cluster import lifecycle, processes
from simgpu.kube import resources
from simgpu.kube.client import Client
from tests.fixtures.cluster import Cluster, eventually

SIMGPU = Path(sys.executable).parent / "simgpu"
SETTINGS = lifecycle.UpSettings(name="restarted", nodes=1)
POD = """
apiVersion: v1
kind: Pod
metadata: {name: "{{.Name}}", labels: {job-type: short-lived}}
spec:
  restartPolicy: Never
  tolerations: [{operator: Exists}]
  nodeSelector: {type: kwok}
  containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose parts may be stopped."""
    home = tmp_path_factory.mktemp("restarted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home))
        outcome = asyncio.run(lifecycle.up(SETTINGS, progress.Plain()))
        try:
            yield Cluster(SETTINGS.name, Path(outcome.status.kubeconfig), home)
        finally:
            asyncio.run(lifecycle.down(SETTINGS.name, progress.Plain()))


async def begin(cluster: Cluster, *line: str | Path, milliseconds: int) -> asyncio.subprocess.Process:
    """Start a run whose jobs last so long."""
    environ = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "CL2_JOB_RUNNING_TIME_MS": str(milliseconds)}
    return await asyncio.create_subprocess_exec(
        SIMGPU, "loadtest", *line, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


async def stop(cluster: Cluster, component: str) -> None:
    await processes.stop(cluster.kubeconfig.parent, only=frozenset({component}))


async def pods_of(client: Client, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await client.raw(resources.PODS.path(namespace=namespace)))["items"]
    return found


async def test_a_run_survives_a_restart_of_the_api_server(restarted: Cluster, tmp_path: Path) -> None:
    process = await begin(restarted, "churn", "--nodes", "2", "--report-dir", tmp_path / "report", milliseconds=1000)
    async with restarted.client() as client:

        async def running() -> bool:
            return any(pod.status.phase == "Running" for pod in await client.list(resources.PODS))

        await eventually(running)
    await stop(restarted, "kube-apiserver")
    await lifecycle.up(SETTINGS, progress.Plain())
    async with asyncio.timeout(180):
        said, _ = await process.communicate()
    assert process.returncode in {0, 1}, said.decode()
    results = json.loads((tmp_path / "report" / "results.json").read_text())
    assert results["pods"] > 0
    assert results["leftovers"] == []
    assert "nothing is left" in said.decode()


async def test_pods_whose_run_time_passed_while_kwok_was_stopped_end_when_it_is_back(
    restarted: Cluster, tmp_path: Path
) -> None:
    phases = [
        {
            "namespaceRange": {"min": 1, "max": 1}, "replicasPerNamespace": 2, "tuningSet": rate,
            "objectBundle": [{"basename": kind, "objectTemplatePath": f"{kind}.yaml"}],
        }
        for kind, rate in (("pod", "fast"), ("map", "slow"))
    ]  # fmt: skip
    document = {
        "name": "plain",
        "namespace": {"prefix": "plain"},
        "tuningSets": [
            {"name": "fast", "qpsLoad": {"qps": 50}},
            {"name": "slow", "qpsLoad": {"qps": 0.001}},  # so that the run lasts until it is interrupted
        ],
        "dependencies": [
            {"name": "nodes", "method": "DRAKWOKDriver", "params": {"nodes": 1, "allocation": "device-plugin"}}
        ],
        "steps": [{"name": "pods", "phases": phases}],
    }
    (tmp_path / "pod.yaml").write_text(POD)
    (tmp_path / "map.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{.Name}}'}\n")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    process = await begin(restarted, config, "--report-dir", tmp_path / "report", milliseconds=600_000)
    try:
        async with restarted.client() as client:

            async def all_in(phase: str) -> bool:
                found = await client.list(resources.PODS, namespace="plain-1")
                return len(found) == 2 and all(pod.status.phase == phase for pod in found)

            await eventually(lambda: all_in("Running"))
            await stop(restarted, "kwok")
            # Ten minutes later, without the wait.
            past = (datetime.now(UTC) - timedelta(minutes=11)).strftime("%Y-%m-%dT%H:%M:%SZ")
            for name in ("pod-0", "pod-1"):
                patch = {"status": {"startTime": past}}
                await client.merge_patch(resources.PODS, name, patch, namespace="plain-1", subresource="status")
            await lifecycle.up(SETTINGS, progress.Plain())
            await eventually(lambda: all_in("Succeeded"))  # in less than the ten minutes of a time counted anew
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = await process.communicate()
    assert "nothing is left" in said.decode()
