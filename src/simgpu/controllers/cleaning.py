"""What SimGPU has put into a cluster, found without a running controller or agent, and its removal.

What belongs to a Helm release is left to Helm: accounts, workloads, and a ConfigMap `topology` that it made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.controllers import configuring, dra_fleet, publishing
from simgpu.controllers.resource_slices import SLICES
from simgpu.dra import classes, slices, versions
from simgpu.dra.slices import PublishedSlice
from simgpu.dra.versions import ServedApi
from simgpu.kube import errors, permissions, resources, views
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource, V
from simgpu.kube.views import ConfigMap, Lease, Node

_IN_FLIGHT = 16
_BY_HELM = "app.kubernetes.io/managed-by"
_REAL_MARKS = (vocabulary.MANAGED_LABEL, *vocabulary.DEPLOYED_ON_REAL_LABELS)


class FieldManager(views.ApiView, frozen=True):
    """Who set fields of an object."""

    manager: str = ""


class ManagedMeta(views.ObjectMeta, frozen=True):
    """`metadata` with who set what."""

    managed_fields: tuple[FieldManager, ...] = ()


class ManagedClass(views.ApiView, frozen=True):
    """A DeviceClass, with who set what of it."""

    metadata: ManagedMeta


_CLASSES = Resource("DeviceClass", "deviceclasses", ManagedClass, group=versions.GROUP, namespaced=False)


class NodeLeftovers(msgspec.Struct, frozen=True):
    """Labels and annotations of ours on a node, and resources in its capacity, by name."""

    node: str
    labels: tuple[str, ...]
    amounts: tuple[str, ...]
    annotations: tuple[str, ...] = ()

    def patch(self) -> dict[str, Any]:
        """Return the patch of the node's status that removes them."""
        gone = dict.fromkeys(self.amounts)
        patch = publishing.label_patch({}, self.labels) | {"status": {"capacity": gone, "allocatable": gone}}
        if self.annotations:
            patch["metadata"] |= {"annotations": dict.fromkeys(self.annotations)}
        return patch


class Leftovers(msgspec.Struct, frozen=True):
    """Everything of ours in a cluster, and whether its topology's ConfigMap exists."""

    nodes: tuple[NodeLeftovers, ...] = ()
    config_maps: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    topology: bool = False

    def __bool__(self) -> bool:
        found = (self.nodes, self.config_maps, self.leases, self.slices, self.classes, self.zones)
        return any(found)

    @property
    def waiting(self) -> bool:
        """Whether there is anything that controllers and agents remove themselves when they are asked to."""
        views = [name for name in self.config_maps if name.startswith(vocabulary.VIEW_PREFIX)]
        return bool(self.nodes or views or self.leases or self.slices or self.zones)

    def lines(self) -> list[str]:
        """Return a line for each object."""
        found = [
            f"node {item.node}: {len(item.labels)} labels{''.join(f', {name}' for name in item.amounts)}"
            for item in self.nodes
        ]
        named = {
            "resourceslice": self.slices, "deviceclass": self.classes, "noderesourcetopology": self.zones,
            "configmap": self.config_maps, "lease": self.leases,
        }  # fmt: skip
        return [*found, *(f"{kind} {name}" for kind, names in named.items() for name in names)]


async def find(client: Client, namespace: str) -> Leftovers:
    """Return what there is to remove."""
    nodes: list[Node] = await client.list(resources.NODES)
    maps: list[ConfigMap] = await client.list(resources.CONFIG_MAPS, namespace=namespace)
    fields = f"metadata.name={vocabulary.LEASE}"
    leases: list[Lease] = await client.list(resources.LEASES, namespace=namespace, fields=fields)
    views = {publishing.node_of(item): item for item in maps if _is_view(item)}
    api = await dra_fleet.discover(client)
    return Leftovers(
        nodes=tuple(filter(None, (on_node(node, views.get(node.metadata.name)) for node in nodes))),
        config_maps=tuple(sorted(item.metadata.name for item in maps if _is_ours(item))),
        leases=tuple(item.metadata.name for item in leases),
        slices=tuple(item.metadata.name for item in await _listed(client, api, SLICES) if is_our_slice(item)),
        classes=tuple(item.metadata.name for item in await _listed(client, api, _CLASSES) if is_our_class(item)),
        zones=tuple(await _zones(client, namespace)),
        topology=any(item.metadata.name == vocabulary.TOPOLOGY for item in maps),
    )


async def _listed(client: Client, api: ServedApi | None, resource: Resource[V]) -> list[V]:
    """Return objects of the DRA API; none where it is not served, or where it was not ours to use."""
    if api is None:
        return []
    return await _permitted(client, api.of(resource))


async def _permitted(client: Client, resource: Resource[V], *, labels: str = "") -> list[V]:
    """Return objects that match; none where they may not be listed."""
    try:
        return await client.list(resource, labels=labels) if await permissions.may(client, "list", resource) else []
    except errors.Forbidden:  # a server that does not answer what is permitted
        return []


