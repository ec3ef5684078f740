"""How busy pods are by default: by their workload kind, by the priority class of their PodGroup, or by their name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simgpu.kube.views import Pod
from simgpu.machines.users import ALL, NONE, Range
from simgpu.vocabulary import IDLE_POD_PREFIX, KIND_LABEL, POD_GROUP_ANNOTATION

FindClass = Callable[[str, str], str]  # the priority class of a PodGroup, by namespace and name; empty if unknown

_CLASSES: Final = {  # the priority class that workloads of a kind have
    "TrainingWorkload": "train",
    "InteractiveWorkload": "interactive",
    "InferenceWorkload": "inference",
    "DistributedWorkload": "distributed-inference",
    "DistributedInferenceWorkload": "distributed-inference",
}
_UTILIZATION: Final = {
    "train": Range(80, 100),
    "build": NONE,
    "interactive": NONE,
    "interactive-preemptible": NONE,
    "distributed": NONE,
    "inference": NONE,
    "distributed-inference": NONE,
}


def is_idle(pod: Pod) -> bool:
    """Return whether a pod is one that holds GPUs and never uses them."""
    return pod.metadata.name.startswith(IDLE_POD_PREFIX)


def has_kind(pod: Pod) -> bool:
    """Return whether a pod may have a kind: by its label, or by its PodGroup."""
    return KIND_LABEL in pod.metadata.labels or POD_GROUP_ANNOTATION in pod.metadata.annotations


def class_of(pod: Pod, find: FindClass) -> str:
    """Return the priority class of a pod's kind, else of its PodGroup; empty if it has neither."""
    meta = pod.metadata
    if (known := _CLASSES.get(meta.labels.get(KIND_LABEL, ""))) is not None:
        return known
    group = meta.annotations.get(POD_GROUP_ANNOTATION)
    return find(meta.namespace, group) if group else ""


def is_inference(priority_class: str) -> bool:
    """Return whether requests drive pods of a priority class."""
    return priority_class in ("inference", "distributed-inference")


def utilisation(priority_class: str) -> Range:
    """Return the utilisation of pods of a priority class; 100 % for others."""
    return _UTILIZATION.get(priority_class, ALL)
