"""Pools in fake-gpu-operator's newer form: a `gpu` with a `profile`, and `overrides` of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu import errors
from simgpu.catalog import models
from simgpu.topology import devices, keys
from simgpu.topology.checking import Checker, whole
from simgpu.topology.pools import NodeGpu, NodeGpus
from simgpu.vocabulary import MAX_GPUS, PROFILE_PREFIX

Profiles = Callable[[str], Mapping[str, Any] | None]  # a profile that cannot be read is an `InputError`


def read(pool: dict[str, Any], where: str, check: Checker, profiles: Profiles) -> NodeGpus:
    """Return the GPUs of a pool, all of one profile, with the versions of its driver and of CUDA."""
    check.known(pool, keys.PROFILED_POOL, where)
    gpu, where = pool["gpu"], f"{where}.gpu"
    if not isinstance(gpu, dict):
        check.mistake(where, "must be a mapping")
        return NodeGpus(())
    check.known(gpu, keys.PROFILED_GPU, where)
    overrides = check.mapping(gpu, "overrides", f"{where}.")
    check.known(overrides, keys.OVERRIDES, f"{where}.overrides")
    name = check.text(gpu, "profile", where)
    model = check.catalog.find(name) if name else None
    profile = _profile(name, model, where, check, profiles) if name else {}
    if profile is None:
        return NodeGpus(())
    place = f"{where}.overrides." if overrides else f"{where}.profile."
    merged = models.merged(profile, overrides)
    defaults, system = (check.mapping(merged, part, place) for part in ("device_defaults", "system"))
    for part, allowed in (("device_defaults", keys.DEVICE_DEFAULTS), ("system", keys.SYSTEM)):
        check.known(overrides.get(part), allowed, f"{place}{part}")
    if isinstance(own := overrides.get("device_defaults"), dict):
        check.known(own.get("memory"), keys.MEMORY, f"{place}device_defaults.memory")
        check.known(own.get("compute_capability"), ("major", "minor"), f"{place}device_defaults.compute_capability")
    described = _described(defaults, system, model, f"{place}device_defaults", check)
    count = _count(merged, 8 if model and not profile else 0, place, check)
    if count is None:
        return NodeGpus(())
    driver, cuda = (check.text(system, name, f"{place}system") for name in ("driver_version", "cuda_version"))
    return NodeGpus((NodeGpu(described),) * count, driver=driver, cuda=cuda)


def _profile(
    name: str, model: models.Model | None, where: str, check: Checker, profiles: Profiles
) -> Mapping[str, Any] | None:
    """Return the profile of a name, empty if there is only a model; None if there is neither."""
    try:
        found = profiles(name)
    except errors.InputError as error:
        check.mistake(f"{where}.profile", str(error))
        return None
    if found is None and model is None:
        check.mistake(f"{where}.profile", f"no profile {name!r}: no ConfigMap {PROFILE_PREFIX}{name}, no such model")
        return None
    return found or {}


def _count(merged: Mapping[str, Any], default: int, place: str, check: Checker) -> int | None:
    listed = merged.get("devices") or []
    if not isinstance(listed, list):
        check.mistake(f"{place}devices", "must be a list")
        return None
    count = merged.get("device_count") or len(listed) or default
    if not whole(count, MAX_GPUS):
        check.mistake(f"{place}device_count", f"{errors.shown(count)}: must be a whole number from 0 to {MAX_GPUS}")
        return None
    return int(count)


def _described(
    defaults: Mapping[str, Any], system: Mapping[str, Any], like: models.Model | None, where: str, check: Checker
) -> models.Model:
    """Return the model that a profile describes; other fields are those of the catalog's model of its name."""
    size = check.mapping(defaults, "memory", f"{where}.").get("total_bytes")
    if size is not None and not (isinstance(size, int | float) and 1 << 20 <= size <= 1 << 50):
        problem = f"{errors.shown(size)}: must be a number of bytes, at least a MiB"
        check.mistake(f"{where}.memory.total_bytes", problem)
        size = None
    facts: dict[str, str] = {}
    if architecture := check.text(defaults, "architecture", where):
        facts["architecture"] = architecture
    capability = check.mapping(defaults, "compute_capability", f"{where}.")
    if "major" in capability:
        major, minor = capability["major"], capability.get("minor", 0)
        if whole(major, 99) and whole(minor, 9):
            facts["compute_capability"] = f"{major}.{minor}"
        else:
            check.mistake(f"{where}.compute_capability", "major is a whole number up to 99, minor one up to 9")
    if system.get("driver_version"):
        facts["driver"] = str(system["driver_version"])
    product = check.text(defaults, "name", where) or (like.product if like else "GPU")
    memory = int(size) >> 20 if size is not None else None
    return devices.named(product, memory, check.catalog, like=like, facts=facts)
