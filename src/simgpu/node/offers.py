"""What is offered to the kubelet: devices of one resource, how they are, and which of them go together. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from simgpu.node import messages
from simgpu.topology import links, sharing
from simgpu.topology.devices import Device


class Place(msgspec.Struct, frozen=True):
    """What devices have in common that are as close as can be: model, NUMA node, and board where that links them."""

    numa: int = 0
    model: str = ""
    board: int | None = None


_ANYWHERE = Place()


class Offered(msgspec.Struct, frozen=True):
    """A device, and whether the kubelet is told of its NUMA node."""

    id: str
    place: Place = _ANYWHERE
    healthy: bool = True
    tell: bool = False

    def message(self) -> messages.PluginDevice:
        """As the kubelet is told."""
        where = messages.TopologyInfo((messages.NumaNode(self.place.numa),)) if self.tell else None
        return messages.PluginDevice(self.id, messages.HEALTHY if self.healthy else messages.UNHEALTHY, where)


class Offer(msgspec.Struct, frozen=True):
    """Devices of a resource, in their order, and how often each is there.

    `largest` is the most that a container may have of them at once.
    """

    resource: str
    devices: tuple[Offered, ...]
    replicas: int = 1
    largest: int | None = None

    def message(self) -> messages.ListAndWatchResponse:
        """The whole list."""
        return messages.ListAndWatchResponse(tuple(item.message() for item in self.devices))


def offer(resource: str, devices: Sequence[Offered], slicing: sharing.TimeSlicing) -> Offer:
    """A resource, each device as often as it is shared."""
    replicas = slicing.replicas(resource)
    if replicas == 1:
        return Offer(resource, tuple(devices))
    shared = (
        msgspec.structs.replace(item, id=sharing.replica(item.id, number))
        for item in devices
        for number in range(replicas)
    )
    largest = 1 if slicing.fail_requests_greater_than_one else None
    return Offer(slicing.name(resource), tuple(shared), replicas, largest)


def places(gpus: Sequence[Device]) -> list[Place]:
    """Where each GPU of a node is."""
    return [
        Place(gpus[at].numa, gpus[at].model.key, number if links.linked(gpus, board) else None)
        for number, board in enumerate(links.boards(gpus))
        for at in board
    ]


def prefer(offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> tuple[str, ...]:
    """Which devices a container should get.

    As many of one model as can be, of these as many as can be linked to one another, and of these on one NUMA node.
    Where that leaves a choice, what is used already is used up, so that others find whole boards; the lowest index
    first. Shared devices are spread instead: those that are shared least so far, wherever they are.
    """
    known = {item.id: item for item in offer.devices}
    chosen = [known[name] for name in dict.fromkeys(must) if name in known]
    left = {*available} - {*must}
    free: dict[Place, list[Offered]] = {}
    for item in offer.devices:
        if item.id in left:
            free.setdefault(item.place if offer.replicas == 1 else _ANYWHERE, []).append(item)
    while free and len(chosen) < size:
        place = _best(free, chosen, size - len(chosen))
        chosen += islice(_spread(free.pop(place)), size - len(chosen))
    return tuple(item.id for item in chosen)


def _best(free: Mapping[Place, Sequence[Offered]], chosen: Sequence[Offered], wanted: int) -> Place:
    """Where most of the container's devices would be together, with those that it has; then where least is free."""
    had = Counter(circle for item in chosen for circle in _circles(item.place))
    there = Counter[Hashable]()
    for place, items in free.items():
        there.update(dict.fromkeys(_circles(place), len(items)))

    def rank(place: Place) -> tuple[int, ...]:
        model, board, numa = _circles(place)
        here, linked = len(free[place]), place.board is not None
        return (
            -(had[model] + min(there[model], wanted)),
            -(had[board] + min(there[board], wanted)) if linked else -1,
            -(had[numa] + min(here, wanted)),
            there[board] if linked else 1,
            here,
        )

    return min(free, key=rank)  # the first of the best


def _circles(place: Place) -> tuple[Hashable, Hashable, Hashable]:
    """Whatever a device shares with others: its model, its board, its NUMA node."""
    return ("model", place.model), ("board", place.model, place.board), ("numa", place.numa)


def _spread(items: Sequence[Offered]) -> Iterator[Offered]:
    """Replicas of different devices before further ones of the same; of devices with most left first."""
    groups: dict[str, list[Offered]] = {}
    for item in items:
        groups.setdefault(sharing.device(item.id), []).append(item)
    while groups:
        device = max(groups, key=lambda name: len(groups[name]))  # the first of the largest
        yield groups[device].pop(0)
        if not groups[device]:
            del groups[device]
