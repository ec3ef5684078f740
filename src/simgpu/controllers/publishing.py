"""What is published for a node with GPUs: labels, capacity, and its view in a ConfigMap. Pure functions."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import models
from simgpu.controllers import feature_labels, mig_labels, view_format
from simgpu.kube import naming, quantity
from simgpu.kube.views import ConfigMap, Node
from simgpu.machines.users import PodRef, User
from simgpu.topology import allocating, devices, mig_files, mig_layouts, mig_offers, pools, sharing
from simgpu.topology.mig_offers import NumberedInstance


def view_name(node: str) -> str:
    """Return the name of a node's ConfigMap."""
    return vocabulary.VIEW_PREFIX + naming.shortened(node, vocabulary.MAX_NAME - len(vocabulary.VIEW_PREFIX))


def node_of(view_of: ConfigMap) -> str:
    """Return the node that a ConfigMap is the view of; empty if its name is not that of a view."""
    meta = view_of.metadata
    full = meta.annotations.get(vocabulary.VIEW_NODE_ANNOTATION, "")
    if full and view_name(full) == meta.name:
        return full
    return meta.name.removeprefix(vocabulary.VIEW_PREFIX) if meta.name.startswith(vocabulary.VIEW_PREFIX) else ""


def label_patch(wanted: Mapping[str, str], before: Iterable[str]) -> dict[str, Any]:
    """Return the patch of a node's labels; those from before that are not wanted any more are removed."""
    return {"metadata": {"labels": {**dict.fromkeys(sorted(before)), **wanted}}}


def amounts(spec: pools.NodeGpus | None, strategy: str, *, unhealthy: Collection[int] = ()) -> dict[str, str]:
    """Return extended resources of a node, in the API's canonical form; without GPUs that are unhealthy, by index.

    Devices that are shared count once for each share, under the name that they are offered by.
    """
    if spec is None:
        return {}
    gpus: dict[str, int] = {}
    if spec.allocation.by_count:
        offers = mig_offers.offered(spec, strategy)
        gpus = {name: sum(item.gpu not in unhealthy for item in items) for name, items in offers.items()}
    slicing = spec.slicing
    return {
        slicing.name(name): quantity.canonical(count * slicing.replicas(name))
        for name, count in (gpus | spec.other).items()
    }


class OwnedFields(msgspec.Struct):
    """Names of labels and resources that we wrote on a node, to be removed later."""

    labels: set[str]
    resources: set[str]

    def add_all(self, node: Node) -> None:
        """Add all names that we could own on a node: it is marked as ours, and its view is missing."""
        self.labels.update(feature_labels.ALL_LABELS, filter(mig_labels.is_ours, node.metadata.labels))
        divided = (name for name in node.status.capacity if name.startswith(vocabulary.MIG_RESOURCE_PREFIX))
        self.resources.update((vocabulary.GPU_RESOURCE, *divided))

    def drop_missing(self, node: Node) -> None:
        """Drop names that the node does not have any more: other writers may add them again as their own."""
        self.labels &= node.metadata.labels.keys()
        self.resources &= node.status.capacity.keys() | node.status.allocatable.keys()


