"""GPUs, or MIG instances, that Run:ai's reservation pods hold for others, and the pods that share them.

A reservation pod is in a namespace of its own: the kubelet allocates a GPU to it, which it does not use itself. A pod
that shares the GPU requests none; it names the reservation by an index or by a group. Any user can set that name, so
pods with allocations of the kubelet come before pods that only name a reservation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from simgpu import errors
from simgpu.kube.views import Pod
from simgpu.pods import annotated, requests
from simgpu.pods.holding import Held, Holder, holders
from simgpu.vocabulary import (
    FRACTION_ANNOTATION,
    GPU_MEMORY_KEY,
    MAX_MEMORY_MIB,
    MAX_POD_GROUPS,
    RUNAI_GROUP,
    RUNAI_INDEX,
    RUNAI_RESERVED,
)  # fmt: skip

Holders = Mapping[str, tuple[Holder, ...]]


def fraction(pod: Pod) -> float:
    """Return the part of a GPU's memory that a pod takes, from 0 to 1, as in its annotation; 1 without one."""
    text = annotated.read(pod, FRACTION_ANNOTATION)
    if text is None:
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise errors.InputError(FRACTION_ANNOTATION, f"{text[:40]!r}: must be above 0 and at most 1, such as 0.5")
    return value


def lend(pods: Iterable[Pod], held: Holders, *, namespace: str) -> dict[str, tuple[Holder, ...]]:
    """Return the holders of each GPU, reservations first and pods that share them last.

    Of a reservation with several GPUs, the first one is shared.
    """
    found = {
        gpu: tuple(sorted((_reserving(item, namespace) for item in items), key=lambda item: not item.reserves))
        for gpu, items in held.items()
    }
    reserved: dict[str, tuple[str, Holder]] = {}
    for gpu, items in found.items():
        for item in items:
            if item.reserves:
                reserved.setdefault(item.pod.metadata.uid, (gpu, item))
    for pod in sorted(pods, key=lambda pod: pod.metadata.seniority) if reserved else ():
        if pod.metadata.namespace != namespace and requests.holds(pod) and pod.spec.containers:
            for gpu, item in _named(pod, list(reserved.values())):
                found[gpu] += (msgspec.structs.replace(
                    item, pod=pod, container=pod.spec.containers[0].name, reserves=False, claims=True
                ),)  # fmt: skip
    return found


def lent(pods: Iterable[Pod], held: Sequence[Held], *, namespace: str) -> dict[str, dict[str, Holder]]:
    """Return the GPUs that each pod shares by naming reservations: its hold on each by id, by the pod's uid."""
    listed = list(pods)
    found: dict[str, dict[str, Holder]] = {}
    for gpu, items in lend(listed, holders(listed, held), namespace=namespace).items():
        for item in items:
            if item.claims:
                found.setdefault(item.pod.metadata.uid, {})[gpu] = item
    return found


def shares_in(pod: Pod, container: str) -> bool:
    """Return whether a container is the one that uses what its pod shares: the first."""
    return [item.name for item in pod.spec.containers or ()][:1] == [container]


def _reserving(item: Holder, namespace: str) -> Holder:
    reserves = item.pod.metadata.namespace == namespace
    return msgspec.structs.replace(item, reserves=True) if reserves else item


def _named(pod: Pod, reserved: Sequence[tuple[str, Holder]]) -> Sequence[tuple[str, Holder]]:
    """Return the reservations that a pod names, if they exist: by index as older versions do, else by group.

    An index must be a number: newer reservations are annotated with the GPU's id, which every metrics page shows.
    """
    index = pod.metadata.annotations.get(RUNAI_INDEX, "")
    numbered = index.isdecimal()
    by_index = [
        known for known in reserved if numbered and known[1].pod.metadata.annotations.get(RUNAI_RESERVED) == index
    ]
    if by_index:
        return by_index[:1]
    by_group: dict[str, tuple[str, Holder]] = {}
    for known in reserved:
        by_group.setdefault(known[1].pod.metadata.labels.get(RUNAI_GROUP, ""), known)
    return [by_group[group] for group in groups(pod) if group in by_group]


def groups(pod: Pod) -> tuple[str, ...]:
    """Return the groups of reservations that a pod names: by the label, or one label for each of several."""
    labels, prefix = pod.metadata.labels, f"{RUNAI_GROUP}/"
    several = (value or name.removeprefix(prefix) for name, value in labels.items() if name.startswith(prefix))
    found = (labels.get(RUNAI_GROUP, ""), *islice(several, MAX_POD_GROUPS))
    return tuple(dict.fromkeys(group for group in found if group))


def names_reservation(pod: Pod) -> bool:
    """Return whether a pod names a reservation, in any way."""
    return RUNAI_INDEX in pod.metadata.annotations or bool(groups(pod))


def absolute_memory(pod: Pod) -> int | None:
    """Return the memory that a pod takes of each GPU that it shares, in MiB, as in Run:ai's annotation."""
    text = annotated.read(pod, GPU_MEMORY_KEY)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text) <= MAX_MEMORY_MIB:
        raise errors.InputError(GPU_MEMORY_KEY, f"{text[:40]!r}: must be MiB from 1 to {MAX_MEMORY_MIB}")
    return int(text)
