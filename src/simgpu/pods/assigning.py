"""Which pod, and which of its containers, has which GPU of a node.

On a fake node nobody else chooses: the lowest free index first. What a pod holds it keeps for as long as the GPU and
the pod are there, so that nothing moves when something else changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from simgpu.pods.requests import Request


class Wish(msgspec.Struct, frozen=True):
    """A pod's containers with GPUs: those that last, and those that are done before the others start.

    `beside` are the GPUs that sidecars have already when each of the latter runs.
    """

    uid: str
    lasting: tuple[Request, ...]
    first: tuple[Request, ...] = ()
    beside: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """GPUs that the pod needs: what is done first may use the same ones."""
        early = (item.count + beside for item, beside in zip(self.first, self._beside, strict=True))
        return max(sum(item.count for item in self.lasting), max(early, default=0))

    @property
    def _beside(self) -> tuple[int, ...]:
        return self.beside or (0,) * len(self.first)

    def owners(self, *, started: bool) -> tuple[str, ...]:
        """The container of each place: those that last have their own, those that are done first share them.

        Until all have started, a place that both have is the latter's.
        """
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


def assign(ids: Sequence[str], held: Mapping[str, Sequence[str]], wishes: Sequence[Wish]) -> dict[str, tuple[str, ...]]:
    """GPU ids of each pod: a place for each that it needs, empty while there is none.

    What a pod held stays in its place, so that every container keeps its own; then empty places are filled.
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


def places(wish: Wish, had: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The places of what a pod's containers had, whether all had started or not: the reverse of `Wish.owners`."""
    owners = list(zip(wish.owners(started=False), wish.owners(started=True), strict=True))
    found = [""] * wish.count
    for container, gpu in had:
        free = [place for place, names in enumerate(owners) if container in names and not found[place]]
        if free:
            always = [place for place in free if owners[place] == (container, container)]
            found[(always or free)[0]] = gpu
    return tuple(found)
