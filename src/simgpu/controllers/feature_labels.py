"""Labels that GPU feature discovery sets on a node with GPUs, besides those of its MIG devices. Pure functions."""

from __future__ import annotations

import re

from simgpu import vocabulary
from simgpu.controllers import mig_labels
from simgpu.kube import naming
from simgpu.kube.views import Node
from simgpu.topology import pools

LABELS = (
    vocabulary.GPU_MEMORY, vocabulary.GPU_PRODUCT, vocabulary.MIG_STRATEGY, vocabulary.GPU_COUNT,
    vocabulary.GPU_PRESENT, vocabulary.FAKE_GPU_LABEL, vocabulary.GPU_FAMILY, vocabulary.GPU_COMPUTE_MAJOR,
    vocabulary.GPU_COMPUTE_MINOR, vocabulary.DRIVER_FULL, vocabulary.DRIVER_MAJOR,
    vocabulary.DRIVER_MINOR, vocabulary.DRIVER_REVISION,
    vocabulary.CUDA_FULL, vocabulary.CUDA_MAJOR,
    vocabulary.CUDA_MINOR, vocabulary.GPU_MACHINE, vocabulary.GPU_REPLICAS,
    vocabulary.GPU_SHARING_STRATEGY, vocabulary.MIG_CAPABLE, vocabulary.MPS_CAPABLE, *vocabulary.DEPLOYED_LABELS,
    vocabulary.OLD_DRIVER_MAJOR, vocabulary.OLD_DRIVER_MINOR, vocabulary.OLD_DRIVER_REVISION,
    vocabulary.OLD_CUDA_MAJOR, vocabulary.OLD_CUDA_MINOR, vocabulary.GPU_MODE, vocabulary.VGPU_PRESENT,
)  # fmt: skip
ALL_LABELS = (
    *LABELS, vocabulary.DISCOVERY_TIME, *vocabulary.DEPLOYED_ON_REAL_LABELS, vocabulary.MANAGED_LABEL,
)  # of fake and of real nodes  # fmt: skip

_MODES = {"0302": "compute", "0300": "graphics"}  # by PCI class: 3D and VGA controllers

_OLD_NAMES = {
    vocabulary.OLD_DRIVER_MAJOR: vocabulary.DRIVER_MAJOR,
    vocabulary.OLD_DRIVER_MINOR: vocabulary.DRIVER_MINOR,
    vocabulary.OLD_DRIVER_REVISION: vocabulary.DRIVER_REVISION,
    vocabulary.OLD_CUDA_MAJOR: vocabulary.CUDA_MAJOR,
    vocabulary.OLD_CUDA_MINOR: vocabulary.CUDA_MINOR,
}


def _sharing(spec: pools.NodeGpus) -> dict[str, str]:
    """Return labels for sharing; the product gets a suffix unless the resource was renamed."""
    slicing = spec.slicing
    shared = slicing.replicas(vocabulary.GPU_RESOURCE) > 1
    renamed = slicing.name(vocabulary.GPU_RESOURCE) != vocabulary.GPU_RESOURCE
    suffix = "-SHARED" if shared and not renamed else ""
    return {
        vocabulary.GPU_PRODUCT: naming.label_value(spec.product)[: 63 - len(suffix)] + suffix,
        vocabulary.GPU_REPLICAS: str(slicing.replicas(vocabulary.GPU_RESOURCE)),
        vocabulary.GPU_SHARING_STRATEGY: "time-slicing" if shared else "none",
    }


def of_real(spec: pools.NodeGpus, strategy: str) -> dict[str, str]:
    """Return labels of a real node, with those for dynamic resource allocation."""
    return labels(spec, strategy) | (dict.fromkeys(vocabulary.DEPLOYED_ON_REAL_LABELS, "true") if spec.gpus else {})


def labels(spec: pools.NodeGpus, strategy: str) -> dict[str, str]:
    """Return the labels that GPU feature discovery sets; unknown facts are left out."""
    if not spec.gpus:
        return {vocabulary.FAKE_GPU_LABEL: "true"}
    model = spec.gpus[0].model
    driver, cuda = spec.driver_version.split("."), spec.cuda_version.split(".")
    capability = (model.compute_capability or "").split(".")
    found = {
        vocabulary.GPU_MEMORY: str(spec.memory_mib),
        vocabulary.MIG_STRATEGY: strategy,
        vocabulary.GPU_COUNT: str(len(spec.gpus)),
        vocabulary.GPU_PRESENT: "true",
        vocabulary.FAKE_GPU_LABEL: "true",
        vocabulary.GPU_FAMILY: naming.label_value(re.sub("[ _]", "-", model.architecture.lower())),
        vocabulary.GPU_COMPUTE_MAJOR: capability[0],
        vocabulary.GPU_COMPUTE_MINOR: [*capability, ""][1],
        vocabulary.DRIVER_FULL: naming.label_value(".".join(driver)),
        vocabulary.DRIVER_MAJOR: naming.label_value(driver[0]),
        vocabulary.DRIVER_MINOR: naming.label_value([*driver, "0"][1]),
        vocabulary.DRIVER_REVISION: naming.label_value([*driver, "0", ""][2]),
        vocabulary.CUDA_FULL: naming.label_value(".".join(cuda[:2])),
        vocabulary.CUDA_MAJOR: naming.label_value(cuda[0]),
        vocabulary.CUDA_MINOR: naming.label_value([*cuda, "0"][1]),
        vocabulary.GPU_MACHINE: "SimGPU",
        **_sharing(spec),
        vocabulary.MIG_CAPABLE: _mig_capable(spec),
        vocabulary.GPU_MODE: _mode(spec),
        vocabulary.VGPU_PRESENT: "false",
        vocabulary.MPS_CAPABLE: "false",
        **dict.fromkeys(vocabulary.DEPLOYED_LABELS, "true"),
    }
    found |= {old: found[new] for old, new in _OLD_NAMES.items()}
    return {name: value for name, value in found.items() if value} | mig_labels.labels(spec, strategy)


def discovery_time(node: Node, started: float) -> dict[str, str]:
    """Return the label of when feature discovery began: as the node has it, else `started`, in seconds since 1970.

    So a restart writes no label of any node.
    """
    before = node.metadata.labels.get(vocabulary.DISCOVERY_TIME, "")
    return {vocabulary.DISCOVERY_TIME: before if before.isdecimal() else str(int(started))}


def _mode(spec: pools.NodeGpus) -> str:
    """Return what the GPUs are for; unknown if they are not all of one PCI class."""
    classes = {gpu.model.pci.class_code for gpu in spec.gpus}
    return _MODES.get(classes.pop().lower().removeprefix("0x")[:4], "unknown") if len(classes) == 1 else "unknown"


def _mig_capable(spec: pools.NodeGpus) -> str:
    """Return whether any GPU can be divided; empty if that is not known."""
    found = {gpu.model.key: gpu.model for gpu in spec.gpus}.values()
    if any(model.mig for model in found):
        return "true"
    return "" if any(model.is_estimated("mig") for model in found) else "false"
