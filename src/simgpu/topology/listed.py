"""Pools with a list of `gpus`: a model or product each, its memory and how many there are."""

from __future__ import annotations

from typing import Any

from simgpu import errors
from simgpu.topology import keys
from simgpu.topology.checking import Checker, whole
from simgpu.topology.pools import NodeGpu, NodeGpus
from simgpu.vocabulary import MAX_GPUS, MAX_NAME


def read(pool: dict[str, Any], where: str, check: Checker) -> NodeGpus:
    """Return the GPUs of a pool; none if there are too many."""
    check.known(pool, keys.LISTED_POOL, where)
    where = f"{where}.gpus"
    if not isinstance(pool["gpus"], list):
        check.mistake(where, "must be a list of GPUs, each with type, memory and count")
        return NodeGpus(())
    found: list[NodeGpu] = []
    for number, entry in enumerate(pool["gpus"]):
        found += _entry(entry, f"{where}[{number}]", check)
        if len(found) > MAX_GPUS:
            check.mistake(f"{where}[{number}].count", f"a node has at most {MAX_GPUS} GPUs")
            return NodeGpus(())
    return NodeGpus(tuple(found))


def _entry(entry: Any, where: str, check: Checker) -> list[NodeGpu]:
    if not isinstance(entry, dict):
        check.mistake(where, "must be a mapping with type, memory and count")
        return []
    check.known(entry, keys.LISTED_GPU, where)
    name, count = entry.get("type"), entry.get("count", 1)
    if not whole(count, MAX_GPUS) or count < 1:
        check.mistake(f"{where}.count", f"{errors.shown(count)}: must be a whole number from 1 to {MAX_GPUS}")
        count = 0
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        check.mistake(f"{where}.type", f"{errors.shown(name)}: must be a model or product, such as h200")
        check.size(entry.get("memory"), f"{where}.memory")
        return []
    return [NodeGpu(check.product(name, entry.get("memory"), f"{where}.memory"))] * count
