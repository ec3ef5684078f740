"""Whether the load test is what it measures: set-up of nodes, pods scheduled in a second, CPU while waiting, memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import yaml

from benchmarks import frame, scratch
from simgpu import yaml_text
from simgpu.kube import kubeconfig, parallel, resources, scraping
from simgpu.kube.client import Client
from simgpu.loadtest import abandoned, ownership
from simgpu.loadtest.dependencies import kinds, nodes, slices
from simgpu.loadtest.dependencies.fake_gpus import KWOK_DRA, FakeGpus, settings
from simgpu.loadtest.dependencies.workbench import Workbench
from simgpu.loadtest.measurements import histograms
from simgpu.loadtest.running import runner
from simgpu.loadtest.running.results import RunResult
from simgpu.loadtest.scenario import loading, variables
from simgpu.loadtest.scenario.model import DependencyCall
from simgpu.loadtest.served import Served

NODES, CHUNKS, GPUS = 5000, 5, 8
FLEET, PODS, TURNS = 500, 2000, 5
MANY_PODS = 20_000
_PRINT_SECONDS = 20.0
POD = """
apiVersion: v1
kind: Pod
metadata: {name: "{{.Name}}", labels: {group: bench}}
spec:
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: "{{.Name}}", labels: {group: bench}}
spec:
  parallelism: 2  # so that all jobs together take all GPUs, and no pod waits for one
  completions: 10
  template:
    metadata: {labels: {group: bench}, annotations: {simgpu.dev/run-time: 1s}}
    spec:
      restartPolicy: Never
      tolerations: [{operator: Exists}]
      containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


