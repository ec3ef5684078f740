"""What a pod requests: the number of GPUs of each container, and their utilisation."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection

import msgspec

from simgpu import errors
from simgpu.kube import quantity
from simgpu.kube.views import Container, Pod
from simgpu.machines.users import ALL, Range
from simgpu.pods import annotated
from simgpu.vocabulary import (
    GPU_RESOURCE,
    MAX_CONTAINERS,
    MAX_GPUS,
    MAX_POD_ANNOTATION,
    MIG_RESOURCE_PREFIX,
    RUN_TIME_ANNOTATION,
    SOURCE_ANNOTATION,
    UTILIZATION_ANNOTATION,
    UTILIZATION_SOURCES,
)  # fmt: skip

ENDED = ("Succeeded", "Failed")
_SHARED_GPU = f"{GPU_RESOURCE}.shared"
_MAX_REQUEST = 99_999  # larger ones are taken for mistakes

_PERCENT = r"([0-9]{1,9})(?:\s*%)?"
_RANGE = re.compile(rf"{_PERCENT}(?:\s*-\s*{_PERCENT})?")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_RUN_TIME = re.compile(rf"{_NUMBER}|(?:{_NUMBER}(?:ms|h|m|s))+")


class Request(msgspec.Struct, frozen=True):
    """GPUs for one container."""

    container: str
    count: int


def requests(pod: Pod, resource: str = GPU_RESOURCE) -> tuple[Request, ...]:
    """Return the request of every container with GPUs, also sidecars and init containers, in the order of their start.

    `resource` is the name under which its node offers GPUs, or shares of them.

    Requests are capped at the GPUs that a node can have: each one, and the sum of those that run at the same time.
    """
    if pod.spec.containers is None:
        return ()
    found: list[Request] = []
    early, left = regular_init(pod), MAX_GPUS
    for container in containers(pod):
        count = _gpus(container, resource)
        if container.name not in early:
            count = min(count, left)
            left -= count
        if count:
            found.append(Request(container.name, count))
        if len(found) == MAX_CONTAINERS:
            break
    return tuple(found)


def requested(pod: Pod, renamed: Collection[str] = ()) -> tuple[int, int]:
    """Return how many GPUs, shares of them and MIG instances a pod requests, and how many of these are MIG instances.

    `renamed` are names that time-slicing gives to resources, besides those that end in `.shared`.
    """
    names = {name for item in containers(pod) for name in (*item.resources.limits, *item.resources.requests)}
    counts = {
        name: sum(item.count for item in requests(pod, name))
        for name in names
        if name in (GPU_RESOURCE, _SHARED_GPU) or name.startswith(MIG_RESOURCE_PREFIX) or name in renamed
    }
    instances = sum(count for name, count in counts.items() if name.startswith(MIG_RESOURCE_PREFIX))
    return sum(counts.values()), instances


def containers(pod: Pod) -> tuple[Container, ...]:
    """Return all containers of a pod, init containers first."""
    return (*pod.spec.init_containers, *(pod.spec.containers or ()))


def _gpus(container: Container, resource: str) -> int:
    amount = container.resources.limits.get(resource) or container.resources.requests.get(resource) or "0"
    found = quantity.count(amount)
    return min(found, MAX_GPUS) if found <= _MAX_REQUEST else 0


def regular_init(pod: Pod) -> set[str]:
    """Return the names of init containers that end before the others start: all but sidecars."""
    return {item.name for item in pod.spec.init_containers if item.restart_policy != "Always"}


def holds(pod: Pod) -> bool:
    """Return whether a pod is on a node and has not ended."""
    return bool(pod.spec.node_name) and pod.status.phase not in ENDED


def running(pod: Pod) -> bool:
    """Return whether its containers run."""
    return pod.status.phase == "Running"


def works(pod: Pod, container: str) -> bool:
    """Return whether one of its containers runs; an init container runs before the pod does."""
    early = (item.name for item in pod.status.init_container_statuses if item.state.running is not None)
    return running(pod) or container in early


def utilisation(pod: Pod, otherwise: Range = ALL) -> Range:
    """Return the utilisation in the annotation; `otherwise` without one. `InputError` if it is invalid."""
    text = annotated.read(pod, UTILIZATION_ANNOTATION)
    if text is None:
        return otherwise
    return parse_range(text, field=UTILIZATION_ANNOTATION)


@functools.lru_cache(1024)  # the same few, for every look at a pod
def parse_range(text: str, *, field: str) -> Range:
    """Return a percentage or a range of them; `InputError` if it is neither."""
    found = _RANGE.fullmatch(text.strip()) if len(text) <= MAX_POD_ANNOTATION else None
    if found is None:
        raise errors.InputError(field, f"{text[:40]!r}: must be a percentage such as 80, or a range such as 10-30")
    low = int(found[1])
    high = int(found[2]) if found[2] is not None else low
    if low > high:
        raise errors.InputError(field, f"{text!r}: the lower end is above the upper end")
    if high > 100:
        raise errors.InputError(field, f"{text!r}: at most 100")
    return Range(low, high)


def source(pod: Pod, otherwise: str) -> str:
    """Return the source of its utilisation: `pod` for its annotation, or `cpu` for its CPU time."""
    text = annotated.read(pod, SOURCE_ANNOTATION)
    if text is None:
        return otherwise
    if text not in UTILIZATION_SOURCES:
        raise errors.InputError(SOURCE_ANNOTATION, f"{text[:40]!r}: must be one of {', '.join(UTILIZATION_SOURCES)}")
    return text


def cores(pod: Pod, container: str) -> float:
    """Return the CPU limit of a container, in cores; 1 if there is none."""
    found = next((item for item in containers(pod) if item.name == container), None)
    try:
        amount = float(quantity.parse(found.resources.limits["cpu"])) if found else 0.0
    except (KeyError, ValueError):
        return 1.0
    return amount if amount > 0 else 1.0


def reserved(pod: Pod) -> tuple[int, int]:
    """Return what a pod's containers request together: CPU in thousandths of a core, and memory in bytes."""
    return _summed(pod, "cpu", 1000), _summed(pod, "memory", 1)


def _summed(pod: Pod, resource: str, scale: int) -> int:
    amounts = (item.resources.requests.get(resource, "0") for item in pod.spec.containers or ())
    return sum(_scaled(amount, scale) for amount in amounts)


def _scaled(amount: str, scale: int) -> int:
    try:
        return max(0, int(quantity.parse(amount) * scale))
    except ValueError:
        return 0


def check_run_time(pod: Pod) -> None:
    """Check the run time of a job's pod; `InputError` if KWOK cannot read it."""
    if not any(owner.kind == "Job" for owner in pod.metadata.owner_references):
        return
    text = annotated.read(pod, RUN_TIME_ANNOTATION)
    if text is None:
        return
    if _RUN_TIME.fullmatch(text) is None:
        raise errors.InputError(
            RUN_TIME_ANNOTATION, f"{text[:40]!r}: must be a time such as 30s, 1h30m or 500ms, or a number of seconds"
        )
