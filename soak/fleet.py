"""The fleet of a soak: its nodes and its topology."""

from __future__ import annotations

from typing import Any

import yaml

from simgpu import vocabulary
from simgpu.cluster import populate
from simgpu.kube import parallel, resources
from simgpu.kube.client import Client
from soak import plan
from soak.settings import Settings

NAMESPACE = "soak"  # of the topology and the views
PODS = "soak-pods"
LABEL = "soak.simgpu.dev/pool"
GPUS = 8  # of each node
EXPORTER_GPUS = 4  # the exporter has no node
SPARE_NODES = 2  # whose GPUs change

WHOLE, CLAIMED, SPARE, REAL, REAL_CLAIMED = "whole", "claimed", "spare", "real", "real-claimed"
BY_CLAIM = (CLAIMED, REAL_CLAIMED)  # pools whose GPUs pods get by claims
# Nodes with an agent, each with its pool. Their kubelet is played.
REAL_NODES = {"soak-real": REAL, "soak-claims": REAL_CLAIMED}
AGENTS = dict(zip(plan.AGENTS, REAL_NODES, strict=True))  # the node of each
_REAL_TAINT = "soak.simgpu.dev/kubelet"  # keeps schedulers away, whose pods KWOK starts
_AMOUNTS = {"cpu": "64", "memory": "256Gi", "pods": "110"}


def pools(*, model: str = "a100", count: int = GPUS) -> dict[str, Any]:
    """Return the pools of the topology; `model` and `count` are those of the spare nodes."""

    def gpus(kind: str, number: int) -> dict[str, Any]:
        return {"gpus": [{"type": kind, "count": number}]}

    return {
        WHOLE: gpus("h100", GPUS) | {"allocation": vocabulary.EXTENDED},
        CLAIMED: gpus("h200", GPUS) | {"allocation": vocabulary.DRA},
        SPARE: gpus(model, count) | {"allocation": vocabulary.EXTENDED},
        REAL: gpus("h200", GPUS) | {"allocation": vocabulary.EXTENDED},
        REAL_CLAIMED: gpus("h100", GPUS) | {"allocation": vocabulary.DRA},
    }


def document(**spare: Any) -> str:
    """Return the topology as a text."""
    return yaml.safe_dump({"nodePoolLabelKey": LABEL, "nodePools": pools(**spare)})


class Fleet:
    """The nodes by name, each with its pool: `nodes` are the simulated ones, `pools` those with an agent, too."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self.nodes = {f"w{number}": WHOLE for number in range(settings.nodes)}
        self.nodes |= {f"c{number}": CLAIMED for number in range(settings.claim_nodes)}
        self.nodes |= {f"s{number}": SPARE for number in range(SPARE_NODES)}
        self.pools = {**self.nodes, **REAL_NODES}

    @property
    def whole_gpus(self) -> int:
        """GPUs that pods get as a resource of the node."""
        return GPUS * sum(pool != CLAIMED for pool in self.nodes.values())

    @property
    def claimed_gpus(self) -> int:
        """GPUs that pods get by claims."""
        return GPUS * sum(pool == CLAIMED for pool in self.nodes.values())

    async def create(self) -> None:
        """Create namespaces, topology and nodes."""
        for name in (NAMESPACE, PODS):
            await populate.ensure(self._client, resources.NAMESPACES, {"metadata": {"name": name}})
        await self.configure(document())

        async def add(number: int) -> None:
            await self.add_node([*self.nodes][number])

        await parallel.each(range(len(self.nodes)), add)
        for name, pool in REAL_NODES.items():
            await populate.ensure(self._client, resources.NODES, _node(name, pool, taint=_REAL_TAINT, annotations={}))

    async def configure(self, text: str) -> None:
        """Write the topology, whatever the text says."""
        body = {"data": {vocabulary.TOPOLOGY_KEY: text}}
        await self._client.apply(
            resources.CONFIG_MAPS, vocabulary.TOPOLOGY, body, namespace=NAMESPACE, manager="soak", force=True
        )

    async def add_node(self, name: str) -> None:
        """Create a node, unless it exists."""
        annotations = {vocabulary.KWOK_NODE: "fake"}
        body = _node(name, self.nodes[name], taint=vocabulary.KWOK_NODE, annotations=annotations)
        await populate.ensure(self._client, resources.NODES, body)


def _node(name: str, pool: str, *, taint: str, annotations: dict[str, str]) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, "type": "kwok", LABEL: pool}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"taints": [{"key": taint, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": _AMOUNTS, "allocatable": _AMOUNTS},
    }
