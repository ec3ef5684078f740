"""What a pool of any format has besides GPUs: other resources, NUMA zones, sharing, failures, what pods may set."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from simgpu import errors
from simgpu.topology import failures, keys, sharing
from simgpu.topology.checking import Checker, whole
from simgpu.topology.pools import NodeGpus, Numa, is_resource_name
from simgpu.vocabulary import (
    DEFAULT_NUMA_DISTANCES,
    FROM_POD,
    GPU_RESOURCE,
    MAX_DEVICES,
    MAX_GPUS,
    MAX_NUMA_DISTANCE,
    MAX_NUMA_ZONES,
    MAX_RESOURCES,
    TOPOLOGY_POLICIES,
    TOPOLOGY_SCOPES,
    UTILIZATION_SOURCES,
)

_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|[KMGTPE]i?)?")


def read(holder: Mapping[str, Any], where: str, check: Checker) -> dict[str, Any]:
    """Return settings of real nodes as fields of `NodeGpus`: sharing, failures, settable, source of utilization."""
    settable, source = holder.get("settable", False), holder.get("utilizationFrom", FROM_POD)
    if not isinstance(settable, bool):
        check.mistake(f"{where}.settable", f"{errors.shown(settable)}: must be true or false")
    if source not in UTILIZATION_SOURCES:
        check.mistake(
            f"{where}.utilizationFrom", f"{errors.shown(source)}: must be one of {', '.join(UTILIZATION_SOURCES)}"
        )
    found: dict[str, Any] = {"settable": settable is True, "utilization_from": source}
    parsers: dict[str, tuple[str, Callable[..., Any]]] = {
        "slicing": ("sharing", sharing.parse), "failures": ("failures", failures.parse),
    }  # fmt: skip
    for name, (key, parse_part) in parsers.items():
        try:
            found[name] = parse_part(holder.get(key) or {}, field=f"{where}.{key}")
        except errors.InputError as error:
            check.mistake(error.field, error.problem)
    return found


def check_replicas(spec: NodeGpus, *, where: str, check: Checker) -> None:
    """Checks that no resource has more replicas than the kubelet's list of devices has room for."""
    for resource, count in {GPU_RESOURCE: len(spec.gpus), **spec.other}.items():
        replicas = spec.slicing.replicas(resource)
        if replicas > 1 and count * replicas > MAX_DEVICES:
            problem = f"{resource}: {count} devices, {replicas} times each; at most {MAX_DEVICES} in all"
            check.mistake(f"{where}.sharing", problem)


def other_resources(pool: Mapping[str, Any], where: str, check: Checker) -> dict[str, int]:
    """Return how many devices of each resource but GPUs a node has, from `otherDevices` and `resources`."""
    listed = _list(pool, "otherDevices", "must be a list", where, check)
    for number, item in enumerate(listed):
        check.known(item, keys.OTHER_DEVICE, f"{where}.otherDevices[{number}]")
    pairs = [(item.get("name"), item.get("count")) if isinstance(item, dict) else (None, None) for item in listed]
    found = _counted(pairs, f"{where}.otherDevices", check)
    listed = _list(pool, "resources", "must be a list of mappings with one entry", where, check)
    pairs = [next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (None, None) for item in listed]
    found |= _counted(pairs, f"{where}.resources", check)
    found.pop(GPU_RESOURCE, None)
    if len(found) > MAX_RESOURCES:
        check.mistake(where, f"has {len(found)} other resources; at most {MAX_RESOURCES}")
    return found


def _list(pool: Mapping[str, Any], name: str, problem: str, where: str, check: Checker) -> list[Any]:
    listed = pool.get(name) or []
    if isinstance(listed, list):
        return listed
    check.mistake(f"{where}.{name}", problem)
    return []


def _counted(pairs: Iterable[tuple[Any, Any]], where: str, check: Checker) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, (name, count) in enumerate(pairs):
        if not isinstance(name, str) or not is_resource_name(name):
            check.mistake(f"{where}[{number}]", f"{errors.shown(name)} is no resource name such as rdma/hca")
        elif not whole(count, MAX_DEVICES):
            problem = f"{name}: {errors.shown(count)}: must be a whole number from 0 to {MAX_DEVICES}"
            check.mistake(f"{where}[{number}]", problem)
        else:
            found[name] = int(count)
    return found


def numa(document: Any, *, where: str, gpus: int, check: Checker) -> Numa | None:
    """Return the NUMA zones of a node; None if not configured."""
    if document is None:
        return None
    if not isinstance(document, dict) or not whole(document.get("zones", 1), MAX_NUMA_ZONES):
        check.mistake(where, f"must have zones, a whole number up to {MAX_NUMA_ZONES}")
        return None
    check.known(document, keys.NUMA, where)
    zones = int(document.get("zones", 1))
    if zones == 0:
        return None
    spread = document.get("gpusPerZone") or []
    if not isinstance(spread, list) or not all(whole(item, MAX_GPUS) for item in spread):
        check.mistake(f"{where}.gpusPerZone", "must be a list of whole numbers")
        return None
    if spread and gpus and (len(spread) != zones or sum(spread) != gpus):
        check.mistake(f"{where}.gpusPerZone", f"must have {zones} entries that add up to {gpus} GPUs")
    near, far = _distances(document, where, check)
    return Numa(
        zones, tuple(int(item) for item in spread),
        policy=_chosen(document, "topologyManagerPolicy", TOPOLOGY_POLICIES, where, check),
        scope=_chosen(document, "topologyManagerScope", TOPOLOGY_SCOPES, where, check),
        cpu=_amount(document, "cpuPerZone", "4 or 3500m", where, check),
        memory=_amount(document, "memPerZone", "64Gi", where, check),
        near=near, far=far,
    )  # fmt: skip


def _chosen(document: Mapping[str, Any], name: str, allowed: Sequence[str], where: str, check: Checker) -> str:
    """Return one of the allowed values; the first if there is none."""
    found = document.get(name) or allowed[0]
    if found not in allowed:
        check.mistake(f"{where}.{name}", f"{errors.shown(found)}: must be one of {', '.join(allowed)}")
    return str(found)


def _amount(document: Mapping[str, Any], name: str, example: str, where: str, check: Checker) -> str:
    """Return a quantity, as text; empty if there is none."""
    found = document.get(name)
    if found is None or found == "":
        return ""
    if isinstance(found, bool) or not isinstance(found, str | int) or not _QUANTITY.fullmatch(str(found)):
        check.mistake(f"{where}.{name}", f"{errors.shown(found)}: must be a quantity such as {example}")
        return ""
    return str(found)


def _distances(document: Mapping[str, Any], where: str, check: Checker) -> tuple[int, int]:
    given = check.mapping(document, "distances", f"{where}.")
    check.known(given, keys.DISTANCES, f"{where}.distances")
    found = []
    for name, default in zip(keys.DISTANCES, DEFAULT_NUMA_DISTANCES, strict=True):
        value = given.get(name, default)
        if not whole(value, MAX_NUMA_DISTANCE):
            problem = f"{errors.shown(value)}: must be a whole number up to {MAX_NUMA_DISTANCE}"
            check.mistake(f"{where}.distances.{name}", problem)
            value = default
        found.append(int(value))
    return found[0], found[1]
