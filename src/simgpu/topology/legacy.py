"""Pools in fake-gpu-operator's older form: `gpuProduct`, `gpuCount` and `gpuMemory`."""

from __future__ import annotations

from typing import Any

from simgpu import errors
from simgpu.topology import keys
from simgpu.topology.checking import Checker, whole
from simgpu.topology.pools import NodeGpu, NodeGpus
from simgpu.vocabulary import MAX_GPUS


def read(pool: dict[str, Any], where: str, check: Checker) -> NodeGpus:
    """Return the GPUs of a pool, all of one product."""
    check.known(pool, keys.OLD_POOL, where)
    count, memory = pool.get("gpuCount", 0), pool.get("gpuMemory", 0)
    if not whole(count, MAX_GPUS):
        check.mistake(f"{where}.gpuCount", f"{errors.shown(count)}: must be a whole number from 0 to {MAX_GPUS}")
        return NodeGpus(())
    if not count:
        return NodeGpus(())
    product = check.text(pool, "gpuProduct", where)
    return NodeGpus((NodeGpu(check.product(product, memory or None, f"{where}.gpuMemory")),) * int(count))