class Moments:
    """Progress of a run: when each line was reported first."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.resident: list[float] = []
        self._printed = time.perf_counter()

    def update(self, item: str, doing: str) -> None:
        self.seen.setdefault(f"{item}: {doing.partition(',')[0]}", time.perf_counter())
        if item == "step":
            self.cpu[doing.partition(": ")[2]] = time.process_time()
        if item == "pods":
            self.resident.append(scratch.resident_mib())
            if time.perf_counter() - self._printed > _PRINT_SECONDS:
                self._printed = time.perf_counter()
                print(f"  pods: {doing}", flush=True)

    def done(self, item: str, result: str) -> None:  # noqa: ARG002 - as all displays of progress
        self.seen[f"{item} done"] = time.perf_counter()

    def note(self, line: str) -> None:
        print(f"  {line}", flush=True)


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures, each in a cluster of its own size."""
    async with scratch.cluster(nodes=1) as outcome, Client(kubeconfig.load(outcome.status.kubeconfig)) as client:
        chunk = NODES // CHUNKS
        # A rate needs no more of the baseline than half of that.
        ours, bare = await frame.alternate(
            lambda: _set_up(client, chunk), lambda: _bare_set_up(client, chunk // 2), chunks=CHUNKS
        )
        yield frame.Figure("loadtest.setup", ours, bare, "nodes/s", "bare writer", better="higher")
    async with scratch.cluster(nodes=1) as outcome, Client(kubeconfig.load(outcome.status.kubeconfig)) as client:
        scheduled = _scheduled(Path(outcome.status.kubeconfig))
        async with _fleet(client):
            ours, bare = await frame.alternate(
                lambda: _measured_rate(client, scheduled), lambda: _bare_rate(client, scheduled), chunks=TURNS
            )
            yield frame.Figure("loadtest.scheduled", ours, bare, "pods/s", "bare creator", better="higher")
            cpu, growth = await _long_run(client)
        yield frame.Figure("loadtest.waiting_cpu", cpu, 15.0, "% of a core", "at most")
        yield frame.Figure("loadtest.memory_growth", growth, 1.1, "x", "flat: at most")


# Nodes with slices.


async def _set_up(client: Client, count: int) -> float:
    """Nodes a second that a dependency creates, with their slices."""
    progress = Moments()
    run = ownership.new_run(random.SystemRandom())
    space = f"bench-{run.id}"
    await client.create(resources.NAMESPACES, {"metadata": {"name": space, "labels": run.labels}})
    bench = Workbench(client, Served(client), run, {}, (space,), progress)
    call = DependencyCall("d", "bench", KWOK_DRA, {"nodes": count, "gpusPerNode": GPUS, "timeout": "20m"})
    made = FakeGpus(bench, settings(call, {}, None), name="bench")
    await made.check()
    try:
        await made.setup()
    finally:
        await made.teardown()
        await client.delete(resources.NAMESPACES, space)
        await _gone(lambda: abandoned.left_by(client, run))
    rate = count / (progress.seen[f"nodes: created {count} of {count}"] - progress.seen["KWOK done"])
    print(f"  {count} nodes: {rate:.0f} nodes/s", flush=True)
    return rate


async def _bare_set_up(client: Client, count: int) -> float:
    """Nodes a second that a loop creates, with their slices."""
    labels = {"bench": "bare"}

    async def one(number: int) -> None:
        name = f"bare-{number}"
        node = await client.create(resources.NODES, nodes.body(name, labels=labels))
        for body in slices.bodies(
            slices.kwok_devices(GPUS), number=number + 10**6, node=name, node_uid=node.metadata.uid, version="v1",
            labels=labels,
        ):  # fmt: skip
            await client.create(kinds.slices("v1"), body)

    started = time.perf_counter()
    await parallel.each(range(count), one)
    spent = time.perf_counter() - started
    await client.delete_all(resources.NODES, labels="bench=bare")
    await client.delete_all(kinds.slices("v1"), labels="bench=bare")

    async def left() -> list[Any]:
        return await client.list(resources.NODES, labels="bench=bare")

    await _gone(left)
    return count / spent


async def _gone(look: Callable[[], Awaitable[list[Any]]]) -> None:
    while await look():
        await asyncio.sleep(0.5)


# Pods.


@contextlib.asynccontextmanager
async def _fleet(client: Client) -> AsyncIterator[None]:
    """Simulated nodes with GPUs for as long as that lasts."""
    run = ownership.new_run(random.SystemRandom())
    bench = Workbench(client, Served(client), run, {}, ("default",), Moments())
    wanted = {"nodes": FLEET, "gpusPerNode": GPUS, "allocation": "device-plugin", "timeout": "20m"}
    made = FakeGpus(bench, settings(DependencyCall("d", "fleet", KWOK_DRA, wanted), {}, None), name="fleet")
    await made.check()
    await made.setup()
    try:
        yield
    finally:
        await made.teardown()
        await _gone(lambda: abandoned.left_by(client, run))


def _scheduled(config: Path) -> Callable[[], Awaitable[float]]:
    port = json.loads((config.parent / "cluster.json").read_text())["ports"]["scheduler"]

    async def count() -> float:
        page = await scraping.page(f"https://127.0.0.1:{port}/metrics")
        found = histograms.lines(page, "scheduler_schedule_attempts_total")
        return sum(value for labels, value in found if labels.get("result") == "scheduled")

    return count


async def _rate(work: Awaitable[Any], scheduled: Callable[[], Awaitable[float]]) -> float:
    """Pods that the scheduler placed in a second, by its own count, from the first of them to the last."""
    before = await scheduled()
    task = asyncio.ensure_future(work)
    while not (first := await scheduled() - before):
        await asyncio.sleep(0.05)
    started = time.perf_counter()
    while (await scheduled()) - before < PODS:
        await asyncio.sleep(0.25)
    rate = (PODS - first) / (time.perf_counter() - started)
    await task
    print(f"  {PODS} pods: {rate:.0f} pods/s", flush=True)
    return rate


async def _bare_rate(client: Client, scheduled: Callable[[], Awaitable[float]]) -> float:
    template = yaml_text.parse(POD.replace('"{{.Name}}"', "x"))

    async def one(number: int) -> None:
        body = {**template, "metadata": {"name": f"bare-{number}", "labels": {"group": "bench"}}}
        await client.create(resources.PODS, body, namespace="default")

    rate = await _rate(parallel.each(range(PODS), one), scheduled)
    await client.delete_all(resources.PODS, namespace="default")
    await _gone(lambda: client.list(resources.PODS, namespace="default"))
    return rate


async def _measured_rate(client: Client, scheduled: Callable[[], Awaitable[float]]) -> float:
    work = _run(client, POD, PODS, measured=("PodStartupLatency", "SchedulingThroughput"))
    return await _rate(work, scheduled)


async def _long_run(client: Client) -> tuple[float, float]:
    """CPU while waiting for jobs, in per cent of a core, and resident memory at the end over that of a quarter."""
    progress = Moments()
    started = time.perf_counter()
    await _run(
        client,
        JOB,
        MANY_PODS // 10,
        measured=("PodStartupLatency",),
        waited=("WaitForFinishedJobs",),
        progress=progress,
    )
    steps = [key for key in progress.cpu if key.startswith("wait")]
    seen = {key.rpartition(": ")[2]: at for key, at in progress.seen.items() if key.startswith("step")}
    wall = seen["gather"] - seen[steps[0]]
    cpu = progress.cpu["gather"] - progress.cpu[steps[0]]
    print(f"  {MANY_PODS} pods in {time.perf_counter() - started:.0f} s", flush=True)
    quarter = progress.resident[len(progress.resident) // 4]
    return cpu / wall * 100, progress.resident[-1] / quarter


async def _run(
    client: Client,
    template: str,
    count: int,
    *,
    measured: tuple[str, ...],
    waited: tuple[str, ...] = (),
    progress: Moments | None = None,
) -> RunResult:
    """A run without a dependency: the nodes are there."""

    def calls(action: str, names: tuple[str, ...], **more: str) -> list[dict[str, Any]]:
        params = {"action": action, "labelSelector": "group = bench", **more}
        return [{"identifier": name, "method": name, "params": params} for name in names]

    item = {"basename": "pod", "objectTemplatePath": "pod.yaml"}
    phase = {"namespaceRange": {"min": 1, "max": 1}, "replicasPerNamespace": count, "tuningSet": "all"}
    steps: list[dict[str, Any]] = [
        {"name": "start", "measurements": calls("start", (*measured, *waited))},
        {"name": "create", "phases": [{**phase, "objectBundle": [item]}]},
    ]
    if waited:
        steps.append({"name": "wait", "measurements": calls("gather", waited, timeout="60m")})
    steps.append({"name": "gather", "measurements": calls("gather", measured)})
    document = {
        "name": "bench",
        "tuningSets": [{"name": "all", "parallelismLimitedLoad": {"parallelismLimit": parallel.IN_FLIGHT}}],
        "steps": steps,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pod.yaml").write_text(template)
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(document))
        loaded = loading.load(path, variables.gather([], {}, None), runner.METHODS)
        return await runner.Runner(client, loaded, runner.RunnerSettings(), progress or Moments()).run()
