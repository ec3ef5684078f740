"""Nodes by name: GPUs of one product, each with an id and, if wanted, static metrics."""

from __future__ import annotations

from typing import Any

from simgpu.topology import keys
from simgpu.topology.checking import Checker, whole
from simgpu.topology.devices import StaticMetrics
from simgpu.topology.pools import ID, NodeGpu, NodeGpus
from simgpu.vocabulary import GPU_MEMORY_KEY, MAX_GPUS, MAX_MEMORY_MIB


def read(node: dict[str, Any], where: str, check: Checker) -> NodeGpus:
    """Return the GPUs of a node."""
    check.known(node, keys.NAMED_NODE, where)
    listed = node.get("gpus")
    if not isinstance(listed, list) or len(listed) > MAX_GPUS:
        check.mistake(f"{where}.gpus", f"must be a list of at most {MAX_GPUS} GPUs with ids")
        return NodeGpus(())
    product = check.text(node, "gpu-product", where)
    model = check.product(product, node.get(GPU_MEMORY_KEY) or None, f"{where}.{GPU_MEMORY_KEY}")
    gpus, seen = [], set[str]()
    for number, item in enumerate(listed):
        place = f"{where}.gpus[{number}]"
        name = item.get("id") if isinstance(item, dict) else None
        if not isinstance(name, str) or not ID.fullmatch(name) or name in seen:
            check.mistake(
                f"{place}.id", "must be 1 to 63 letters, digits, '.', '_' or '-' that no other GPU of the node has"
            )
            continue
        seen.add(name)
        check.known(item, keys.NAMED_GPU, place)
        gpus.append(NodeGpu(model, name, _metrics(item.get("metrics"), f"{place}.metrics", check)))
    return NodeGpus(tuple(gpus))


def _metrics(metrics: Any, where: str, check: Checker) -> StaticMetrics | None:
    if metrics is None:
        return None
    if not isinstance(metrics, dict):
        check.mistake(where, "must be a mapping")
        return None
    check.known(metrics, keys.METRICS, where)
    owner = check.mapping(metrics, "metadata", f"{where}.")
    check.known(owner, keys.OWNER, f"{where}.metadata")
    usage, used = metrics.get("utilization", 0), metrics.get("fb-used", 0)
    if not whole(usage, 100) or not whole(used, MAX_MEMORY_MIB):
        check.mistake(where, "utilization is from 0 to 100, and fb-used a number of MiB")
        return None
    names = {name: check.text(owner, name, f"{where}.metadata") for name in keys.OWNER}
    return StaticMetrics(float(usage), float(used), **names)
