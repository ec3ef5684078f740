"""Whether everything agrees: what the API has, what the pages show, and what the views publish."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from simgpu import yaml_text
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.views import Pod
from soak import fleet, pages
from soak.pages import Holder, Place

_ENDED = ("Succeeded", "Failed")
Holders = dict[Place, Holder]
Counted = collections.Counter[tuple[str, Holder]]  # GPUs of containers by node


class Seen(msgspec.Struct, frozen=True):
    """The state of the fleet, without values that change by themselves."""

    holders: Holders  # on the page
    series: int
    gpus: dict[str, int]  # by node, on the page
    maps: frozenset[str]  # ConfigMaps
    views: dict[str, Any]  # by node
    allocatable: dict[str, dict[str, str]]  # by node
    labels: dict[str, dict[str, str]]
    slices: dict[str, Any]  # by name
    wanted: Counted  # containers with whole GPUs by node, in the API
    claimed: Holders  # GPUs of claims, in the API
    starting: frozenset[str]  # pods that are on a node and do not run yet
    waiting: frozenset[str]  # pods that are on no node


async def look(client: Client, page: pages.Page) -> Seen:
    """Read everything; the page is that of all GPUs on nodes."""
    nodes = {node.metadata.name: node for node in await client.list(resources.NODES, labels=fleet.LABEL)}
    maps = await client.list(resources.CONFIG_MAPS, namespace=fleet.NAMESPACE)
    views = [item for item in maps if item.metadata.labels.get("node-topology") == "true"]
    slices = await client.list(resources.RESOURCE_SLICES)
    every = [pod for pod in await client.list(resources.PODS, namespace=fleet.PODS) if pod.status.phase not in _ENDED]
    pods = [pod for pod in every if pod.spec.node_name in nodes]
    return Seen(
        holders=page.holders,
        series=page.series,
        gpus=dict(collections.Counter(node for node, _ in page.gpus.values())),
        maps=frozenset(item.metadata.name for item in maps),
        views={view.metadata.labels["node-name"]: yaml_text.parse(view.data["topology.yml"]) for view in views},
        allocatable={name: dict(node.status.allocatable) for name, node in nodes.items()},
        labels={name: dict(node.metadata.labels) for name, node in nodes.items()},
        slices={item.metadata.name: msgspec.to_builtins(item.spec) for item in slices},
        wanted=_wanted(
            pod for pod in pods if nodes[pod.spec.node_name].metadata.labels[fleet.LABEL] not in fleet.BY_CLAIM
        ),
        claimed=await _claimed(client, pods, page.gpus),
        starting=frozenset(pod.metadata.name for pod in pods if pod.status.phase != "Running"),
        waiting=frozenset(pod.metadata.name for pod in every if not pod.spec.node_name),
    )


def _wanted(pods: Iterable[Pod]) -> Counted:
    found: Counted = collections.Counter()
    for pod in pods:
        for item in pod.spec.containers or ():
            if count := int(item.resources.limits.get("nvidia.com/gpu", "0")):
                found[pod.spec.node_name, Holder(pod.metadata.name, item.name)] += count
    return found


async def _claimed(client: Client, pods: list[Pod], gpus: dict[str, Place]) -> Holders:
    present = {pod.metadata.uid: pod for pod in pods}
    found: Holders = {}
    for claim in await client.list(resources.RESOURCE_CLAIMS, namespace=fleet.PODS):
        results = claim.status.allocation.devices.results if claim.status.allocation else ()
        for consumer in claim.status.reserved_for:
            if consumer.uid in present:
                containers = _containers(present[consumer.uid], claim.metadata.name)
                for result in results:
                    holder = Holder(consumer.name, containers.get(result.request, "c0"))
                    found[gpus.get(result.device.replace("gpu-", "GPU-", 1), (result.pool, -1))] = holder
    return found


def _containers(pod: Pod, claim: str) -> dict[str, str]:
    """Return the container of each request of a claim that the scheduler made for a pod's `nvidia.com/gpu`."""
    extended = pod.status.extended_resource_claim_status
    if extended is None or extended.resource_claim_name != claim:
        return {}
    return {item.request_name: item.container_name for item in extended.request_mappings}


def published(views: dict[str, Any]) -> Holders:
    """Return the holders in the views of nodes."""
    found: Holders = {}
    for node, view in views.items():
        for index, gpu in enumerate(view["gpus"]):
            owner = gpu["status"]["allocatedBy"]
            if owner["pod"]:
                found[node, index] = Holder(owner["pod"], owner["container"])
    return found