async def _zones(client: Client, namespace: str) -> list[str]:
    """Return the names of our NodeResourceTopologies; none where they are not served, or not ours to read."""
    resource, labels = resources.NODE_RESOURCE_TOPOLOGIES, f"{vocabulary.ZONES_LABEL}={namespace}"
    try:
        if resource.plural not in {item.name for item in await client.discover(resource.api_version)}:
            return []
        return [item.metadata.name for item in await _permitted(client, resource, labels=labels)]
    except errors.NotFound:
        return []


def is_our_slice(item: PublishedSlice) -> bool:
    """Return whether a slice is of a fake node, or of a real one's agent: other drivers' names end at random."""
    driver, pool = item.state.identity
    if driver != vocabulary.DRA_DRIVER or not pool or pool != item.state.node:
        return False
    owned = any(owner.kind == "Node" and owner.name == pool for owner in item.metadata.owner_references)
    fake = item.metadata.labels.get(vocabulary.SLICE_LABEL) == "true"
    return owned and (fake or slices.REAL.has_name(item.metadata.name, pool))


def is_our_class(item: ManagedClass) -> bool:
    """Return whether a class was made by the controller alone."""
    known = item.metadata.name in classes.device_classes(ServedApi()) and _BY_HELM not in item.metadata.labels
    return known and {entry.manager for entry in item.metadata.managed_fields} == {vocabulary.MANAGER}


def on_node(node: Node, view: ConfigMap | None) -> NodeLeftovers | None:
    """Return what a node has of ours: as its view says, or what its marks say where there is no view."""
    there, fake = node.metadata.labels, node.metadata.annotations.get(vocabulary.KWOK_NODE) == "fake"
    before = publishing.read_previous(view)
    owned = (
        publishing.owned_on(before, node) if fake else publishing.OwnedFields(set(before.labels), {*before.resources})
    )
    if not fake and any(mark in there for mark in _REAL_MARKS):
        owned.add_all(node)
    amounts = node.status.capacity | node.status.allocatable
    # On a real node the kubelet counts; it keeps resources whose plugin is gone, as zero.
    resources_left = (name for name in owned.resources if name in amounts and (fake or amounts[name] == "0"))
    found = NodeLeftovers(
        node.metadata.name, tuple(sorted(owned.labels & there.keys())), tuple(sorted(resources_left)),
        tuple(name for name in (vocabulary.RUNAI_MIG_MAPPING,) if name in node.metadata.annotations),
    )  # fmt: skip
    return found if found.labels or found.amounts else None


def _is_view(config_map: ConfigMap) -> bool:
    return config_map.metadata.labels.get(vocabulary.VIEW_LABEL) == "true"


def _is_ours(config_map: ConfigMap) -> bool:
    if _is_view(config_map):
        return True
    name = config_map.metadata.name
    if name == vocabulary.MIG_FILE:  # NVIDIA's operator may have one, for real GPUs
        return False
    return configuring.Configuration.concerns(name) and _BY_HELM not in config_map.metadata.labels


async def ask_to_withdraw(client: Client, namespace: str, *, wanted: bool) -> None:
    """Ask controllers and agents to remove what they put on nodes; without `wanted`, take that back."""
    patch = {"metadata": {"annotations": {vocabulary.UNINSTALL_ANNOTATION: "true" if wanted else None}}}
    try:
        await client.merge_patch(resources.CONFIG_MAPS, vocabulary.TOPOLOGY, patch, namespace=namespace)
    except errors.NotFound:
        return


async def remove(client: Client, namespace: str, found: Leftovers) -> None:
    """Remove everything that was found."""
    async with asyncio.TaskGroup() as group:
        turns = asyncio.Semaphore(_IN_FLIGHT)
        for item in found.nodes:
            group.create_task(_patch(client, item, turns))
    if found.slices or found.classes:
        await _remove_dra(client, found)
    for name in found.zones:
        await client.delete(resources.NODE_RESOURCE_TOPOLOGIES, name)
    for name in _views_first(found.config_maps):
        await client.delete(resources.CONFIG_MAPS, name, namespace=namespace)
    for name in found.leases:
        await client.delete(resources.LEASES, name, namespace=namespace)


async def _remove_dra(client: Client, found: Leftovers) -> None:
    api = await dra_fleet.discover(client)
    if api is None:
        return
    for name in found.slices:
        await client.delete(api.of(SLICES), name)
    for name in found.classes:
        await client.delete(api.of(_CLASSES), name)


async def _patch(client: Client, item: NodeLeftovers, turns: asyncio.Semaphore) -> None:
    async with turns:
        try:
            await client.merge_patch(resources.NODES, item.node, item.patch(), subresource="status")
        except errors.NotFound:
            return


def _views_first(names: Iterable[str]) -> Sequence[str]:
    return sorted(names, key=lambda name: (not name.startswith(vocabulary.VIEW_PREFIX), name))
