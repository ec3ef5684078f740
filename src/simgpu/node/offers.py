"""Devices of one resource as a plugin offers them: their health, and the preferred choice among them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from simgpu.node import messages
from simgpu.topology import links, sharing
from simgpu.topology.devices import Device


class Place(msgspec.Struct, frozen=True):
    """Where a device is: model, NUMA node, and board where its devices are linked. Devices of one place are closest."""

    numa: int = 0
    model: str = ""
    board: int | None = None


_ANYWHERE = Place()


class Offered(msgspec.Struct, frozen=True):
    """A device; with `show_numa` the kubelet learns its NUMA node."""

    id: str
    place: Place = _ANYWHERE
    healthy: bool = True
    show_numa: bool = False

    def message(self) -> messages.PluginDevice:
        """Return the message for the kubelet."""
        where = messages.TopologyInfo((messages.NumaNode(self.place.numa),)) if self.show_numa else None
        return messages.PluginDevice(self.id, messages.HEALTHY if self.healthy else messages.UNHEALTHY, where)


class Offer(msgspec.Struct, frozen=True):
    """The devices of a resource, in their order, and how often each is replicated.

    `max_request` limits how many of them a container may have.
    """

    resource: str
    devices: tuple[Offered, ...]
    replicas: int = 1
    max_request: int | None = None

    def message(self) -> messages.ListAndWatchResponse:
        """Return the message for the kubelet."""
        return messages.ListAndWatchResponse(tuple(item.message() for item in self.devices))


def offer(resource: str, devices: Sequence[Offered], slicing: sharing.TimeSlicing) -> Offer:
    """Return the offer of a resource, each device as often as time-slicing replicates it."""
    replicas = slicing.replicas(resource)
    if replicas == 1:
        return Offer(resource, tuple(devices))
    shared = (
        msgspec.structs.replace(item, id=sharing.replica(item.id, number))
        for item in devices
        for number in range(replicas)
    )
    max_request = 1 if slicing.fail_requests_greater_than_one else None
    return Offer(slicing.name(resource), tuple(shared), replicas, max_request)


def places(gpus: Sequence[Device]) -> list[Place]:
    """Return the place of each GPU of a node."""
    return [
        Place(gpus[at].numa, gpus[at].model.key, number if links.linked(gpus, board) else None)
        for number, board in enumerate(links.boards(gpus))
        for at in board
    ]


def on_card(gpu: Device) -> Place:
    """Return the place of a GPU's MIG instances: those of one card go together, so that other cards stay free."""
    return Place(gpu.numa, gpu.model.key, gpu.index)


def prefer(offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> tuple[str, ...]:
    """Return the ids of the devices that a container should get.

    As many as possible of one model, then linked to one another, then on one NUMA node. Among equal choices the place
    with the fewest free devices wins, so that whole boards stay free, then the lowest index. Replicas of shared devices
    are spread instead: the least shared device first, wherever it is.
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
    """Return the place that keeps most of the container's devices together; of equal ones, the one with least free."""
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
    """Return keys of what a device shares with others: its model, its board, its NUMA node."""
    return ("model", place.model), ("board", place.model, place.board), ("numa", place.numa)


def _spread(items: Sequence[Offered]) -> Iterator[Offered]:
    """Yield replicas of different devices before further replicas of one; devices with most replicas left first."""
    groups: dict[str, list[Offered]] = {}
    for item in items:
        groups.setdefault(sharing.device(item.id), []).append(item)
    while groups:
        device = max(groups, key=lambda name: len(groups[name]))  # the first of the largest
        yield groups[device].pop(0)
        if not groups[device]:
            del groups[device]
