"""What is offered to the kubelet: devices of one resource, how they are, and which of them go together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from simgpu.node import messages
from simgpu.topology import sharing


class Offered(msgspec.Struct, frozen=True):
    """A device: `numa` is where it lies, and `tell` whether the kubelet is told."""

    id: str
    numa: int = 0
    healthy: bool = True
    tell: bool = False

    def message(self) -> messages.Device:
        """As the kubelet is told."""
        where = messages.TopologyInfo((messages.NumaNode(self.numa),)) if self.tell else None
        return messages.Device(self.id, messages.HEALTHY if self.healthy else messages.UNHEALTHY, where)


class Offer(msgspec.Struct, frozen=True):
    """Devices of a resource, in their order. `largest` is the most that a container may have of them at once."""

    resource: str
    devices: tuple[Offered, ...]
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
    return Offer(slicing.name(resource), tuple(shared), 1 if slicing.fail_requests_greater_than_one else None)


def prefer(offer: Offer, available: Sequence[str], must: Sequence[str], size: int) -> tuple[str, ...]:
    """Which devices a container should get.

    Those on one NUMA node before those that are not, from the node that this leaves fullest; the lowest index first. Of
    shared devices, those that are shared least so far.
    """
    places = {item.id: (index, item.numa) for index, item in enumerate(offer.devices)}
    chosen = [item for item in dict.fromkeys(must) if item in places]
    free = [item for item in places if item in set(available) - set(chosen)]
    wanted = size - len(chosen)
    near = {places[item][1] for item in chosen}
    by_numa: dict[int, list[str]] = {}
    for item in free:
        by_numa.setdefault(places[item][1], []).append(item)
    order = sorted(by_numa, key=lambda node: _rank(node, len(by_numa[node]), wanted, near=node in near))
    found = (item for node in order for item in _spread(by_numa[node]))
    return (*chosen, *(item for _, item in zip(range(wanted), found, strict=False)))


def _rank(node: int, count: int, wanted: int, *, near: bool) -> tuple[bool, bool, int, int]:
    """Nodes with what is already chosen first; then the smallest that has enough; else the largest."""
    enough = count >= wanted
    return not near, not enough, count if enough else -count, node


def _spread(ids: Sequence[str]) -> Iterator[str]:
    """Replicas of different devices before further ones of the same; of devices with most left first."""
    groups: dict[str, list[str]] = {}
    for item in ids:
        groups.setdefault(sharing.device(item), []).append(item)
    while groups:
        device = max(groups, key=lambda name: len(groups[name]))  # the first of the largest
        yield groups[device].pop(0)
        if not groups[device]:
            del groups[device]
