"""Wires a load test: the client of a cluster, its scheduler's metrics, and the runner."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from simgpu import errors as simgpu_errors
from simgpu.catalog import models
from simgpu.cluster import record
from simgpu.kube import client as kube_client
from simgpu.kube import errors, kubeconfig, resources, scraping
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.loadtest import abandoned
from simgpu.loadtest.abandoned import AbandonedRun
from simgpu.loadtest.run_progress import RunProgress
from simgpu.loadtest.running import runner
from simgpu.loadtest.running.results import RunResult
from simgpu.loadtest.scenario import loading, variables
from simgpu.loadtest.scenario.model import Scenario

_SCHEDULER_PORT = 10259


class LoadTestOptions(msgspec.Struct, frozen=True):
    """The options of `simgpu loadtest`."""

    note: str = ""
    nodes: int | None = None
    overrides: tuple[Path, ...] = ()
    kubeconfig: Path | None = None
    prometheus: str = ""
    scheduler_metrics: str = ""
    seed: int | None = None
    catalog: tuple[Path, ...] = ()  # files of GPU models beside the built-in ones


async def run(path: Path, options: LoadTestOptions, progress: RunProgress) -> tuple[Scenario, RunResult]:
    """Load a scenario and run it."""
    local = _local_cluster(options.kubeconfig)
    config = _load_config(local[0] if local is not None else options.kubeconfig)
    async with kube_client.Client(config) as client:
        try:
            found = await _count_nodes(client)
        except errors.ConnectError as error:
            hint = "; 'simgpu up' starts the local cluster again" if local is not None else ""
            raise simgpu_errors.SimgpuError(f"{error}{hint}") from None
        nodes = options.nodes if options.nodes is not None else found
        known = variables.gather(options.overrides, os.environ, nodes)
        scenario = loading.load(
            path,
            known,
            runner.methods(models.load(options.catalog)),
            loading.LoadOptions(nodes=nodes, seed=options.seed, note=options.note),
        )
        settings = runner.RunnerSettings(
            nodes=options.nodes,
            server=config.server,
            scheduler=await _scheduler_page(client, options, local[1] if local is not None else ""),
            prometheus=options.prometheus,
            seed=options.seed,
        )
        return scenario, await runner.Runner(client, scenario, settings, progress).run()


async def find_abandoned(given: Path | None) -> list[AbandonedRun]:
    """Return the runs of which there is something in a cluster, those that are alive included."""
    async with _client(given) as client:
        return await abandoned.find(client)


async def remove_abandoned(given: Path | None, run: AbandonedRun) -> list[str]:
    """Remove what a run left. Return what is still there in the end."""
    async with _client(given) as client:
        return await abandoned.remove(client, run)


def _client(given: Path | None) -> Client:
    local = _local_cluster(given)
    return Client(_load_config(local[0] if local is not None else given))


def _load_config(path: Path | None) -> ClientConfig:
    try:
        return kubeconfig.load(path)
    except errors.ConfigError as error:
        hint = "; 'simgpu up' starts a local cluster" if path is None and not os.environ.get("KUBECONFIG") else ""
        raise errors.ConfigError(f"{error}{hint}") from None


def _local_cluster(given: Path | None) -> tuple[Path, str] | None:
    """Return kubeconfig and scheduler page of a local cluster: the one given, or the only one if nothing is."""
    if given is None and (os.environ.get("KUBECONFIG") or "KUBERNETES_SERVICE_HOST" in os.environ):
        listed = os.environ.get("KUBECONFIG", "")
        given = Path(listed) if listed and os.pathsep not in listed else None
        if given is None:
            return None
    for name in record.known_names():
        folder = record.Folder(name)
        if given is not None and given.absolute() != folder.kubeconfig.absolute():
            continue
        if given is None and name != record.DEFAULT_NAME:
            continue
        known = folder.load()
        if known is not None and folder.kubeconfig.exists():
            port = known.ports.get("scheduler")
            return folder.kubeconfig, f"https://127.0.0.1:{port}/metrics" if port else ""
    return None


async def _count_nodes(client: Client) -> int | None:
    """Return the number of nodes that take pods without tolerations; None if there are none."""
    nodes = await client.list(resources.NODES)
    free = [
        node
        for node in nodes
        if not node.spec.unschedulable and not any(taint.effect == "NoSchedule" for taint in node.spec.taints)
    ]
    return len(free) or None


async def _scheduler_page(client: Client, options: LoadTestOptions, local: str) -> Callable[[], Awaitable[str]] | None:
    """Return how to read the scheduler's metrics: from a URL, or from its pod through the API server."""
    url = options.scheduler_metrics or local
    if url:
        return lambda: scraping.page(url)
    try:
        pods = await client.list(resources.PODS, namespace="kube-system", labels="component=kube-scheduler")
    except errors.KubeError:
        return None
    if not pods:
        return None
    name = pods[0].metadata.name
    path = f"/api/v1/namespaces/kube-system/pods/https:{name}:{_SCHEDULER_PORT}/proxy/metrics"

    async def through_server() -> str:
        return (await client.raw(path)).decode("utf-8", "replace")

    return through_server
