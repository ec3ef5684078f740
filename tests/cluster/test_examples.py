"""Every example works as its first line says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.kube import resources
from tests.fixtures.cluster import Cluster, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from simgpu.kube.client import Client

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


async def kubectl(cluster: Cluster, programs: Callable[..., dict[str, Path]], *arguments: str) -> str:
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    path = (await asyncio.to_thread(programs, "kubectl"))["kubectl"]
    process = await asyncio.create_subprocess_exec(
        path, *arguments, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return out.decode()


async def test_the_job_example_completes(
    cluster: Cluster, client: Client, namespace: str, programs: Callable[..., dict[str, Path]]
) -> None:
    await kubectl(cluster, programs, "apply", "-n", namespace, "-f", str(EXAMPLES / "job.yaml"))

    async def complete() -> bool:
        return (await client.get(resources.JOBS, "train", namespace=namespace)).status.succeeded == 2

    await eventually(complete)


async def test_the_dra_example_runs_on_an_allocated_device(
    cluster: Cluster, client: Client, namespace: str, programs: Callable[..., dict[str, Path]]
) -> None:
    manifest = str(EXAMPLES / "dra.yaml")
    await kubectl(cluster, programs, "apply", "-n", namespace, "-f", manifest)

    async def running() -> bool:
        return (await client.get(resources.PODS, "dra-pod", namespace=namespace)).status.phase == "Running"

    await eventually(running)
    [claim] = await client.list(resources.RESOURCE_CLAIMS, namespace=namespace)
    assert claim.status.allocation is not None
    assert claim.status.allocation.devices.results[0].driver == "gpu.example.com"
    await kubectl(cluster, programs, "delete", "-n", namespace, "-f", manifest, "--wait=false")
