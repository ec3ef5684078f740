"""Load tests on a real control plane: they run, measure truly, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from simgpu.cli import progress
from simgpu.kube import resources, scraping
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource
from simgpu.loadtest import abandoned
from simgpu.loadtest.dependencies import kinds, nodes
from simgpu.loadtest.measurements import percentiles
from simgpu.loadtest.running import runner
from simgpu.loadtest.running.results import RunResult
from simgpu.loadtest.scenario import loading, variables
from tests.fixtures.cluster import Cluster, eventually
from tests.fixtures.controller import Fleet
from tests.fixtures.prometheus import Prometheus

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
PERF_TESTS = ROOT / "examples" / "perf-tests"
LABEL = "simgpu.dev/loadtest"
KINDS: list[Resource[Any]] = [
    resources.NODES, resources.NAMESPACES, resources.STAGES, kinds.slices("v1"), kinds.device_classes("v1"),
    kinds.CLUSTER_ROLES, kinds.CLUSTER_ROLE_BINDINGS, resources.CUSTOM_RESOURCE_DEFINITIONS, resources.LEASES,
]  # fmt: skip
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: "{{.Name}}", labels: {group: test}}
spec:
  template:
    metadata: {labels: {group: test, job-type: short-lived}, annotations: {simgpu.dev/run-time: "{{.RunTime}}"}}
    spec:
      restartPolicy: Never
      tolerations: [{operator: Exists}]
      nodeSelector: {type: kwok}
      containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


# As in KWOK's stage-fast: pods of jobs end at once.
RIVAL = {
    "metadata": {"name": "rival"},
    "spec": {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {
            "matchLabels": {"group": "test"},
            "matchExpressions": [
                {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
                {"key": ".status.phase", "operator": "In", "values": ["Running"]},
                {"key": ".metadata.ownerReferences.[].kind", "operator": "In", "values": ["Job"]},
            ],
        },
        "next": {"statusTemplate": "phase: Succeeded\n"},
    },
}


def scenario(folder: Path, steps: list[dict[str, Any]], **top: Any) -> Path:
    document = {
        "name": "test",
        "tuningSets": [{"name": "all", "parallelismLimitedLoad": {"parallelismLimit": 50}}],
        "steps": steps,
        **top,
    }
    (folder / "job.yaml").write_text(JOB)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def phase(count: int, run_time: str = "") -> dict[str, Any]:
    item = {"basename": "job", "objectTemplatePath": "job.yaml", "templateFillMap": {"RunTime": run_time}}
    spaces = {"min": 1, "max": 1}
    made = {"namespaceRange": spaces, "replicasPerNamespace": count, "tuningSet": "all", "objectBundle": [item]}
    return {"name": f"{count} jobs", "phases": [made]}


def measure(action: str, *methods: str, **params: Any) -> dict[str, Any]:
    kind = {"apiVersion": "batch/v1", "kind": "Job", "labelSelector": "group = test"}
    calls = [{"identifier": name, "method": name, "params": {"action": action, **kind, **params}} for name in methods]
    return {"name": action, "measurements": calls}


def plugin_nodes(count: int = 2, **params: Any) -> list[dict[str, Any]]:
    wanted = {"nodes": count, "allocation": "device-plugin", **params}
    return [{"name": "nodes", "method": "DRAKWOKDriver", "params": wanted}]


def prepare(cluster: Cluster, path: Path, client: Client, asked: str = "", **environ: str) -> runner.Runner:
    known = variables.gather([], environ, None)
    loaded = loading.load(path, known, runner.METHODS)
    local = json.loads((cluster.kubeconfig.parent / "cluster.json").read_text())
    port = local["ports"]["scheduler"]

    async def scheduler() -> str:
        return await scraping.page(f"https://127.0.0.1:{port}/metrics")

    return runner.Runner(client, loaded, runner.RunnerSettings(scheduler=scheduler, prometheus=asked), progress.Plain())


async def run(
    cluster: Cluster, path: Path, client: Client, asked: str = "", **environ: str
) -> tuple[runner.Runner, RunResult]:
    made = prepare(cluster, path, client, asked, **environ)
    return made, await made.run()


async def left(client: Client) -> list[str]:
    """What load tests have made and is still there."""
    found = []
    for kind in KINDS:
        found += [f"{kind.kind} {item.metadata.name}" for item in await client.list(kind, labels=LABEL)]
    return found


async def remove_namespace(client: Client, name: str) -> None:
    """Delete a namespace whose nodes are gone, and its pods with it, which nobody ends any more."""
    for pod in await client.list(resources.PODS, namespace=name):
        await client.delete(resources.PODS, pod.metadata.name, namespace=name, grace_seconds=0)
    await client.delete(resources.NAMESPACES, name)

    async def gone() -> bool:
        return await client.find(resources.NAMESPACES, name) is None

    await eventually(gone)


def bucket(seconds: float) -> int:
    """Which bucket of the scheduler's histogram has this value: the first ends at 10 ms, and they double."""
    return max(0, math.ceil(math.log2(max(seconds, 1e-9) / 0.01)))


