"""What a pod asks of GPUs: how many for which container, and how busy it keeps them."""

from __future__ import annotations

import re

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
    RUN_TIME_ANNOTATION,
    SOURCE_ANNOTATION,
    UTILIZATION_ANNOTATION,
    UTILIZATION_SOURCES,
)  # fmt: skip

ENDED = ("Succeeded", "Failed")
_MOST_ASKED = 99_999  # nobody means more

_PERCENT = r"([0-9]{1,9})(?:\s*%)?"
_RANGE = re.compile(rf"{_PERCENT}(?:\s*-\s*{_PERCENT})?")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_RUN_TIME = re.compile(rf"{_NUMBER}|(?:{_NUMBER}(?:ms|h|m|s))+")


class Request(msgspec.Struct, frozen=True):
    """GPUs for one container."""

    container: str
    count: int


def requests(pod: Pod) -> tuple[Request, ...]:
    """Every container with GPUs: sidecars and init containers too, in the order in which they start.

    More than a node can have are as many as a node can have, for each container and for all that last together.
    """
    if pod.spec.containers is None:
        return ()
    found: list[Request] = []
    early, left = passing(pod), MAX_GPUS
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        count = _gpus(container)
        if container.name not in early:
            count = min(count, left)
            left -= count
        if count:
            found.append(Request(container.name, count))
        if len(found) == MAX_CONTAINERS:
            break
    return tuple(found)


def _gpus(container: Container) -> int:
    amount = container.resources.limits.get(GPU_RESOURCE) or container.resources.requests.get(GPU_RESOURCE) or "0"
    found = quantity.count(amount)
    return min(found, MAX_GPUS) if found <= _MOST_ASKED else 0


def lasting(pod: Pod, container: str) -> bool:
    """Whether a container holds its GPUs for as long as the pod lives; an init container gives them back."""
    return container not in passing(pod)


def passing(pod: Pod) -> set[str]:
    """Init containers that are done before the others start, by name."""
    return {item.name for item in pod.spec.init_containers if item.restart_policy != "Always"}


def holds(pod: Pod) -> bool:
    """Whether a pod is on a node and has not ended."""
    return bool(pod.spec.node_name) and pod.status.phase not in ENDED


def running(pod: Pod) -> bool:
    """Whether its containers run."""
    return pod.status.phase == "Running"


def works(pod: Pod, container: str) -> bool:
    """Whether one of its containers runs; an init container does while the pod has yet to."""
    early = (item.name for item in pod.status.init_container_statuses if item.state.running is not None)
    return running(pod) or container in early


def utilisation(pod: Pod) -> Range:
    """What the annotation says; without one, all. What makes no sense is an error that names the annotation."""
    text = annotated.read(pod, UTILIZATION_ANNOTATION)
    if text is None:
        return ALL
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise errors.InputError(
            UTILIZATION_ANNOTATION, f"{text[:40]!r}: must be a percentage such as 80, or a range such as 10-30"
        )
    low = int(found[1])
    high = int(found[2]) if found[2] is not None else low
    if low > high:
        raise errors.InputError(UTILIZATION_ANNOTATION, f"{text!r}: the lower end is above the upper end")
    if high > 100:
        raise errors.InputError(UTILIZATION_ANNOTATION, f"{text!r}: at most 100")
    return Range(low, high)


def source(pod: Pod, otherwise: str) -> str:
    """What says how busy it keeps its GPUs: `pod`, its annotation, or `cpu`, what its processes do."""
    text = annotated.read(pod, SOURCE_ANNOTATION)
    if text is None:
        return otherwise
    if text not in UTILIZATION_SOURCES:
        raise errors.InputError(SOURCE_ANNOTATION, f"{text[:40]!r}: must be one of {', '.join(UTILIZATION_SOURCES)}")
    return text


def cores(pod: Pod, container: str) -> float:
    """The processors that a container may use at most; one if there is no limit."""
    found = next(
        (item for item in (*pod.spec.init_containers, *(pod.spec.containers or ())) if item.name == container), None
    )
    try:
        amount = float(quantity.parse(found.resources.limits["cpu"])) if found else 0.0
    except (KeyError, ValueError):
        return 1.0
    return amount if amount > 0 else 1.0


def check_run_time(pod: Pod) -> None:
    """Whether KWOK can read how long a job's pod is to work. What it cannot is an error that names the annotation."""
    if not any(owner.kind == "Job" for owner in pod.metadata.owner_references):
        return
    text = annotated.read(pod, RUN_TIME_ANNOTATION)
    if text is None:
        return
    if _RUN_TIME.fullmatch(text) is None:
        raise errors.InputError(
            RUN_TIME_ANNOTATION, f"{text[:40]!r}: must be a time such as 30s, 1h30m or 500ms, or a number of seconds"
        )
