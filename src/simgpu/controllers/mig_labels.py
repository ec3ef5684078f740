"""Labels that GPU feature discovery sets on a node whose cards are divided by MIG."""

from __future__ import annotations

import re
from collections import Counter

from simgpu import vocabulary
from simgpu.catalog import models, placing
from simgpu.kube import naming
from simgpu.topology import mig_layouts, mig_offers, pools

ATTRIBUTES = (
    "multiprocessors", "slices.gi", "slices.ci", "engines.copy", "engines.decoder", "engines.encoder", "engines.jpeg",
    "engines.ofa",
)  # fmt: skip
_NAMES = frozenset(("product", "count", "replicas", "sharing-strategy", "memory", *ATTRIBUTES))
_PROFILE = re.compile(r"[1-8]g\.[0-9]{1,5}gb[a-z.-]{0,13}")
_OF_GPU = tuple(f"{vocabulary.GPU_RESOURCE}.{name}" for name in ATTRIBUTES)


def is_ours(name: str) -> bool:
    """Return whether a label is one of those that this module sets, besides those of nodes without MIG."""
    if name in _OF_GPU or name == vocabulary.MIG_CONFIG_STATE:
        return True
    rest = name.removeprefix(vocabulary.MIG_RESOURCE_PREFIX)
    return rest != name and any(
        rest.endswith(f".{suffix}") and _PROFILE.fullmatch(rest[: -len(suffix) - 1]) for suffix in _NAMES
    )


def labels(spec: pools.NodeGpus, strategy: str) -> dict[str, str]:
    """Return the labels that a divided node has besides, or instead of, those of one with whole GPUs."""
    if strategy == vocabulary.MIG_NONE or not spec.divided:
        return {}
    if strategy == vocabulary.MIG_SINGLE:
        return _single(spec)
    whole = {gpu.model.product for gpu in spec.gpus if not gpu.layout.enabled}
    # Feature discovery counts all cards; those that are divided are never shared.
    found = {} if spec.product in whole else {vocabulary.GPU_REPLICAS: "0"}
    counts = Counter(item.name for gpu in spec.gpus for item in gpu.layout.instances)
    for name, count in counts.items():
        gpu = next(gpu for gpu in spec.gpus if any(item.name == name for item in gpu.layout.instances))
        profile = next(item for item in gpu.layout.instances if item.name == name)
        found |= _instances(mig_layouts.resource_name(name), spec, profile, gpu.model, count)
    return found


def _single(spec: pools.NodeGpus) -> dict[str, str]:
    profile = mig_offers.single_profile(spec)
    if profile is None:
        product = next(gpu.model.product for gpu in spec.gpus if gpu.layout.enabled)
        return {
            vocabulary.GPU_PRODUCT: naming.label_value(f"{product}-MIG-INVALID"),
            vocabulary.GPU_COUNT: "0",
            vocabulary.GPU_REPLICAS: "0",
            vocabulary.GPU_SHARING_STRATEGY: "",
            vocabulary.GPU_MEMORY: "0",
        }
    count = sum(len(gpu.layout.instances) for gpu in spec.gpus)
    return _instances(vocabulary.GPU_RESOURCE, spec, profile, spec.gpus[0].model, count)


def _instances(
    resource: str, spec: pools.NodeGpus, profile: models.MigProfile, model: models.Model, count: int
) -> dict[str, str]:
    """Return the labels of the instances of a profile, which are offered as a resource."""
    slicing, engines = spec.slicing, placing.engines(profile, model)
    replicas, compute = slicing.replicas(resource), placing.compute_slices(profile)
    suffix = "-SHARED" if replicas > 1 and slicing.name(resource) == resource else ""
    values = {
        "product": naming.label_value(f"{model.product}-MIG-{mig_layouts.plain_name(profile.name)}{suffix}"),
        "count": count, "replicas": replicas, "sharing-strategy": "time-slicing" if replicas > 1 else "none",
        "memory": placing.memory_mib(profile, model), "multiprocessors": placing.multiprocessors(profile, model),
        "slices.gi": compute, "slices.ci": compute, "engines.copy": engines.copy, "engines.decoder": engines.decoders,
        "engines.encoder": engines.encoders, "engines.jpeg": engines.jpeg, "engines.ofa": engines.ofa,
    }  # fmt: skip
    return {f"{resource}.{name}": str(value) for name, value in values.items()}
