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
    """GPU ids of each pod. Those that hold GPUs come first; a wish that cannot be met in full gets what there is."""
    there, taken = set(ids), set[str]()
    result: dict[str, tuple[str, ...]] = {}
    for wish in wishes:
        kept = [item for item in dict.fromkeys(held.get(wish.uid, ())) if item in there and item not in taken][
            : wish.count
        ]
        taken.update(kept)
        result[wish.uid] = tuple(kept)
    free = iter([item for item in ids if item not in taken])
    for wish in wishes:
        missing = wish.count - len(result[wish.uid])
        result[wish.uid] += tuple(item for _, item in zip(range(missing), free, strict=False))
    return result


def by_container(wish: Wish, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """A pod's GPUs by container: those that last have their own, those that are done first share them."""
    found: dict[str, tuple[str, ...]] = {}
    start = 0
    for item in wish.lasting:
        found[item.container] = tuple(ids[start : start + item.count])
        start += item.count
    for item, beside in wish.early():
        found[item.container] = tuple(ids[beside : beside + item.count])
    return found
