"""Assigns the GPUs of a fake node to pods and their containers.

The lowest free index is assigned first. A pod keeps its GPUs while it and they exist, whatever else changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from simgpu.kube.views import Pod
from simgpu.pods import requests
from simgpu.pods.requests import Request
from simgpu.topology import sharing


class Wish(msgspec.Struct, frozen=True):
    """The GPUs that a pod requests: containers that run all the time, and init containers, which run `first`.

    `beside` is how many GPUs sidecars have already when each init container runs.
    """

    uid: str
    lasting: tuple[Request, ...]
    first: tuple[Request, ...] = ()
    beside: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many GPUs the pod needs: init containers use those of later containers."""
        if not self.first:
            return sum([item.count for item in self.lasting])
        early = (item.count + beside for item, beside in zip(self.first, self._beside, strict=True))
        return max(sum(item.count for item in self.lasting), max(early, default=0))

    @property
    def _beside(self) -> tuple[int, ...]:
        return self.beside or (0,) * len(self.first)

    def owners(self, *, started: bool) -> tuple[str, ...]:
        """Return the container of each of the pod's GPUs, by place.

        A place can belong to an init container and to a later one: to the former until all have `started`.
        """
        if not self.first:
            return tuple([item.container for item in self.lasting for _ in range(item.count)])
        early = {
            item.container: range(beside, beside + item.count)
            for item, beside in zip(self.first, self._beside, strict=True)
        }
        found = [""] * self.count
        for spans in (early, self._lasting()) if started else (self._lasting(), early):
            for name, span in reversed(spans.items()):  # of several, the first has the place
                found[span.start : span.stop] = [name] * len(span)
        return tuple(found)

    def _lasting(self) -> dict[str, range]:
        ends = list(accumulate(item.count for item in self.lasting))
        return {item.container: range(end - item.count, end) for item, end in zip(self.lasting, ends, strict=True)}


def wish_of(pod: Pod, resource: str) -> Wish:
    """Return the requests of a pod's containers, by when they run."""
    if not pod.spec.init_containers:
        return Wish(pod.metadata.uid, requests.requests(pod, resource))
    lasting, first, beside, sidecars = [], [], [], 0
    early, init = {item.name for item in pod.spec.init_containers}, requests.regular_init(pod)
    for item in requests.requests(pod, resource):
        if item.container in init:
            first.append(item)
            beside.append(sidecars)
        else:
            lasting.append(item)
            sidecars += item.count if item.container in early else 0
    return Wish(pod.metadata.uid, tuple(lasting), tuple(first), tuple(beside))


def assign(ids: Sequence[str], held: Mapping[str, Sequence[str]], wishes: Sequence[Wish]) -> dict[str, tuple[str, ...]]:
    """Return the GPU ids of each pod by uid: a place for each GPU that it needs, empty while there is none.

    GPUs that a pod held keep their places, so that every container keeps its own; then empty places are filled.
    """
    there, taken = set(ids), set[str]()
    found: dict[str, list[str]] = {}
    for wish in wishes:
        mine = found[wish.uid] = [""] * wish.count
        for place, item in enumerate(held.get(wish.uid, ())[: wish.count]):
            if item in there and item not in taken:
                mine[place] = item
                taken.add(item)
    free = iter([item for item in ids if item not in taken])
    return {uid: tuple(item or next(free, "") for item in mine) for uid, mine in found.items()}


def shares(ids: Sequence[str], replicas: int) -> list[str]:
    """Return the shares of GPUs, each of which has `replicas`: one of every GPU before further ones of any."""
    return [sharing.replica(gpu, number) for number in range(replicas) for gpu in ids]


def adopt(held: Mapping[str, Sequence[str]], ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what pods hold in the form of `ids`, after GPUs became shared or whole: each keeps its GPUs if it can."""
    known, free = set(ids), dict[str, list[str]]()
    for item in reversed(ids):
        free.setdefault(sharing.device(item), []).append(item)
    kept = {item for mine in held.values() for item in mine if item in known}
    found: dict[str, tuple[str, ...]] = {}
    for uid, mine in held.items():
        places_of = list(mine)
        for place, item in enumerate(places_of):
            if item and item not in known:
                left = free.get(sharing.device(item), [])
                while left and left[-1] in kept:
                    left.pop()
                places_of[place] = left.pop() if left else ""
        found[uid] = tuple(places_of)
    return found


def places(wish: Wish, had: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the places of the GPUs that a pod's containers had: the reverse of `Wish.owners`, started or not."""
    owners = list(zip(wish.owners(started=False), wish.owners(started=True), strict=True))
    found = [""] * wish.count
    for container, gpu in had:
        free = [place for place, names in enumerate(owners) if container in names and not found[place]]
        if free:
            always = [place for place in free if owners[place] == (container, container)]
            found[(always or free)[0]] = gpu
    return tuple(found)
