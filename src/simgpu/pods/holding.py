"""The holders of each GPU of a real node: the kubelet's allocations, matched with the node's pods."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from simgpu import vocabulary
from simgpu.kube.views import Pod
from simgpu.machines.users import PodRef
from simgpu.pods import requests
from simgpu.pods.guests import Guest
from simgpu.topology import sharing

_API_UID = re.compile("[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


class Held(msgspec.Struct, frozen=True):
    """Devices that the kubelet allocated to a container; its pod is known by uid, or else by its names.

    Those that are `lent` it has only because its pod names a reservation.
    """

    container: str
    ids: tuple[str, ...]
    uid: str = ""
    namespace: str = ""
    pod: str = ""
    lent: bool = False


class HeldInstance(msgspec.Struct, frozen=True):
    """A MIG instance: its GPU by id, its number on it, its memory, and the resource that it is offered as."""

    gpu: str
    number: int
    memory_mib: int
    resource: str


class Holder(msgspec.Struct, frozen=True):
    """A container that has a GPU, or `share` of it.

    One that `reserves` it holds it for others; one that `claims` it has no allocation, but names a reservation. One
    that `observes` it has administrative access to a GPU of others. With a `part` it has that MIG instance, by number,
    or `share` of it; `memory_mib` is the instance's memory.
    """

    pod: Pod
    container: str
    share: float = 1.0
    reserves: bool = False
    claims: bool = False
    observes: bool = False
    part: int | None = None
    memory_mib: int = 0


def holders(
    pods: Iterable[Pod], held: Sequence[Held], *, replicas: Callable[[str], int] = lambda _: 1
) -> dict[str, tuple[Holder, ...]]:
    """Return the holders of each GPU or MIG instance, by id, the oldest pod first.

    A container that got a whole GPU before it was shared has all of its `replicas`, by id.
    """
    found: dict[str, list[Holder]] = {}
    for pod in sorted(by_kubelet_uid(pods).values(), key=lambda pod: pod.metadata.seniority):
        if requests.holds(pod) and pod.spec.containers is not None:
            shares: Counter[tuple[str, str]] = Counter()
            for name, container in _devices(pod, held).items():
                gpu = sharing.device(name)
                shares[gpu, container] += replicas(gpu) if name == gpu else 1
            for (gpu, container), count in shares.items():
                found.setdefault(gpu, []).append(Holder(pod, container, min(1.0, count / replicas(gpu))))
    return {gpu: tuple(items) for gpu, items in found.items()}


def by_gpu(
    found: Mapping[str, tuple[Holder, ...]], instances: Mapping[str, HeldInstance]
) -> dict[str, tuple[Holder, ...]]:
    """Return holders by GPU: those of its MIG instances with the part that they have.

    Those of a divided GPU as a whole have its first instance: that is where their programs run.
    """
    joined: dict[str, list[Holder]] = {}
    first: dict[str, HeldInstance] = {}
    for instance in sorted(instances.values(), key=lambda item: item.number):
        first.setdefault(instance.gpu, instance)
    for name, items in found.items():
        if (item := instances.get(name) or first.get(name)) is None:
            joined.setdefault(name, []).extend(items)
        else:
            part = {"part": item.number, "memory_mib": item.memory_mib}
            joined.setdefault(item.gpu, []).extend(msgspec.structs.replace(holder, **part) for holder in items)
    return {gpu: tuple(items) for gpu, items in joined.items()}


def by_arrival(found: Iterable[Holder], before: Sequence[str]) -> tuple[Holder, ...]:
    """Return the holders of one GPU: reservations, allocations, claims, observers; each in order of arrival.

    `before` are the uids of the pods that held it at the last reconcile, in order; new ones follow.
    """
    places = {uid: place for place, uid in reversed(list(enumerate(before)))}

    def rank(item: Holder) -> tuple[bool, bool, bool, int]:
        return not item.reserves, item.observes, item.claims, places.get(item.pod.metadata.uid, len(before))

    return tuple(sorted(found, key=rank))


def _devices(pod: Pod, held: Sequence[Held]) -> dict[str, str]:
    """Return the container of each of a pod's devices; an init container has them until it ends."""
    early = {item.name for item in pod.status.init_container_statuses if item.state.running is not None}
    having, init = {item.container for item in held}, requests.regular_init(pod)
    there = [item.name for item in requests.containers(pod) if item.name in having]
    order = (*(name for name in there if name not in init), *(name for name in there if name in early & init))
    return {name: container for container in order for name in _given(pod, container, held)}


