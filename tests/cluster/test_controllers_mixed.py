"""An agent in a cluster with fake nodes: what it asks the API server for, and what not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from simgpu.app.agent import Agent, AgentSettings
from simgpu.catalog import models
from simgpu.identities import identity
from simgpu.kube import kubeconfig, resources
from simgpu.kube.client import Client
from simgpu.node.kubelet import KubeletFolders
from tests.fixtures.cluster import Cluster, eventually

TOPOLOGY = "nodePoolLabelKey: test/pool\nnodePools: {real: {gpu: {profile: mine}}}"
PROFILE = "device_defaults: {name: NVIDIA X1, memory: {total_bytes: 8589934592}}\ndevices: [{}, {}, {}]"


async def test_an_agent_watches_its_own_view_and_the_configuration_but_no_fake_nodes(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> None:
    node = f"{namespace}-real"
    await client.create(resources.NODES, {"metadata": {"name": node, "labels": {"test/pool": "real"}}})
    view = {"node-topology": "true", "node-name": "fake"}
    await _put(client, namespace, "topology-fake", {"topology.yml": ""}, labels=view)
    await _put(client, namespace, "topology", {"topology.yml": TOPOLOGY})
    await _put(client, namespace, "gpu-profile-mine", {"profile.yaml": PROFILE})
    settings = AgentSettings(
        kubeconfig.load(cluster.kubeconfig), node, namespace, ("127.0.0.1", 0), identity.load("dcgm"),
        catalog=models.load(), state=tmp_path,
        kubelet=KubeletFolders(
                device_plugins=tmp_path, pod_resources=tmp_path / "none.sock",
                dra_plugins=tmp_path / "plugins", registry=tmp_path / "registry", cdi=tmp_path / "cdi",
            ),
        cgroups=tmp_path, reservations="none",
        runai=tmp_path / "runai", nri=tmp_path / "nri.sock",
    )  # fmt: skip
    agent = Agent(settings, client)
    running = asyncio.create_task(agent.run(lambda: None))
    try:
        views = agent.stores.views

        async def published() -> bool:
            return len(views) == 1 and f"{namespace}/topology-{node}" in views

        await eventually(published)
        await _put(client, namespace, "topology-fake", {"topology.yml": "more"}, labels=view)
        await _put(client, namespace, "gpu-profile-mine", {"profile.yaml": PROFILE.replace(", {}]", "]")})

        async def fewer() -> bool:
            """Both watches have brought what came after the fake node's view."""
            own = views.get(f"topology-{node}", namespace=namespace)
            assert own is not None
            shown = yaml.safe_load(own.data["topology.yml"])["gpus"]
            return len(agent.equipment.box.devices) == len(shown) == 2

        await eventually(fewer)
        seen = {item.metadata.name for item in agent.stores.config_maps}
        assert {"topology", "gpu-profile-mine"} <= seen
        assert not [name for name in seen if name.startswith("topology-")]
        assert len(views) == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        agent.equipment.close()
        await client.delete(resources.NODES, node)


async def _put(client: Client, namespace: str, name: str, data: dict[str, str], **meta: dict[str, str]) -> None:
    body = {"metadata": meta, "data": data}
    await client.apply(resources.CONFIG_MAPS, name, body, namespace=namespace, manager="test", force=True)