def disagreements(seen: Seen, nodes: dict[str, str]) -> list[str]:
    """Return what does not agree: empty at rest. `nodes` are all of them, each with its pool."""
    found = [f"pods start: {len(seen.starting)}"] if seen.starting else []
    found += _wrong_holders(seen, nodes)
    claimed = {key: holder for key, holder in seen.holders.items() if nodes.get(key[0]) in fleet.BY_CLAIM}
    if claimed != seen.claimed:
        found.append(f"claims: {_difference(claimed, seen.claimed)}")
    if (views := published(seen.views)) != seen.holders:
        found.append(f"views: {_difference(views, seen.holders)}")
    expected = dict.fromkeys(nodes, fleet.GPUS)
    if seen.gpus != expected:
        found.append(f"GPUs on the page: {_difference(seen.gpus, expected)}")
    if seen.views.keys() != nodes.keys():
        found.append(f"views of nodes: {sorted(seen.views.keys() ^ nodes.keys())}")
    devices = {name: 0 for name, pool in nodes.items() if pool in fleet.BY_CLAIM}
    for item in seen.slices.values():
        if (name := item.get("nodeName")) in devices:
            devices[name] += len(item.get("devices", ()))
    if devices != (claimable := dict.fromkeys(devices, fleet.GPUS)):
        found.append(f"devices in slices: {_difference(devices, claimable)}")
    simulated = nodes.keys() - fleet.REAL_NODES.keys()  # what others offer is their kubelet's to write
    offered = {name: int(seen.allocatable.get(name, {}).get("nvidia.com/gpu", "0")) for name in simulated}
    whole_gpus = {name: 0 if nodes[name] == fleet.CLAIMED else fleet.GPUS for name in simulated}
    if offered != whole_gpus:
        found.append(f"allocatable: {_difference(offered, whole_gpus)}")
    return found


def _wrong_holders(seen: Seen, nodes: dict[str, str]) -> Iterator[str]:
    """Yield where pods do not have as many GPUs as they request by count."""
    whole = collections.Counter(
        (node, holder) for (node, _), holder in seen.holders.items() if nodes.get(node) not in fleet.BY_CLAIM
    )
    overfull = overfilled(seen)
    got, wanted = _without(whole, overfull), _without(seen.wanted, overfull)
    if got != wanted:
        yield f"pods: {_difference(got, wanted)}"
    for name in sorted(overfull):
        held = collections.Counter({key: count for key, count in whole.items() if key[0] == name})
        if held.total() != fleet.GPUS or held - seen.wanted:
            yield f"pods of {name}, which has too many: {_difference(held, seen.wanted)}"


def overfilled(seen: Seen) -> set[str]:
    """Return nodes whose pods request more GPUs than there are.

    A scheduler whose binding was made, but not answered, forgets it for a moment, and may give the same GPUs to another
    pod. A kubelet would reject that one.
    """
    wanted: collections.Counter[str] = collections.Counter()
    for (node, _), count in seen.wanted.items():
        wanted[node] += count
    return {node for node, count in wanted.items() if count > fleet.GPUS}


def _without(counted: Counted, nodes: set[str]) -> Counted:
    return collections.Counter({key: count for key, count in counted.items() if key[0] not in nodes})


def differences(before: Seen, after: Seen) -> list[str]:
    """Return what a fresh start changed."""
    return [
        f"{name}: {_difference(was, now)}" if isinstance(was, dict) else f"{name}: {was} -> {now}"
        for name in before.__struct_fields__
        if (was := getattr(before, name)) != (now := getattr(after, name))
    ]


def leaks(seen: Seen, nodes: dict[str, str], claims: int, empty: Seen) -> dict[str, int]:
    """Return what is left over once all pods are gone, by kind; `empty` is from before the first pod."""
    slices = {str(item["nodeName"]) for item in seen.slices.values() if item.get("nodeName")}
    return {
        "GPUs": len(seen.holders) + len(published(seen.views)),
        "series": max(0, seen.series - empty.series),
        "ConfigMaps": len(seen.views.keys() - nodes.keys()) + len(seen.maps - empty.maps),
        "ResourceSlices": len(slices - nodes.keys()),
        "claims": claims,
    }


def _difference(one: Any, other: Any) -> str:
    """Return a few of the entries that differ."""
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    shown = ", ".join(f"{key}: {one.get(key)!r} / {other.get(key)!r}"[:300] for key in keys[:4])
    return f"{len(keys)} differ: {shown}"
