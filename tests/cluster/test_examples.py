"""Every example works as its first line says."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu.kube import resources
from tests.fixtures.cluster import Cluster, eventually, kubectl
from tests.fixtures.controller import Fleet

if TYPE_CHECKING:
    from collections.abc import Callable

    from simgpu.kube.client import Client
    from tests.fixtures.controller import Fleet

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


async def test_the_job_example_completes(
    cluster: Cluster, client: Client, namespace: str, programs: Callable[..., dict[str, Path]]
) -> None:
    await kubectl(cluster, programs, "apply", "-n", namespace, "-f", str(EXAMPLES / "03-job" / "job.yaml"))

    async def complete() -> bool:
        return (await client.get(resources.JOBS, "train", namespace=namespace)).status.succeeded == 2

    await eventually(complete)


async def test_the_fake_node_example_gets_gpus(
    cluster: Cluster, fleet: Fleet, programs: Callable[..., dict[str, Path]]
) -> None:
    await fleet.configure("nodePools: {default: {gpus: [{type: h200, count: 8}]}}")
    await fleet.start()
    await kubectl(cluster, programs, "apply", "-f", str(EXAMPLES / "02-fake-node" / "kwok-node.yaml"))
    fleet.nodes.append("kwok-gpu-node-9")
    await fleet.gpus("kwok-gpu-node-9", 8)


async def test_the_dra_examples_run_on_gpus_that_the_controller_published(
    fleet: Fleet, programs: Callable[..., dict[str, Path]]
) -> None:
    await fleet.configure("", default={"gpus": [{"type": "h200", "count": 2}], "allocation": "dra"})
    node = await fleet.node("a")
    await fleet.start()
    manifests = [str(EXAMPLES / "05-dra" / name) for name in ("dra.yaml", "dra-sharing.yaml")]
    for manifest in manifests:
        await kubectl(fleet.cluster, programs, "apply", "-n", fleet.namespace, "-f", manifest)

    async def used() -> bool:
        page = (await asyncio.to_thread(fleet.controller.get, "/metrics"))[1]
        return page.count("runai_pod_gpu_utilization{") == 3

    await eventually(used)
    holders = {holder for (host, _), (holder, _) in fleet.holders().items() if host == node}
    assert "dra-pod" in holders
    assert len(holders) == 2
    for manifest in manifests:
        await kubectl(fleet.cluster, programs, "delete", "-n", fleet.namespace, "-f", manifest, "--wait=false")


async def test_the_controller_example_labels_nodes_and_puts_labels_right_again(
    cluster: Cluster, client: Client
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / "14-own-controller" / "label_nodes.py"),
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
    )

    async def labelled() -> bool:
        nodes = [node for node in await client.list(resources.NODES) if node.metadata.name.startswith("kwok-gpu-node-")]
        return all(node.metadata.labels.get("example.com/size") == "large" for node in nodes)

    try:
        await eventually(labelled)
        wrong = {"metadata": {"labels": {"example.com/size": "tiny", "example.com/other": "kept"}}}
        await client.merge_patch(resources.NODES, "kwok-gpu-node-1", wrong)
        await eventually(labelled)
        node = await client.get(resources.NODES, "kwok-gpu-node-1")
        assert node.metadata.labels["example.com/other"] == "kept"
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = await process.communicate()
        for node in await client.list(resources.NODES):
            gone = {"metadata": {"labels": {"example.com/size": None, "example.com/other": None}}}
            await client.merge_patch(resources.NODES, node.metadata.name, gone)
    assert process.returncode == 0
    assert "kwok-gpu-node-1 is large" in said.decode()
    assert said.decode().endswith("stopped\n")


async def test_the_deployment_examples_are_accepted_under_the_strictest_rules(
    cluster: Cluster, namespace: str, programs: Callable[..., dict[str, Path]]
) -> None:
    for name in ("daemonset.yaml", "job.yaml"):
        manifest = str(EXAMPLES / "10-fakedev" / name)
        said = await kubectl(
            cluster, programs, "apply", "-n", namespace, "--dry-run=server", "--validate=strict", "-f", manifest
        )
        assert "(server dry run)" in said


async def test_the_training_example_is_accepted(
    cluster: Cluster, namespace: str, programs: Callable[..., dict[str, Path]]
) -> None:
    said = await kubectl(
        cluster,
        programs,
        "apply",
        "-n",
        namespace,
        "--dry-run=server",
        "--validate=strict",
        "-f",
        str(EXAMPLES / "04-training" / "training.yaml"),
    )
    assert "(server dry run)" in said