def own_times(pod: dict[str, Any]) -> tuple[float, float, float]:
    """When a pod was created, scheduled and started, by its own timestamps."""
    [scheduled] = [item for item in pod["status"]["conditions"] if item["type"] == "PodScheduled"]
    [container] = pod["status"]["containerStatuses"]
    texts = (
        pod["metadata"]["creationTimestamp"],
        scheduled["lastTransitionTime"],
        container["state"]["running"]["startedAt"],
    )
    created, placed, started = (datetime.fromisoformat(text).timestamp() for text in texts)
    return created, placed, started


@pytest.fixture(autouse=True)
async def nothing_left(client: Client) -> AsyncIterator[None]:
    """Nothing of load tests is there after a test."""
    yield
    assert await left(client) == []


async def command(cluster: Cluster, *line: str | Path, folder: Path, **environ: str) -> tuple[int, str]:
    settings = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "XDG_STATE_HOME": str(cluster.state_home),
        **environ,
    }
    process = await asyncio.create_subprocess_exec(
        *line, cwd=folder, env=settings, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_the_commands_of_the_kwok_dra_readme_work_as_typed(cluster: Cluster, tmp_path: Path) -> None:
    line = [
        "./run-e2e.sh", "cluster-loader2", "--testconfig=pkg/dependency/kwok/examples/test-config.yaml",
        "--provider=skeleton", "--nodes=3", f"--report-dir={tmp_path}",
    ]  # fmt: skip
    code, said = await command(cluster, *line, folder=PERF_TESTS, CL2_JOB_RUNNING_TIME_MS="1000")
    assert code == 0, said
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("7", "0")
    [latency] = tmp_path.glob("PodStartupLatency_GPUJobStartupLatency_kwok-dra-test_*.json")
    items = {item["labels"]["Metric"]: item["data"] for item in json.loads(latency.read_text())["dataItems"]}
    assert items["pod_startup"]["Perc99"] > 0
    assert yaml.safe_load((tmp_path / "generatedConfig_kwok-dra-test.yaml").read_text())["name"] == "kwok-dra-test"
    assert "10" in said
    line = ["./clusterloader2", "--testconfig=test-config.yaml", "--dry-run", "--v=2"]
    code, said = await command(cluster, *line, folder=PERF_TESTS)
    assert (code, "kwok-dra-test: valid" in said) == (0, True)
    code, said = await command(cluster, "./run-e2e.sh", "kube-dns", folder=PERF_TESTS)
    assert (code, said) == (2, "kube-dns: not part of SimGPU; only cluster-loader2 is\n")


async def test_the_example_with_modules_and_waves_passes(cluster: Cluster, tmp_path: Path) -> None:
    code, said = await command(
        cluster, BIN / "simgpu", "loadtest", "examples/15-loadtest/config.yaml", "--nodes", "4",
        "--report-dir", tmp_path, folder=ROOT,
    )  # fmt: skip
    assert code == 0, said
    files = {path.name for path in (ROOT / "examples" / "15-loadtest").iterdir()}
    assert files == {"README.md", "config.yaml", "wave.yaml", "claim-template.yaml", "deployment.yaml"}
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["pods"] == 16
    assert max(sample["gpus"] for sample in results["timeline"]) >= 12


async def test_jobs_run_as_long_as_they_are_asked_to_beside_other_stages_and_an_annotation_wins(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    wait = [measure("start", "WaitForFinishedJobs"), measure("gather", "WaitForFinishedJobs", timeout="60s")]
    kept = {"prefix": "kept", "deleteAutomanagedNamespaces": False}
    await client.create(resources.STAGES, RIVAL)
    try:
        path = scenario(tmp_path, [wait[0], phase(2), wait[1]], dependencies=plugin_nodes(), namespace=kept)
        _, timed = await run(cluster, path, client, CL2_JOB_RUNNING_TIME_MS="3000")
        assert not timed.failed, timed.errors
        jobs = json.loads(await client.raw(resources.JOBS.path(namespace="kept-1")))["items"]
        moments = [[job["status"][name] for name in ("startTime", "completionTime")] for job in jobs]
        spans = [datetime.fromisoformat(end) - datetime.fromisoformat(start) for start, end in moments]
        assert len(spans) == 2
        assert min(spans) >= timedelta(seconds=3)
        path = scenario(tmp_path, [wait[0], phase(2, "1s"), wait[1]], dependencies=plugin_nodes())
        _, noted = await run(cluster, path, client, CL2_JOB_RUNNING_TIME_MS="600000")
        assert not noted.failed, noted.errors
    finally:
        await client.delete(resources.STAGES, "rival")
        await remove_namespace(client, "kept-1")


async def test_latencies_agree_with_the_pods_and_with_the_scheduler(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    measured = ("PodStartupLatency", "SchedulingMetrics", "SchedulingThroughput")
    steps = [
        measure("start", "WaitForControlledPodsRunning", *measured),
        phase(16),
        measure("gather", "WaitForControlledPodsRunning", timeout="60s"),
        measure("gather", *measured, threshold="60s"),
    ]
    steps[3]["measurements"][2]["params"]["threshold"] = 0.1
    steps[0]["measurements"][3]["params"].pop("threshold", None)
    kept = {"prefix": "measured", "deleteAutomanagedNamespaces": False}  # so that the pods can be read after the run
    try:
        path = scenario(tmp_path, steps, dependencies=plugin_nodes(), namespace=kept)
        _, result = await run(cluster, path, client)
        pods = json.loads(await client.raw(resources.PODS.path(namespace="measured-1")))["items"]
    finally:
        await remove_namespace(client, "measured-1")
    assert not result.failed, [*result.errors, *(case.errors for case in result.cases)]
    summaries = {summary.name: summary.content for summary in result.summaries}
    ours = {
        item["labels"]["Metric"]: {name: value / 1000 for name, value in item["data"].items()}
        for item in summaries["PodStartupLatency_PodStartupLatency"]["dataItems"]
    }
    scheduler = summaries["SchedulingMetrics_SchedulingMetrics"]["e2eSchedulingLatency"]
    for name, nanoseconds in scheduler.items():
        seconds = ours["create_to_schedule"][name]
        assert abs(bucket(seconds) - bucket(nanoseconds / 1e9)) <= 1, (name, seconds, nanoseconds)
    moments = [own_times(pod) for pod in pods]
    assert len(moments) == 16
    spans = {
        "create_to_schedule": [scheduled - created for created, scheduled, _ in moments],
        "schedule_to_run": [started - scheduled for _, scheduled, started in moments],
        "pod_startup": [started - created for created, _, started in moments],
    }
    for metric, values in spans.items():
        for name, seconds in percentiles.of(values).items():
            # Times in the API are whole seconds, cut off; what the watch adds is less than half a second.
            assert abs(ours[metric][name] - seconds) < 1.5, (metric, name, ours[metric], values)
    assert summaries["SchedulingThroughput_SchedulingThroughput"]["max"] > 0


async def test_an_interrupted_run_leaves_nothing_behind(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    steps = [
        measure("start", "WaitForFinishedJobs"), phase(4), measure("gather", "WaitForFinishedJobs", timeout="10m"),
    ]  # fmt: skip
    path = scenario(tmp_path, steps, dependencies=plugin_nodes(), namespace={"prefix": "interrupted"})
    settings = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "XDG_STATE_HOME": str(cluster.state_home)}
    process = await asyncio.create_subprocess_exec(
        BIN / "simgpu", "loadtest", path, "--report-dir", tmp_path / "report", env=settings,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip

    async def running() -> bool:
        return any(
            pod.status.phase == "Running" for pod in await client.list(resources.PODS, namespace="interrupted-1")
        )

    await eventually(running)
    process.send_signal(signal.SIGINT)
    said, _ = await process.communicate()
    assert process.returncode == 130, said.decode()
    assert "nothing is left" in said.decode()
    assert (tmp_path / "report" / "report.html").exists()
    assert await left(client) == []


async def test_what_a_killed_run_left_is_removed_once_it_counts_as_dead(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    settings = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "XDG_STATE_HOME": str(cluster.state_home)}
    process = await asyncio.create_subprocess_exec(
        BIN / "simgpu", "loadtest", "burst-fill", "--nodes", "1", "--report-dir", tmp_path, env=settings,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    lease = (await eventually(lambda: client.list(resources.LEASES, labels=LABEL)))[0]
    run_id, name = str(lease.spec.holder_identity), lease.metadata.name
    space = f"test-{run_id[:6]}-1"

    async def running() -> bool:
        return any(pod.status.phase == "Running" for pod in await client.list(resources.PODS, namespace=space))

    await eventually(running)
    process.kill()
    await process.wait()
    before = await left(client)
    assert {line.partition(" ")[0] for line in before} == {
        "Node", "Namespace", "Stage", "ResourceSlice", "DeviceClass", "Lease",
    }  # fmt: skip
    clean_up: list[str | Path] = [BIN / "simgpu", "loadtest", "cleanup"]
    code, said = await command(cluster, *clean_up, folder=tmp_path)
    assert (code, f"run {run_id}: alive" in said, "Removed" in said) == (0, True, False), said
    code, said = await command(cluster, *clean_up, "--run", run_id, folder=tmp_path)
    assert (code, f"--run: {run_id} is alive" in said) == (2, True), said
    # A minute later, without the wait.
    stale = {"spec": {"renewTime": (datetime.now(UTC) - timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
    await client.merge_patch(resources.LEASES, name, stale, namespace="default")
    code, said = await command(cluster, *clean_up, "--dry-run", folder=tmp_path)
    assert (code, f"run {run_id}: dead" in said, f"Namespace {space}" in said) == (0, True, True), said
    assert await left(client) == before
    code, said = await command(cluster, *clean_up, folder=tmp_path)
    assert (code, "Removed." in said) == (0, True), said
    assert await left(client) == []


async def test_a_set_up_that_runs_out_of_time_leaves_nothing_behind(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    path = scenario(tmp_path, [phase(1)], dependencies=plugin_nodes(200, timeout="50ms"))
    _, result = await run(cluster, path, client)
    assert result.failed
    assert "not ready in" in result.errors[0]
    assert result.leftovers == []


async def test_anything_with_the_label_of_a_run_is_reported_at_its_end_without_a_dependency_too(
    cluster: Cluster, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare(cluster, scenario(tmp_path, [phase(1)]), client)
    body = {"metadata": {"name": "left", "labels": made.run_id.labels}, "spec": {}}
    await client.create(resources.DEVICE_CLASSES, body)
    monkeypatch.setattr(runner, "_TEARDOWN_SECONDS", 0.1)
    result = await made.run()
    try:
        assert result.leftovers == ["DeviceClass left"]
        assert result.errors == ["left behind: DeviceClass left"]
    finally:
        [own] = [item for item in await abandoned.find(client) if item.id == made.run_id.id]
        assert await abandoned.remove(client, own) == []


async def test_limits_that_are_exceeded_and_jobs_that_do_not_start_are_failures(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    steps = [
        measure("start", "WaitForControlledPodsRunning", "PodStartupLatency", operationTimeout="3s"),
        phase(9),
        measure("gather", "WaitForControlledPodsRunning", timeout="30s"),
        measure("gather", "PodStartupLatency", threshold="1ms"),
        measure("start", "SchedulingThroughput"),
        measure("gather", "SchedulingThroughput"),
    ]
    steps[4]["measurements"][0]["params"]["labelSelector"] = "no = such"
    path = scenario(tmp_path, steps, dependencies=plugin_nodes(1, gpusPerNode=8))
    _, result = await run(cluster, path, client)
    failed = {case.name.rpartition(" - ")[2]: case.errors for case in result.cases if case.errors}
    assert "1 objects timed out" in failed["WaitForControlledPodsRunning"][0]
    assert failed["PodStartupLatency"][0].startswith("pod_startup: Perc50 is")
    assert "no pod of the selection was scheduled" in failed["SchedulingThroughput"][0]


async def test_runs_at_once_do_not_disturb_each_other(cluster: Cluster, tmp_path: Path) -> None:
    async def one(name: str, file: str | Path) -> tuple[int, str]:
        return await command(
            cluster, BIN / "simgpu", "loadtest", file, "--nodes", "1", "--report-dir", tmp_path / name, folder=ROOT,
            CL2_JOB_RUNNING_TIME_MS="100", CL2_STARTUP_THRESHOLD="60s",
        )  # fmt: skip

    # One of them writes slices and class in an older version that is served, too.
    original = (ROOT / "src/simgpu/loadtest/scenarios/burst-fill/config.yaml").read_text()
    older = tmp_path / "older.yaml"
    older.write_text(original.replace("  params:\n", "  params:\n    apiVersion: v1beta2\n"))
    assert "v1beta2" in older.read_text()
    # Seven long jobs and a churning one with ten pods; a pod for each of eight GPUs.
    pods = {"dra-steady-state": 17, "burst-fill": 8, str(older): 8, "extended-resources": 8, "nvidia-gpu": 8}
    found = await asyncio.gather(*(one(f"report-{index}", file) for index, file in enumerate(pods)))
    assert [code for code, _ in found] == [0] * len(pods), found
    for index, count in enumerate(pods.values()):
        assert json.loads((tmp_path / f"report-{index}" / "results.json").read_text())["pods"] == count


async def test_gpu_pods_stay_on_the_nodes_of_their_run_though_others_have_free_gpus(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    foreign = nodes.body("foreign", labels={}, amounts={"nvidia.com/gpu": "100"})
    await client.create(resources.NODES, foreign)

    async def ready() -> bool:
        return nodes.ready(await client.get(resources.NODES, "foreign"))

    steps = [
        measure("start", "WaitForControlledPodsRunning", operationTimeout="5s"),
        phase(10),
        measure("gather", "WaitForControlledPodsRunning", timeout="60s"),
    ]
    kept = {"prefix": "placed", "deleteAutomanagedNamespaces": False}  # so that the pods can be read after the run
    try:
        await eventually(ready)
        path = scenario(tmp_path, steps, dependencies=plugin_nodes(1, gpusPerNode=8), namespace=kept)
        _, result = await run(cluster, path, client)
        pods = await client.list(resources.PODS, namespace="placed-1")
    finally:
        await remove_namespace(client, "placed-1")
        await client.delete(resources.NODES, "foreign")
    assert len(pods) == 10
    assert sum(bool(pod.spec.node_name) for pod in pods) == 8
    assert "foreign" not in {pod.spec.node_name for pod in pods}
    [late] = [error for case in result.cases for error in case.errors]
    assert "objects timed out" in late  # both of them, unless the first is reported a moment earlier
    assert "Pending of 1" in late


async def test_what_a_run_did_not_make_it_does_not_touch(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    expression = "device.driver == 'cl2-gpu.kwok.x-k8s.io'"
    mine = {"metadata": {"name": "cl2-gpu.kwok.x-k8s.io"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    other = {
        "metadata": {"name": "kwok-node-0", "labels": {"type": "kwok"}, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"unschedulable": True},
    }
    await client.create(resources.DEVICE_CLASSES, mine)
    await client.create(resources.NODES, other)
    try:
        code, said = await command(
            cluster, BIN / "simgpu", "loadtest", "kwok-dra", "--nodes", "2", "--report-dir", tmp_path, folder=ROOT
        )
        assert code == 0, said
        assert await client.find(resources.DEVICE_CLASSES, "cl2-gpu.kwok.x-k8s.io") is not None
        assert await client.find(resources.NODES, "kwok-node-0") is not None
    finally:
        await client.delete(resources.DEVICE_CLASSES, "cl2-gpu.kwok.x-k8s.io")
        await client.delete(resources.NODES, "kwok-node-0")


async def test_an_object_that_existed_before_its_phase_stays(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    await client.create(resources.DEVICE_CLASSES, {"metadata": {"name": "mine-0"}, "spec": {}})
    text = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: '{{.Name}}'}\nspec: {}\n"
    (tmp_path / "class.yaml").write_text(text)
    bundle = [{"basename": "mine", "objectTemplatePath": "class.yaml"}]
    classes = {"replicasPerNamespace": 2, "tuningSet": "all", "objectBundle": bundle}
    try:
        _, result = await run(cluster, scenario(tmp_path, [{"name": "classes", "phases": [classes]}]), client)
        assert not result.failed, result.errors
        left_over = [item.metadata.name for item in await client.list(resources.DEVICE_CLASSES)]
        assert ("mine-0" in left_over, "mine-1" in left_over) == (True, False)
    finally:
        await client.delete(resources.DEVICE_CLASSES, "mine-0")


async def test_queries_are_asked_of_a_prometheus_where_there_is_one(
    cluster: Cluster, client: Client, tmp_path: Path, prometheus: Callable[..., Prometheus]
) -> None:
    server = await asyncio.to_thread(prometheus, "127.0.0.1:1")
    await asyncio.to_thread(server.eventually, "up")
    queries = [
        {"name": "down", "query": "max_over_time(up[%v])", "threshold": 1, "lowerBound": True},
        {"name": "none", "query": "nothing", "requireSamples": True},
    ]
    params = {
        "metricName": "Up",
        "unit": "targets",
        "queries": queries,
        "dimensions": ["job"],
        "enableViolations": True,
    }
    steps = [
        {
            "measurements": [
                {"identifier": "q", "method": "GenericPrometheusQuery", "params": {"action": action, **params}}
            ]
        }
        for action in ("start", "gather")
    ]
    path = scenario(tmp_path, steps)
    _, result = await run(cluster, path, client, server.url)
    assert result.cases[1].errors == ["down: 0 is below 1", "none: no samples"]
    [summary] = result.summaries
    assert summary.name == "GenericPrometheusQuery Up"
    assert summary.content["dataItems"] == [{"data": {"down": 0.0}, "unit": "targets", "labels": {"job": "simgpu"}}]
    _, without = await run(cluster, path, client)
    assert not without.failed, without.errors
    assert [case.verdict for case in without.cases] == ["skipped", "skipped"]
    assert without.notes == ["q: skipped, there is no Prometheus (--prometheus URL)"]


async def test_gpus_of_a_model_are_those_that_the_controller_publishes_and_its_metrics_show_the_pods(
    cluster: Cluster, fleet: Fleet, tmp_path: Path
) -> None:
    await fleet.configure("", default={"gpus": [{"type": "a100", "count": 1}]})
    await fleet.start()
    original = (ROOT / "src/simgpu/loadtest/scenarios/kwok-dra/test-config.yaml").read_text()
    config = tmp_path / "config.yaml"
    config.write_text(original.replace("gpusPerNode: 8", "gpusPerNode: 8\n    model: h200"))
    line: list[str | Path] = [BIN / "simgpu", "loadtest", config, "--nodes", "2", "--report-dir", tmp_path]
    running = asyncio.create_task(command(cluster, *line, folder=ROOT))
    shown: set[str] = set()

    async def shown_or_over() -> bool:
        holders = await asyncio.to_thread(fleet.holders)
        shown.update(pod for pod, _ in holders.values() if pod.startswith("kwok-gpu-job-"))
        return bool(shown) or running.done()

    await eventually(shown_or_over, seconds=100)
    code, said = await running
    assert code == 0, said
    assert shown
    assert "the controller has published GPUs of" in said
    results = json.loads((tmp_path / "results.json").read_text())
    assert max(sample["gpus"] for sample in results["timeline"]) >= 5


async def test_templates_of_a_version_that_is_not_served_are_created_in_one_that_is(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    path = scenario(tmp_path, [phase(2)], dependencies=plugin_nodes())
    (tmp_path / "job.yaml").write_text(JOB.replace("batch/v1", "batch/v9"))
    _, result = await run(cluster, path, client)
    assert not result.failed, result.errors
    assert "batch/v9 Job: not served by this cluster; created as batch/v1" in result.notes


async def test_what_cannot_be_set_up_is_an_error_before_anything_is_created(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    before = {item.metadata.name for item in await client.list(resources.NAMESPACES)}
    mistaken = scenario(
        tmp_path, [phase(1)], dependencies=plugin_nodes(apiVersion="v9"), chaosMonkey={"nodeFailure": 1}
    )
    code, said = await command(cluster, BIN / "simgpu", "loadtest", mistaken, folder=tmp_path)
    assert code == 2
    assert "dependencies[0].params.apiVersion: 'v9': must be one of v1, v1beta2, v1beta1" in said
    assert "chaosMonkey: is not supported" in said
    # Of mistakes that only the cluster shows, too, all are reported.
    modelled = [{**item, "name": name} for name in ("some", "more") for item in plugin_nodes(model="h200")]
    unserved = scenario(tmp_path, [phase(1)], dependencies=modelled)
    (tmp_path / "job.yaml").write_text(JOB.replace("batch/v1", "nowhere.example/v1"))
    code, said = await command(
        cluster, BIN / "simgpu", "loadtest", unserved, folder=tmp_path, CL2_JOB_RUNNING_TIME_MS="-1"
    )
    assert (code, "CL2_JOB_RUNNING_TIME_MS: -1: must be milliseconds" in said) == (2, True)
    _, result = await run(cluster, unserved, client)
    [listed] = result.errors
    assert "some: params.model needs a running 'simgpu controller'" in listed
    assert "more: params.model needs a running 'simgpu controller'" in listed
    assert "nowhere.example/v1 Job: not served by this cluster" in listed
    assert {item.metadata.name for item in await client.list(resources.NAMESPACES)} == before
