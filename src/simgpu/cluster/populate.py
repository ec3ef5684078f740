"""Populates a cluster: KWOK stages, the topology ConfigMap, simulated nodes, and the sample workload.

Everything here is idempotent: existing objects stay, missing ones are created. Stages configure how KWOK moves nodes
and pods from state to state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from simgpu import errors, vocabulary, yaml_text
from simgpu.kube import errors as kube_errors
from simgpu.kube import quantity, resources
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource
from simgpu.kube.views import Node
from simgpu.topology import inline

POOL_SELECTOR = f"{vocabulary.POOL_LABEL}={vocabulary.DEFAULT_POOL}"

MANIFESTS = Path(__file__).parent / "manifests"
_NODE_AMOUNTS = {"cpu": "32", "memory": "128Gi", "pods": "110"}

_RESOURCES: dict[str, Resource[Any]] = {
    resource.kind: resource
    for resource in (
        resources.CUSTOM_RESOURCE_DEFINITIONS,
        resources.STAGES,
        resources.NAMESPACES,
        resources.DEPLOYMENTS,
        resources.JOBS,
    )
}


def manifest(name: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest file of this package."""
    return yaml_text.parse_all((MANIFESTS / name).read_bytes())


async def apply_manifest(client: Client, name: str) -> None:
    """Server-side apply the objects of a manifest file, in order."""
    for body in manifest(name):
        meta = body["metadata"]
        resource = _RESOURCES[body["kind"]]
        await client.apply(
            resource, meta["name"], body, manager=vocabulary.UP_MANAGER, namespace=meta.get("namespace", ""), force=True
        )


async def stages_served(client: Client) -> bool:
    """Return whether the API server serves Stage objects yet: a new resource definition takes a moment."""
    try:
        found = await client.discover(resources.STAGES.api_version)
    except kube_errors.NotFound:
        return False
    return any(item.name == resources.STAGES.plural for item in found)


class Orphans(NamedTuple):
    """The nodes whose leases a KWOK left when it ended, and whether there are no other leases."""

    nodes: list[str]
    alone: bool


async def orphaned_leases(client: Client) -> Orphans:
    """Return the leases of a stopped KWOK; the kubelet of a real node holds the one by the node's name."""
    leases = await client.list(resources.LEASES, namespace=vocabulary.NODE_LEASES_NAMESPACE)
    nodes = [lease.metadata.name for lease in leases if lease.spec.holder_identity != lease.metadata.name]
    return Orphans(nodes, alone=len(nodes) == len(leases))


async def delete_all_leases(client: Client) -> None:
    """Delete the leases of all nodes."""
    await client.delete_all(resources.LEASES, namespace=vocabulary.NODE_LEASES_NAMESPACE)


async def delete_lease(client: Client, node: str) -> None:
    """Delete the lease of a node if it exists."""
    await client.delete(resources.LEASES, node, namespace=vocabulary.NODE_LEASES_NAMESPACE)


async def taken_over(client: Client, released: Iterable[str]) -> bool:
    """Return whether all released nodes that still exist have leases again."""
    present = {node.metadata.name for node in await client.list(resources.NODES)}
    leases = await client.list(resources.LEASES, namespace=vocabulary.NODE_LEASES_NAMESPACE)
    return {lease.metadata.name for lease in leases} >= present.intersection(released)


async def publish_topology(client: Client, gpus: str, *, overwrite: bool) -> None:
    """Write the default pool into the topology ConfigMap; an existing pool is kept unless `overwrite`.

    `gpus` are those of each node, as MODEL:COUNT.
    """
    model, count = inline.split(gpus, field="--gpus")
    await ensure(client, resources.NAMESPACES, {"metadata": {"name": vocabulary.DEFAULT_NAMESPACE}})
    present = await client.find(resources.CONFIG_MAPS, vocabulary.TOPOLOGY, namespace=vocabulary.DEFAULT_NAMESPACE)
    document = _topology_document(present.data.get(vocabulary.TOPOLOGY_KEY, "")) if present is not None else {}
    pools = document.get("nodePools") or {}
    pool = {"gpu": {"profile": model, "overrides": {"device_count": count}}, "allocation": vocabulary.BOTH}
    if pools.get(vocabulary.DEFAULT_POOL) == pool or (vocabulary.DEFAULT_POOL in pools and not overwrite):
        return
    document["nodePools"] = {**pools, vocabulary.DEFAULT_POOL: pool}
    body = {"data": {vocabulary.TOPOLOGY_KEY: yaml.safe_dump(document, sort_keys=False)}}
    if present is None:
        await ensure(
            client,
            resources.CONFIG_MAPS,
            {"metadata": {"name": vocabulary.TOPOLOGY}, **body},
            namespace=vocabulary.DEFAULT_NAMESPACE,
        )
    else:
        await client.merge_patch(
            resources.CONFIG_MAPS, vocabulary.TOPOLOGY, body, namespace=vocabulary.DEFAULT_NAMESPACE
        )


