"""The installed release: how soon a container of our image is up, and how soon a new cluster runs a pod with a GPU.

The node is the one of the tests: a kubelet with containerd in a machine of its own. That needs root.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from benchmarks import frame, scratch
from deploy.image import __main__ as making
from deploy.image import contents, oci
from simgpu.cli import progress
from simgpu.cluster import locate
from tests.fixtures import images, release, services
from tests.fixtures.agent import NAMESPACE, POOL_LABEL
from tests.fixtures.cluster import Cluster
from tests.fixtures.machine import Machine
from tests.fixtures.node import PROGRAMS, Node

STARTS = 5


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    if os.geteuid() != 0:
        print("left out: a machine of its own needs root", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "image.tar"
        oci.write(
            archive,
            {contents.NAME: [contents.image(making.build_wheel(Path(folder)), Path(folder), oci.this_platform())]},
        )
        began = time.perf_counter()
        async with fresh() as (node, helm):
            node.load(archive)
            cluster_s = time.perf_counter() - began
            yield await first_pod(node, helm, cluster_s)
            yield await image_start(node)


@contextlib.asynccontextmanager
async def fresh() -> AsyncIterator[tuple[Node, Path]]:
    """A new cluster with a real node, gone afterwards."""
    found = await locate.ensure((*PROGRAMS, "kube-proxy", "helm"), progress.Plain())
    programs = {name: place.path for name, place in found.items()}
    with tempfile.TemporaryDirectory() as folder, Machine(Path(folder)) as machine:
        async with scratch.cluster(address=machine.outside) as outcome:
            cluster = Cluster(outcome.status.name, Path(outcome.status.kubeconfig), Path(folder))
            node = Node(machine, cluster, programs)
            node.start()
            services.serve(node, programs["kube-proxy"])
            release.clean(node)  # what a cluster of ours has before anything is installed
            yield node, programs["helm"]


async def first_pod(node: Node, helm: Path, cluster_s: float) -> frame.Figure:
    """From nothing to a running pod with a GPU, by the guide's commands, against a pod without one."""

    def plain() -> None:
        node.pod("plain", "sleep 1000")
        node.phase("plain", "Running")

    def with_gpu() -> None:
        node.kubectl("label", "node", node.name, f"{POOL_LABEL}=default")
        command = [str(helm), "upgrade", "-i", "gpu-operator", str(release.CHART), "--namespace", NAMESPACE]
        environment = {**os.environ, "KUBECONFIG": str(node.cluster.kubeconfig)}
        done = subprocess.run(
            [*command, "--create-namespace"], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr
        node.pod("gpu", "sleep 1000", resources={"limits": {"nvidia.com/gpu": 1}})
        node.phase("gpu", "Running")

    baseline = cluster_s + await asyncio.to_thread(timed, plain)
    value = cluster_s + await asyncio.to_thread(timed, with_gpu)
    return frame.Figure("release.first-pod", value, baseline, "s", "a new cluster and a pod without GPU")


async def image_start(node: Node) -> frame.Figure:
    """A container of our image until its program has answered, against one of busybox."""
    numbers = iter(range(2 * STARTS))

    async def answer(image: str, *command: str) -> float:
        name = f"bench-{next(numbers)}"
        return await asyncio.to_thread(timed, lambda: node.ctr("run", "--rm", image, name, *command))

    value, baseline = await frame.alternate(
        lambda: answer(f"docker.io/library/{contents.NAME}", "simgpu", "--version"),
        lambda: answer(images.BUSYBOX, "true"),
        chunks=STARTS,
    )
    return frame.Figure("release.image-start", value, baseline, "s", "a container of busybox that ends at once")


def timed(work: Callable[[], object]) -> float:
    """How many seconds it took."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
