"""Which pod, and which of its containers, has which GPU of a node.

On a fake node nobody else chooses: the lowest free index first. What a pod holds it keeps for as long as the GPU and
the pod are there, so that nothing moves when something else changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def early(self) -> zip[tuple[Request, int]]:
        """Containers that are done first, each with where its GPUs begin."""
        return zip(self.first, self._beside, strict=True)


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


def by_container(wish: Wish, places: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """A pod's GPUs by container: those that last have their own, those that are done first share them."""
    spans = _spans(wish) | {item.container: range(beside, beside + item.count) for item, beside in wish.early()}
    return {name: tuple(places[place] for place in span if places[place]) for name, span in spans.items()}


def places(wish: Wish, had: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The places of what a pod's containers had: the reverse of `by_container`."""
    spans = _spans(wish)
    rest = range(sum(map(len, spans.values())), wish.count)
    found = [""] * wish.count
    for container, gpu in had:
        free = [place for place in spans.get(container, rest) if not found[place]]
        if free:
            found[free[0]] = gpu
    return tuple(found)


def _spans(wish: Wish) -> dict[str, range]:
    """Places of the containers that last."""
    found: dict[str, range] = {}
    start = 0
    for item in wish.lasting:
        found[item.container] = range(start, start + item.count)
        start += item.count
    return found
