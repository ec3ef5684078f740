"""Load tests on a cluster whose parts are restarted in mid-run or exchanged: survived or reported, never a hang."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from simgpu.cli import progress
from simgpu.cluster import binaries, build, lifecycle, populate, processes
from simgpu.kube import resources
from simgpu.kube.client import Client
from tests.fixtures.cluster import Cluster, eventually

SIMGPU = Path(sys.executable).parent / "simgpu"
KWOK_0_7 = Path(__file__).parent.parent / "fixtures" / "kwok_0_7"
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


class OtherKwok(NamedTuple):
    """A KWOK that is not the cluster's own, and its definition of stages."""

    program: Path
    definition: dict[str, Any]


@pytest.fixture(scope="module")
def kwok_0_7() -> OtherKwok:
    """KWOK 0.7, built once with Go into the cache of programs."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binaries, "MODULE", KWOK_0_7)
        program = binaries.ALL["kwok"]
        asyncio.run(build.build([program], progress.Plain(), disk_gib=1))
        path = build.cached(program)
    go = ["go", "list", "-m", "-f", "{{.Dir}}", program.module.path]
    source = Path(subprocess.run(go, cwd=KWOK_0_7, capture_output=True, text=True, check=True).stdout.strip())
    return OtherKwok(path, yaml.safe_load((source / "kustomize/crd/bases/kwok.x-k8s.io_stages.yaml").read_text()))


@pytest.fixture
async def users_kwok(restarted: Cluster, kwok_0_7: OtherKwok, tmp_path: Path) -> AsyncIterator[None]:
    """In place of the cluster's own KWOK and stages, a KWOK 0.7 with its definition of stages and stages of a user."""
    stages = list(yaml.safe_load_all((KWOK_0_7 / "stages.yaml").read_text()))
    port = json.loads((restarted.kubeconfig.parent / "cluster.json").read_text())["ports"]["kwok"]
    flags = {
        "kubeconfig": restarted.kubeconfig,
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
        "enable-crds": "Stage",
        "node-ip": "127.0.0.1",
        "node-lease-duration-seconds": 40,
        "server-address": f"127.0.0.1:{port}",
    }
    await stop(restarted, "kwok")
    async with restarted.client() as client:
        await replace_definition(client, kwok_0_7.definition)
        for stage in stages:
            await client.create(resources.STAGES, stage)
        with (tmp_path / "kwok.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                kwok_0_7.program, *(f"--{name}={value}" for name, value in flags.items()), stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()
            await replace_definition(client, None)
            await lifecycle.up(SETTINGS, progress.Plain())


async def replace_definition(client: Client, definition: dict[str, Any] | None) -> None:
    """Delete the definition of stages, and the stages with it, and create another one."""
    name = "stages.kwok.x-k8s.io"
    await client.delete(resources.CUSTOM_RESOURCE_DEFINITIONS, name)

    async def gone() -> bool:
        return await client.find(resources.CUSTOM_RESOURCE_DEFINITIONS, name) is None

    await eventually(gone)
    if definition is not None:
        await client.create(resources.CUSTOM_RESOURCE_DEFINITIONS, definition)
        await eventually(lambda: populate.stages_served(client))


@pytest.mark.usefixtures("users_kwok")
async def test_a_run_works_with_kwok_0_7_and_stages_that_end_jobs_at_once(restarted: Cluster, tmp_path: Path) -> None:
    report = tmp_path / "report"
    process = await begin(restarted, "kwok-dra", "--nodes", "2", "--report-dir", report, milliseconds=3000)
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode() + (tmp_path / "kwok.log").read_text()
    assert "KWOK: the cluster has one" in said.decode()
    assert "nothing is left" in said.decode()
    results = json.loads((report / "results.json").read_text())
    assert max(sample["running"] for sample in results["timeline"]) == 10
    async with restarted.client() as client:
        left = {stage.metadata.name for stage in await client.list(resources.STAGES)}
    assert left == {"node-initialize", "node-heartbeat-with-lease", "pod-ready", "pod-complete", "pod-delete"}