def node_patch(
    labels: Mapping[str, str],
    resources: Mapping[str, str],
    owned: OwnedFields,
    *,
    allocatable: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the patch of a node's labels and capacity; what we own and do not want any more is removed.

    Less of it can be `allocatable`, as with a kubelet whose devices are unhealthy.
    """
    gone = dict.fromkeys(sorted(owned.resources))
    status = {"capacity": gone | dict(resources), "allocatable": gone | dict(allocatable or resources)}
    return label_patch(labels, owned.labels) | {"status": status}


def owned_on(before: PreviousView, node: Node) -> OwnedFields:
    """Return what an earlier controller owned on a node; if its view is missing but the node is marked, all names."""
    marked = (
        vocabulary.FAKE_GPU_LABEL in node.metadata.labels
        and node.metadata.annotations.get(vocabulary.KWOK_NODE) == "fake"
    )
    owned = OwnedFields(set(before.labels), set(before.resources))
    if marked and not before.labels:
        owned.add_all(node)
    elif before.labels and vocabulary.MIG_CONFIG_STATE in node.metadata.labels:
        owned.labels.add(vocabulary.MIG_CONFIG_STATE)  # perhaps of a controller that did not get to its view
    return owned


def document(
    ids: Sequence[str],
    spec: pools.NodeGpus,
    *,
    strategy: str,
    users: Mapping[str, Sequence[User]],
    claimed: Mapping[str, Sequence[NumberedInstance]] = {},
) -> dict[str, Any]:
    """Return the document of a node's view: its GPUs and their users; `claimed` are instances that claims made."""
    gpus = []
    for gpu_id, gpu in zip(ids, spec.gpus, strict=True):
        there = users.get(gpu_id, ())
        entry: dict[str, Any] = {"id": gpu_id, "status": _status(there) if there else _UNUSED}
        if spec.mixed:
            entry |= {"gpuProduct": gpu.model.product, "gpuMemory": gpu.model.memory_mib.total}
        if gpu.layout.enabled or gpu_id in claimed:
            listed = claimed.get(gpu_id) or mig_offers.numbered(gpu.layout, gpu.model)
            entry["mig"] = {"instances": _instances(gpu_id, listed, there)}
        gpus.append(entry)
    found: dict[str, Any] = {"gpuMemory": spec.memory_mib, "gpuProduct": spec.product}
    if spec.driver:
        found["driverVersion"] = spec.driver
    if spec.cuda:
        found["cudaVersion"] = spec.cuda
    found |= {"gpus": gpus, "migStrategy": strategy}
    if spec.allocation != allocating.DEFAULT:
        found["allocation"] = spec.allocation.way
    if options := msgspec.to_builtins(spec.allocation.options):
        found["dra"] = options
    if spec.slicing != sharing.NONE:
        resources = [msgspec.to_builtins(item) for item in spec.slicing.resources]
        found["sharing"] = {"timeSlicing": msgspec.to_builtins(spec.slicing) | {"resources": resources}}
    if spec.other:
        found["otherDevices"] = [{"name": name, "count": count} for name, count in sorted(spec.other.items())]
    return found


def _instances(gpu_id: str, listed: Iterable[NumberedInstance], users: Sequence[User]) -> list[dict[str, Any]]:
    """Return the MIG instances of a GPU, with their ids, and the container that has each."""
    owners = {user.part: user.pod for user in reversed(users)}
    found: list[dict[str, Any]] = []
    for start, number, profile in listed:
        entry: dict[str, Any] = {"id": devices.part_id(gpu_id, number), "profile": profile.name, "start": start}
        if (owner := owners.get(number)) is not None:
            entry["allocatedBy"] = {"namespace": owner.namespace, "pod": owner.name, "container": owner.container}
        found.append(entry)
    return found


def view(  # noqa: PLR0913 - all that a view shows
    node: str,
    ids: Sequence[str],
    spec: pools.NodeGpus,
    *,
    strategy: str,
    users: Mapping[str, Sequence[User]],
    counters: Mapping[str, Any],
    claimed: Mapping[str, Sequence[NumberedInstance]] = {},
    fake: bool = True,
    labelled: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the node's ConfigMap; `labelled` are labels that we own on the node."""
    labels = {vocabulary.VIEW_LABEL: "true", vocabulary.VIEW_NODE_LABEL: naming.shortened(node, vocabulary.MAX_LABEL)}
    written = {vocabulary.VIEW_LABELS_ANNOTATION: ",".join(sorted(labelled))}
    if labels[vocabulary.VIEW_NODE_LABEL] != node:
        written[vocabulary.VIEW_NODE_ANNOTATION] = node
    shown = document(ids, spec, strategy=strategy, users=users, claimed=claimed)
    return {
        "metadata": {"labels": labels, "annotations": written | ({vocabulary.KWOK_NODE: "fake"} if fake else {})},
        "data": {
            vocabulary.TOPOLOGY_KEY: "".join(_lines(shown, 0)),
            vocabulary.COUNTERS_KEY: msgspec.json.encode(counters).decode(),
        },
    }


def same_but_counters(one: ConfigMap, other: ConfigMap) -> bool:
    """Return whether two versions of a ConfigMap differ at most in the saved counters."""
    metas = one.metadata, other.metadata
    rest = [{key: text for key, text in item.data.items() if key != vocabulary.COUNTERS_KEY} for item in (one, other)]
    return rest[0] == rest[1] and all(
        getattr(metas[0], name) == getattr(metas[1], name)
        for name in ("uid", "labels", "annotations", "deletion_timestamp")
    )


def pool_json(pool: pools.NodeGpus) -> dict[str, Any]:
    """Return a pool for the topology API."""
    return {
        "GpuCount": len(pool.gpus), "GpuMemory": pool.memory_mib, "GpuProduct": pool.product,
        "OtherDevices": _others_json(pool.other),
    }  # fmt: skip


def node_json(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node for the topology API, from its document; GPUs have model fields if models differ."""
    others = node.get("otherDevices") or ()
    return {
        "GpuMemory": node["gpuMemory"], "GpuProduct": node["gpuProduct"],
        "DriverVersion": node.get("driverVersion", ""), "CudaVersion": node.get("cudaVersion", ""),
        "Gpus": [_gpu_json(gpu) for gpu in node["gpus"]], "MigStrategy": node["migStrategy"],
        "OtherDevices": _others_json({item["name"]: item["count"] for item in others}),
    }  # fmt: skip


def _gpu_json(gpu: Mapping[str, Any]) -> dict[str, Any]:
    owner, usage = gpu["status"]["allocatedBy"], gpu["status"]["podGpuUsageStatus"]
    entry: dict[str, Any] = {
        "ID": gpu["id"],
        "Status": {
            "AllocatedBy": {key.capitalize(): owner[key] for key in ("namespace", "pod", "container")},
            "PodGpuUsageStatus": {
                uid: {
                    "Utilization": {"Min": item["utilization"]["min"], "Max": item["utilization"]["max"]},
                    "FbUsed": item["fbUsed"],
                    "UseKnativeUtilization": item["useKnativeUtilization"],
                }
                for uid, item in usage.items()
            },
        },
    }
    entry |= {f"Gpu{key}": gpu[f"gpu{key}"] for key in ("Product", "Memory") if f"gpu{key}" in gpu}
    if "mig" in gpu:
        names = ("id", "profile", "start")
        instances = [{key.capitalize(): item[key] for key in names} for item in gpu["mig"].get("instances", ())]
        entry["Mig"] = {"Instances": instances}
    return entry


def view_json(config_map: ConfigMap) -> dict[str, Any]:
    """Return a node for the topology API, from its view; `InputError` if that is invalid."""
    try:
        return node_json(msgspec.to_builtins(view_format.read(config_map.data.get(vocabulary.TOPOLOGY_KEY, ""))))
    except ValueError:
        raise errors.InputError(
            f"ConfigMap {config_map.metadata.name}", f"{vocabulary.TOPOLOGY_KEY} is not a node's topology"
        ) from None


def _others_json(other: Mapping[str, int]) -> list[dict[str, Any]] | None:
    """Null where there are none, as programs in Go write a list that was never filled."""
    return [{"Name": name, "Count": count} for name, count in sorted(other.items())] or None


def _status(users: Sequence[User]) -> dict[str, Any]:
    """Return the owner of a GPU, and the usage of all pods that share it."""
    first = users[0].pod if users else PodRef("")
    owner = {"namespace": first.namespace, "pod": first.name, "container": first.container}
    memory: Counter[str] = Counter()  # of all of a pod's containers
    for user in users:
        memory[user.pod.uid] += user.memory_mib
    usage = {
        user.pod.uid: {
            "utilization": {"min": user.utilization.low, "max": user.utilization.high},
            "fbUsed": memory[user.pod.uid],
            "useKnativeUtilization": user.full_load > 0,
        }
        for user in users
        if not user.reserves
    }
    return {"allocatedBy": owner, "podGpuUsageStatus": usage}


_UNUSED = _status(())
_PLAIN_INSTANCE = 3  # fields of a MIG instance that nobody has

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._/-]*( [A-Za-z0-9._/-]+)*")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def _lines(value: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield a mapping as YAML; much faster than a general writer, for thousands of nodes."""
    pad = "  " * depth
    for key, item in value.items():
        if item is _UNUSED:
            yield f"{pad}{_scalar(key)}:\n{_unused_lines(depth + 1)}"
        elif isinstance(item, dict) and item:
            yield f"{pad}{_scalar(key)}:\n"
            yield from _lines(item, depth + 1)
        elif isinstance(item, list) and item:
            yield f"{pad}{_scalar(key)}:\n"
            for entry in item:
                if len(entry) == _PLAIN_INSTANCE and "profile" in entry:  # of which there are many
                    yield f"{pad}- id: {entry['id']}\n{pad}  profile: {_scalar(entry['profile'])}\n"
                    yield f"{pad}  start: {entry['start']}\n"
                    continue
                inner = "".join(_lines(entry, depth + 1))
                yield f"{pad}- {inner[len(pad) + 2 :]}"
        else:
            yield f"{pad}{_scalar(key)}: {_scalar(item) if item or not isinstance(item, list | dict) else item}\n"


@functools.cache
def _unused_lines(depth: int) -> str:
    """Return the status of a GPU that nobody uses, which most have."""
    return "".join(_lines(dict(_UNUSED), depth))


@functools.lru_cache(1 << 16, typed=True)  # keys, ids and names are the same from one view to the next
def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)


def is_view(config_map: ConfigMap) -> bool:
    """Return whether it is the view of a fake node: those of real nodes belong to their agents."""
    meta = config_map.metadata
    marked = meta.labels.get(vocabulary.VIEW_LABEL) == "true" and vocabulary.VIEW_NODE_LABEL in meta.labels
    return marked and meta.annotations.get(vocabulary.KWOK_NODE) == "fake"


class PreviousView(msgspec.Struct, frozen=True):
    """The state in a node's view: GPUs by pod uid, as (container, id), resources and labels we own, and counters."""

    held: dict[str, tuple[tuple[str, str], ...]] = {}
    resources: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    counters: view_format.Counters = view_format.Counters()
    broken: str = ""  # why saved counters could not be read


def published(
    views: Iterable[ConfigMap], catalog: models.Catalog, *, pool: pools.NodeGpus | None = None
) -> pools.Topology:
    """Return the configuration that views imply, to use while the real one is invalid or missing.

    GPUs whose product the catalog does not have are like those of the `pool`, if that has them.
    """
    like = {gpu.model.product: gpu.model for gpu in pool.gpus} if pool is not None else {}
    nodes: dict[str, pools.NodeGpus] = {}
    strategy = "mixed"
    for view_of in views:
        try:
            found = view_format.read(view_of.data.get(vocabulary.TOPOLOGY_KEY, ""))
            nodes[node_of(view_of)] = _spec(found, catalog, like)
        except (ValueError, errors.InputError):
            continue
        strategy = found.mig_strategy
    return pools.Topology(nodes=nodes, mig_strategy=strategy)


def _spec(found: view_format.View, catalog: models.Catalog, like: Mapping[str, models.Model]) -> pools.NodeGpus:
    gpus, way = [], allocating.GpuAllocation(found.allocation, found.dra)
    for gpu in found.gpus:
        memory = found.gpu_memory if gpu.gpu_memory is None else gpu.gpu_memory
        product = found.gpu_product if gpu.gpu_product is None else gpu.gpu_product
        if not memory:
            raise ValueError(f"{gpu.id} has no memory")
        model = devices.named(product, memory, catalog, like=like.get(product))
        layout = mig_layouts.WHOLE if way.divides else _layout(gpu.mig, model)  # claims have what they made
        gpus.append(pools.NodeGpu(model, gpu.id, layout=layout))
    other = {item.name: item.count for item in found.other_devices}
    return pools.NodeGpus(
        tuple(gpus), other, driver=found.driver_version, cuda=found.cuda_version, allocation=way,
        slicing=found.sharing.time_slicing, mig=mig_files.MigSettings(found.mig_strategy),
    )  # fmt: skip


def _layout(found: view_format.DividedView | None, model: models.Model) -> mig_layouts.CardLayout:
    if found is None:
        return mig_layouts.WHOLE
    if not found.instances:
        return mig_layouts.CardLayout(enabled=True)
    return mig_layouts.placed([(item.profile, item.start) for item in found.instances], model, field="mig")


def owned_labels(config_map: ConfigMap | None) -> tuple[str, ...]:
    """Return the labels that we own on a node according to its view; names that we never write are ignored."""
    listed = set(
        config_map.metadata.annotations.get(vocabulary.VIEW_LABELS_ANNOTATION, "").split(",")
        if config_map is not None
        else ()
    )
    known = listed.intersection(feature_labels.ALL_LABELS)
    return tuple(sorted(name for name in listed if name in known or mig_labels.is_ours(name)))


def read_previous(config_map: ConfigMap | None) -> PreviousView:
    """Return the state in a view; invalid parts are left out."""
    if config_map is None:
        return PreviousView()
    counters, broken = view_format.Counters(), ""
    try:
        counters = view_format.read_counters(config_map.data.get(vocabulary.COUNTERS_KEY, "{}"))
    except ValueError as error:
        broken = str(error)
    labels = owned_labels(config_map)
    try:
        found = view_format.read(config_map.data.get(vocabulary.TOPOLOGY_KEY, ""))
    except ValueError:
        return PreviousView(labels=labels, counters=counters, broken=broken)
    held: dict[str, list[tuple[str, str]]] = {}
    for gpu in found.gpus:
        for uid in gpu.status.pod_gpu_usage_status:
            held.setdefault(uid, []).append((gpu.status.allocated_by.container, gpu.id))
    static = () if allocating.GpuAllocation(found.allocation, found.dra).divides else found.gpus
    divided = (item.profile for gpu in static if gpu.mig is not None for item in gpu.mig.instances)
    resources = (
        vocabulary.GPU_RESOURCE,
        *(item.name for item in found.other_devices),
        *dict.fromkeys(map(mig_layouts.resource_name, divided)),
    )
    offered = tuple(map(found.sharing.time_slicing.name, resources))
    owned = tuple(dict.fromkeys((*resources, *offered)))
    return PreviousView({uid: tuple(pairs) for uid, pairs in held.items()}, owned, labels, counters, broken)