def kubelet_uid(pod: Pod) -> str:
    """Return the uid of a pod in the kubelet: for static pods it differs from the API's, a hash without dashes.

    Any user who may create a pod can annotate it as the mirror of another. So a uid in the API's format is never taken
    for a mirror's, whether that pod is known here or not.
    """
    mirror = pod.metadata.annotations.get(vocabulary.MIRROR_ANNOTATION, "")
    return pod.metadata.uid if not mirror or _API_UID.fullmatch(mirror) else mirror


def by_kubelet_uid(pods: Iterable[Pod]) -> dict[str, Pod]:
    """Return pods by their uid in the kubelet.

    The kubelet takes a moment to remove a forged mirror. So a uid belongs to the pod that has it in the API, if there
    is one, and otherwise to its oldest mirror.
    """
    found: dict[str, Pod] = {}
    for pod in sorted(pods, key=lambda pod: (kubelet_uid(pod) != pod.metadata.uid, pod.metadata.seniority)):
        found.setdefault(kubelet_uid(pod), pod)
    return found


def container_by_id(pod: Pod, identity: str, held: Sequence[Held]) -> str | None:
    """Return a container's name by its id. If the pod's status lacks it, the only one with devices; else None."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if status.container_id.rpartition("/")[2] == identity:
            return status.name
    having = [item.name for item in requests.containers(pod) if _given(pod, item.name, held)]
    return having[0] if len(having) == 1 else None


def guest(
    pods: Iterable[Pod], held: Sequence[Held], devices: Sequence[str], *, uid: str, container: str
) -> Guest | None:
    """Return the container by id and its pod's uid in the kubelet, if it has any of these devices; else None."""
    same = (item for item in pods if kubelet_uid(item) == uid)
    pod = by_kubelet_uid(same).get(uid)
    if pod is None:
        return None
    meta, name = pod.metadata, container_by_id(pod, container, held)
    mine = set(gpus(pod, name, held)) if name else set()
    own = tuple(item for item in devices if item in mine)
    if not name or not own:
        return None
    lent = {device for item in held if item.lent and item.uid == uid for device in item.ids}
    return Guest(
        f"pod {meta.namespace}/{meta.name}", PodRef(meta.name, meta.namespace, name, meta.uid), own,
        lent=tuple(item for item in own if item in lent),
    )  # fmt: skip


def identity(pod: Pod, container: str) -> str:
    """Return a container's id; empty until the pod's status has it."""
    found = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return next((item.container_id.rpartition("/")[2] for item in found if item.name == container), "")


def gpus(pod: Pod, container: str, held: Sequence[Held]) -> tuple[str, ...]:
    """Return a container's GPUs by id, one for each share."""
    return tuple(sharing.device(name) for name in _given(pod, container, held))


def _given(pod: Pod, container: str, held: Sequence[Held]) -> tuple[str, ...]:
    """Return a container's devices: by uid if known, else by name, except those of other pods' uids.

    Those that it shares always have a uid, whether or not the kubelet's do.
    """
    meta, uid = pod.metadata, kubelet_uid(pod)
    mine = [item for item in held if item.container == container]
    by_uid = [item for item in mine if item.uid and item.uid == uid]
    if any(not item.lent for item in by_uid):
        return tuple(name for item in by_uid for name in item.ids)
    others = {name for item in held if item.uid and item.uid != uid for name in item.ids}
    by_name = [item for item in mine if not item.uid and (item.namespace, item.pod) == (meta.namespace, meta.name)]
    own = [name for item in by_name for name in item.ids if name not in others]
    return (*own, *(name for item in by_uid for name in item.ids))