def _topology_document(text: str) -> dict[str, Any]:
    where = f"ConfigMap {vocabulary.DEFAULT_NAMESPACE}/{vocabulary.TOPOLOGY}, {vocabulary.TOPOLOGY_KEY}"
    try:
        document = yaml_text.parse(text)
    except ValueError as error:
        raise errors.SimgpuError(f"{where}: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict) or not isinstance(document.get("nodePools") or {}, dict):
        raise errors.SimgpuError(f"{where}: nodePools: must be a mapping of pool names")
    return document


async def ensure(client: Client, resource: Resource[Any], body: dict[str, Any], *, namespace: str = "") -> bool:
    """Create an object unless it exists. Return whether it was created."""
    try:
        await client.create(resource, body, namespace=namespace)
    except kube_errors.AlreadyExists:
        return False
    return True


def node_name(number: int) -> str:
    """Return the name of a simulated node; numbers start at 1."""
    return f"{vocabulary.NODE_PREFIX}{number}"


def node_number(name: str) -> int | None:
    """Return the number of a simulated node; None for other names."""
    tail = name.removeprefix(vocabulary.NODE_PREFIX)
    return int(tail) if tail != name and re.fullmatch("[1-9][0-9]{0,9}", tail) else None


def node_object(number: int) -> dict[str, Any]:
    """Return a Node object that KWOK manages."""
    name = node_name(number)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                vocabulary.NODE_TYPE_LABEL: "kwok",
                vocabulary.POOL_LABEL: vocabulary.DEFAULT_POOL,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
            "annotations": {vocabulary.KWOK_NODE: "fake"},
        },
        "spec": {"taints": [{"key": vocabulary.KWOK_NODE, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"capacity": _NODE_AMOUNTS, "allocatable": _NODE_AMOUNTS},
    }


async def node_changes(client: Client, count: int) -> tuple[list[int], list[int]]:
    """Return the numbers of nodes to create and to delete so that 1 to `count` exist."""
    present = {number for node in await client.list(resources.NODES) if (number := node_number(node.metadata.name))}
    return sorted(set(range(1, count + 1)) - present), sorted(number for number in present if number > count)


async def create_node(client: Client, number: int) -> None:
    """Create a simulated node unless it exists."""
    await ensure(client, resources.NODES, node_object(number))


async def delete_node(client: Client, number: int) -> None:
    """Delete a simulated node if it exists."""
    await client.delete(resources.NODES, node_name(number))


def schedulable(node: Node) -> bool:
    """Return whether the controller manager has removed the not-ready taint of a new node."""
    return all(taint.key != "node.kubernetes.io/not-ready" for taint in node.spec.taints)


def gpu_count(nodes: Iterable[Node], *, divided: bool = True) -> int:
    """Return the total GPU capacity of nodes; GPUs that MIG has `divided` count as their instances, or not at all."""
    return sum(
        quantity.count(amount)
        for node in nodes
        for name, amount in node.status.capacity.items()
        if name == vocabulary.GPU_RESOURCE or (divided and name.startswith(vocabulary.MIG_RESOURCE_PREFIX))
    )


def sample(*, gpus: bool) -> list[dict[str, Any]]:
    """Return the objects of the sample workload, with GPU limits if `gpus`."""
    bodies = manifest("sample.yaml")
    for body in bodies:
        if gpus and "template" in body.get("spec", {}):
            for container in body["spec"]["template"]["spec"]["containers"]:
                container["resources"]["limits"] = {vocabulary.GPU_RESOURCE: 1}
    return bodies


async def create(client: Client, body: dict[str, Any]) -> bool:
    """Create an object of a manifest unless it exists. Return whether it was created."""
    return await ensure(client, _RESOURCES[body["kind"]], body, namespace=body["metadata"].get("namespace", ""))
