"""Simulated nodes of a run: their shape, and which numbers are free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.store import Change
from simgpu.kube.views import Node
from simgpu.vocabulary import KWOK_NODE, LOADTEST_NODE_PREFIX, NODE_TYPE_LABEL

_AMOUNTS = {"cpu": "32", "memory": "256Gi", "pods": "110"}
_INFO = {
    "machineID": "fake-machine-id",
    "systemUUID": "fake-system-uuid",
    "bootID": "fake-boot-id",
    "kernelVersion": "5.4.0-fake",
    "osImage": "Ubuntu 20.04.1 LTS",
    "containerRuntimeVersion": "containerd://1.6.0-fake",
    "kubeletVersion": "v1.29.0-fake",
    "kubeProxyVersion": "v1.29.0-fake",
    "operatingSystem": "linux",
    "architecture": "amd64",
}
HOSTNAME_LABEL = "kubernetes.io/hostname"
TAINT = {"key": KWOK_NODE, "value": "fake", "effect": "NoSchedule"}


def body(
    name: str,
    *,
    labels: dict[str, str],
    annotations: dict[str, str] | None = None,
    amounts: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return a node without conditions: that it becomes Ready shows that KWOK plays it."""
    capacity = {**_AMOUNTS, **(amounts or {})}
    return {
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "kubernetes.io/role": "agent",
                "node-role.kubernetes.io/agent": "",
                NODE_TYPE_LABEL: "kwok",
                HOSTNAME_LABEL: name,
                **labels,
            },
            "annotations": {"node.alpha.kubernetes.io/ttl": "0", KWOK_NODE: "fake", **(annotations or {})},
        },
        "spec": {"taints": [TAINT]},
        "status": {"capacity": capacity, "allocatable": capacity, "nodeInfo": _INFO},
    }


class Numbers:
    """Free numbers of nodes, lowest first."""

    def __init__(self, taken: set[int]) -> None:
        self._taken = taken
        self._free = self._count()

    def _count(self) -> Iterator[int]:
        number = 0
        while True:
            if number not in self._taken:
                yield number
            number += 1

    def next(self) -> int:
        """Return a number that was not returned before."""
        return next(self._free)


async def free_numbers(client: Client) -> Numbers:
    """Return the numbers that no node has now."""
    pattern = re.compile(re.escape(LOADTEST_NODE_PREFIX) + "(0|[1-9][0-9]{0,8})")
    present = await client.list(resources.NODES)
    return Numbers({int(found[1]) for node in present if (found := pattern.fullmatch(node.metadata.name))})


async def create(client: Client, numbers: Numbers, make: Any) -> tuple[int, Node]:
    """Create a node with the next free number; `make` returns its body by name. Return number and node."""
    while True:
        number = numbers.next()
        try:
            return number, await client.create(resources.NODES, make(f"{LOADTEST_NODE_PREFIX}{number}"))
        except errors.AlreadyExists:
            continue  # another run was faster


class CreatedNodes:
    """The nodes that one dependency created, and how many are ready; the run's other nodes are not counted."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.ready = 0
        self._seen: set[str] = set()  # ready nodes of the run: a watch may be faster than the response to a creation

    def add(self, name: str) -> None:
        """Count a node that was created."""
        self.names.add(name)
        self.ready += name in self._seen

    def look(self, change: Change[Node]) -> bool:
        """Follow a change of any node. Return whether the number of ready ones changed."""
        name, after = change.key, change.new is not None and ready(change.new)
        if after == (name in self._seen):
            return False
        self._seen ^= {name}
        if name not in self.names:
            return False
        self.ready += 1 if after else -1
        return True


def ready(node: Node) -> bool:
    """Return whether pods can be placed on a node: it is Ready, and the taint of a new one is gone."""
    return node.ready and all(taint.key != "node.kubernetes.io/not-ready" for taint in node.spec.taints)
