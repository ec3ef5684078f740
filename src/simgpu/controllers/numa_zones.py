"""The NUMA zones of a node as a NodeResourceTopology, which schedulers that know NUMA read. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.kube import quantity
from simgpu.kube.views import Node, NodeResourceTopology
from simgpu.topology import pools

_POLICIES = dict(zip(vocabulary.TOPOLOGY_POLICIES, ("SingleNUMANode", "Restricted", "BestEffort", ""), strict=True))
_SCOPES = dict(zip(vocabulary.TOPOLOGY_SCOPES, ("ContainerLevel", "PodLevel"), strict=True))


class ZoneGpus(msgspec.Struct, frozen=True):
    """The GPUs of a zone, or shares of them: all, those that are healthy, and those of them that nobody has."""

    capacity: int = 0
    allocatable: int = 0
    available: int = 0


class NodeZones(msgspec.Struct, frozen=True):
    """What a node's NodeResourceTopology shows.

    `uid` is the node's, `resource` the name under which it has GPUs, empty where only claims allocate them. `cores` (in
    thousandths) and `memory` (in bytes) are those of each zone; None where they are not known.
    """

    uid: str
    numa: pools.Numa
    resource: str
    gpus: tuple[ZoneGpus, ...]
    cores: int | None = None
    memory: int | None = None


def zones_of(
    node: Node, spec: pools.NodeGpus, ids: Collection[str], taken: Mapping[str, int], unhealthy: Collection[str]
) -> NodeZones | None:
    """Return the zones of a node; None for one without.

    `ids` are its GPUs in their order, `taken` how many shares of each GPU containers have (of an unshared one: one),
    `unhealthy` those that nothing new gets.
    """
    numa = spec.numa
    if numa is None or not spec.gpus:
        return None
    replicas = spec.slicing.replicas(vocabulary.GPU_RESOURCE)
    gpus = [[0, 0, 0] for _ in range(numa.zones)]
    for index, gpu in enumerate(ids):
        found = gpus[numa.zone(index, len(ids))]
        found[0] += replicas
        if gpu not in unhealthy:
            found[1] += replicas
            found[2] += max(0, replicas - taken.get(gpu, 0))
    amounts = node.status.allocatable
    return NodeZones(
        node.metadata.uid,
        numa,
        spec.slicing.name(vocabulary.GPU_RESOURCE) if spec.allocation.by_count else "",
        tuple(ZoneGpus(*found) for found in gpus),
        cores=_part(numa.cpu, amounts.get("cpu", ""), numa.zones, scale=1000),
        memory=_part(numa.memory, amounts.get("memory", ""), numa.zones, scale=1),
    )


def _part(of_zone: str, of_node: str, zones: int, *, scale: int) -> int | None:
    """Return what a zone has, in units of 1/`scale`: as configured, or an equal part of what the node has."""
    try:
        return int(quantity.parse(of_zone) * scale) if of_zone else int(quantity.parse(of_node) * scale) // zones
    except ValueError:
        return None


def document(name: str, labels: Mapping[str, str], zones: NodeZones) -> dict[str, Any]:
    """Return the object of a node, with these labels."""
    numa = zones.numa
    policy = f"{_POLICIES[numa.policy]}{_SCOPES[numa.scope]}" if _POLICIES[numa.policy] else "None"
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": zones.uid}
    return {
        "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [owner]},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": numa.policy},
            {"name": "topologyManagerScope", "value": numa.scope},
        ],
        "topologyPolicies": [policy],
        "zones": [
            {
                "name": _zone(here),
                "type": "Node",
                "costs": [
                    {"name": _zone(there), "value": numa.near if there == here else numa.far}
                    for there in range(numa.zones)
                ],
                "resources": _resources(zones, here),
            }
            for here in range(numa.zones)
        ],
    }


def _zone(number: int) -> str:
    return f"node-{number}"


def _resources(zones: NodeZones, zone: int) -> list[dict[str, str]]:
    found = []
    if zones.resource:
        gpus = zones.gpus[zone]
        found.append(_resource(zones.resource, str(gpus.capacity), str(gpus.allocatable), str(gpus.available)))
    if zones.cores is not None:
        cores = f"{zones.cores // 1000}" if zones.cores % 1000 == 0 else f"{zones.cores}m"
        found.append(_resource("cpu", cores, cores, cores))
    if zones.memory is not None:
        memory = quantity.binary(zones.memory)
        found.append(_resource("memory", memory, memory, memory))
    return found


def _resource(name: str, capacity: str, allocatable: str, available: str) -> dict[str, str]:
    return {"name": name, "capacity": capacity, "allocatable": allocatable, "available": available}


def shows(seen: NodeResourceTopology, wanted: Mapping[str, Any]) -> bool:
    """Return whether an object is as `document` has it."""
    return (
        list(seen.zones) == wanted["zones"]
        and list(seen.attributes) == wanted["attributes"]
        and wanted["metadata"]["labels"].items() <= seen.metadata.labels.items()
        and list(seen.topology_policies) == wanted["topologyPolicies"]
        and [owner.uid for owner in seen.metadata.owner_references]
        == [owner["uid"] for owner in wanted["metadata"]["ownerReferences"]]
    )
