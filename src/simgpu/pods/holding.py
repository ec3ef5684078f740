"""Who has which GPU of a real node: what the kubelet says, brought together with the pods of the node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from simgpu import vocabulary
from simgpu.kube.views import Pod
from simgpu.pods import requests
from simgpu.topology import sharing

_OF_THE_API = re.compile("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class Held(msgspec.Struct, frozen=True):
    """Devices that a container was given; its pod is known by uid, or else by its names."""

    container: str
    ids: tuple[str, ...]
    uid: str = ""
    namespace: str = ""
    pod: str = ""


class Holder(msgspec.Struct, frozen=True):
    """A container that has a GPU, or `share` of it.

    One that `reserves` it has it for others; one that `claims` it was not given it, but names who reserves it.
    """

    pod: Pod
    container: str
    share: float = 1.0
    reserves: bool = False
    claims: bool = False


def holders(pods: Iterable[Pod], held: Sequence[Held], *, replicas: int = 1) -> dict[str, tuple[Holder, ...]]:
    """Holders of each GPU, by id, the oldest pod first. One that got it before it was shared has all of it."""
    found: dict[str, list[Holder]] = {}
    for pod in sorted(by_kubelet_uid(pods).values(), key=lambda pod: pod.metadata.seniority):
        if requests.holds(pod) and pod.spec.containers is not None:
            shares: Counter[tuple[str, str]] = Counter()
            for name, container in _devices(pod, held).items():
                gpu = sharing.device(name)
                shares[gpu, container] += replicas if name == gpu else 1
            for (gpu, container), count in shares.items():
                found.setdefault(gpu, []).append(Holder(pod, container, min(1.0, count / replicas)))
    return {gpu: tuple(items) for gpu, items in found.items()}


def by_arrival(found: Iterable[Holder], before: Sequence[str]) -> tuple[Holder, ...]:
    """Holders of one GPU: who reserves it, those that were given it, those that claim it; of each, who was seen first.

    `before` are uids of pods that held it when it was last looked at, in that order; those that are new follow.
    """
    places = {uid: place for place, uid in reversed(list(enumerate(before)))}

    def rank(item: Holder) -> tuple[bool, bool, int]:
        return not item.reserves, item.claims, places.get(item.pod.metadata.uid, len(before))

    return tuple(sorted(found, key=rank))


def _devices(pod: Pod, held: Sequence[Held]) -> dict[str, str]:
    """Which container has each of a pod's devices. An init container has them until it is done."""
    early = {item.name for item in pod.status.init_container_statuses if item.state.running is not None}
    having, passing = {item.container for item in held}, requests.passing(pod)
    containers = [item.name for item in (*pod.spec.init_containers, *(pod.spec.containers or ()))]
    there = [name for name in containers if name in having]
    order = (*(name for name in there if name not in passing), *(name for name in there if name in early & passing))
    return {name: container for container in order for name in _given(pod, container, held)}


def kubelet_uid(pod: Pod) -> str:
    """The uid by which the kubelet knows a pod: a static one has another there than in the API, a hash without dashes.

    Anybody who may create a pod can annotate it as the mirror of another. A uid as the API gives it to pods is nobody's
    mirror, whether that pod is known here or not.
    """
    mirror = pod.metadata.annotations.get(vocabulary.MIRROR_ANNOTATION, "")
    return pod.metadata.uid if not mirror or _OF_THE_API.fullmatch(mirror) else mirror


def by_kubelet_uid(pods: Iterable[Pod]) -> dict[str, Pod]:
    """Pods by the uid that the kubelet knows them by.

    The kubelet takes a moment to remove a forged mirror. So a uid belongs to the pod that the API gave it to, if there
    is one, and otherwise to the oldest mirror of it.
    """
    found: dict[str, Pod] = {}
    for pod in sorted(pods, key=lambda pod: (kubelet_uid(pod) != pod.metadata.uid, pod.metadata.seniority)):
        found.setdefault(kubelet_uid(pod), pod)
    return found


def container(pod: Pod, identity: str, held: Sequence[Held]) -> str | None:
    """A container by its id. Before the pod's status tells, it is the one with devices, if there is only one such."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.container_id.rpartition("/")[2] == identity:
            return status.name
    names = [item.name for item in (*pod.spec.init_containers, *(pod.spec.containers or ()))]
    having = [name for name in names if _given(pod, name, held)]
    return having[0] if len(having) == 1 else None


def identity(pod: Pod, container: str) -> str:
    """A container's id, once the pod's status tells."""
    found = (item for item in (*pod.status.init_container_statuses, *pod.status.container_statuses))
    return next((item.container_id.rpartition("/")[2] for item in found if item.name == container), "")


def gpus(pod: Pod, container: str, held: Sequence[Held]) -> tuple[str, ...]:
    """A container's GPUs by id, one for each share."""
    return tuple(sharing.device(name) for name in _given(pod, container, held))


def _given(pod: Pod, container: str, held: Sequence[Held]) -> tuple[str, ...]:
    """By uid where that is known. Otherwise by name, but for what is known to be another's of the same name."""
    meta, uid = pod.metadata, kubelet_uid(pod)
    mine = [item for item in held if item.container == container]
    if by_uid := [item for item in mine if item.uid and item.uid == uid]:
        return tuple(name for item in by_uid for name in item.ids)
    others = {name for item in held if item.uid and item.uid != uid for name in item.ids}
    by_name = [item for item in mine if not item.uid and (item.namespace, item.pod) == (meta.namespace, meta.name)]
    return tuple(name for item in by_name for name in item.ids if name not in others)
