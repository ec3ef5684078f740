"""Waits of `up`: for nodes, the default service account, GPUs and the sample's pods, with progress reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from simgpu import vocabulary
from simgpu.cluster import control_plane, populate
from simgpu.cluster.control_plane import ControlPlane
from simgpu.cluster.progress import Progress
from simgpu.kube import resources
from simgpu.kube.client import Client

STALLED_SECONDS = 10.0
_NODES_READY_SECONDS = 300.0
_MAX_NAMES = 3  # of nodes in a message


async def nodes_ready(client: Client, plane: ControlPlane, count: int, progress: Progress) -> None:
    """Wait until `count` simulated nodes are Ready and schedulable."""
    ready = 0

    async def all_ready() -> bool:
        nonlocal ready
        nodes = await client.list(resources.NODES, labels=populate.POOL_SELECTOR)
        ready = sum(node.ready and populate.schedulable(node) for node in nodes)
        progress.update("nodes", f"{ready} of {count} ready")
        return ready >= count

    await plane.until("kwok", all_ready, seconds=_NODES_READY_SECONDS, reached=lambda: ready)
    progress.done("nodes", f"{count} ready")


async def default_account(client: Client, plane: ControlPlane) -> None:
    """Wait for the default service account: without it pods cannot be created."""

    async def exists() -> bool:
        return await client.find(resources.SERVICE_ACCOUNTS, "default", namespace="default") is not None

    await plane.until("kube-controller-manager", exists, seconds=control_plane.READY_SECONDS)


async def gpus(
    client: Client, plane: ControlPlane, progress: Progress, *, hint: str, stalled_seconds: float = STALLED_SECONDS
) -> None:
    """Wait until all simulated nodes have GPUs, or no more get any for `stalled_seconds`.

    Nodes without GPUs are reported, not an error: the user's topology may give them none. `hint` is the command that
    prints the log to read.
    """
    without: list[str] = []

    async def look() -> tuple[int, int, str]:
        nodes = await client.list(resources.NODES, labels=populate.POOL_SELECTOR)
        without[:] = [node.metadata.name for node in nodes if not populate.gpu_count([node])]
        equipped = len(nodes) - len(without)
        return equipped, len(nodes), f"{populate.gpu_count(nodes)} on {equipped} of {len(nodes)} nodes"

    if not await _while_growing(plane, look, "GPUs", progress, stalled_seconds):
        names = ", ".join([*without[:_MAX_NAMES], *(["..."] if len(without) > _MAX_NAMES else [])])
        topology = f"ConfigMap {vocabulary.DEFAULT_NAMESPACE}/{vocabulary.TOPOLOGY}"
        progress.note(f"{len(without)} nodes have no GPUs ({names}); check {topology} and '{hint}'")


async def sample(client: Client, plane: ControlPlane, progress: Progress, *, hint: str) -> None:
    """Wait until the sample's pods run, or no more start for a while: a small fleet may lack GPUs for all.

    `hint` is the command that lists the pods.
    """

    async def look() -> tuple[int, int, str]:
        pods = await client.list(resources.PODS, namespace=vocabulary.SAMPLE_NAMESPACE)
        started = sum(pod.status.phase in {"Running", "Succeeded"} for pod in pods)
        return started, max(len(pods), 1), f"{started} of {len(pods)} pods run"

    if not await _while_growing(plane, look, "sample", progress, STALLED_SECONDS):
        progress.note(f"not all pods of the sample run yet; see '{hint}'")


async def _while_growing(
    plane: ControlPlane,
    look: Callable[[], Awaitable[tuple[int, int, str]]],
    item: str,
    progress: Progress,
    stalled_seconds: float,
) -> bool:
    """Wait until the count that `look` returns reaches its total. False if it stops growing before."""
    highest, shown = 0, ""

    async def complete() -> bool:
        nonlocal highest, shown
        count, total, shown = await look()
        highest = max(highest, count)
        if count < total:
            progress.update(item, shown)
        return count >= total

    met = await plane.requests.met(complete, seconds=stalled_seconds, reached=lambda: highest)
    progress.done(item, shown)
    return met
