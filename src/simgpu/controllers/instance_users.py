"""Users of a fake node's GPUs where these are divided by MIG: pods get instances, packed on as few cards as possible.

A pod keeps its instances while it and they exist. What it holds is one list for all resources that it requests, in the
order of their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from simgpu.catalog import placing
from simgpu.controllers.loading import PodLoads
from simgpu.kube.views import Pod
from simgpu.machines.fleet import NodeCards
from simgpu.machines.inventory import Card
from simgpu.machines.users import User
from simgpu.pods import assigning, requests, reserving
from simgpu.pods.holding import Holder
from simgpu.topology import devices, mig_offers, sharing
from simgpu.topology.mig_offers import OfferedDevice

Held = dict[str, tuple[str, ...]]  # ids of GPUs and instances, or of shares of them, by the pod's uid
Wishes = list[tuple[Pod, assigning.Wish]]


class OfferedResource(msgspec.Struct, frozen=True):
    """What a node offers under one name: devices by id, each so many times."""

    name: str
    devices: dict[str, OfferedDevice]
    replicas: int


class AssignedInstances(msgspec.Struct, frozen=True):
    """What each pod holds, the users of GPUs by id, and all that pods request of the node."""

    held: Held
    users: dict[str, tuple[User, ...]]
    wishes: Wishes


def resources_of(placed: NodeCards, strategy: str) -> list[OfferedResource]:
    """Return what a node offers, by the names that pods request it under, in order."""
    found, slicing = list[OfferedResource](), placed.spec.slicing
    for resource, offered in mig_offers.offered(placed.spec, strategy).items():
        by_id = {_id(placed.cards[item.gpu], item): item for item in offered}
        found.append(OfferedResource(slicing.name(resource), by_id, slicing.replicas(resource)))
    return sorted(found, key=lambda item: item.name)


def assign(
    placed: NodeCards,
    pods: Sequence[Pod],
    before: Mapping[str, Sequence[str]],
    *,
    resources: Callable[[], Sequence[OfferedResource]],
    loads: PodLoads,
    unhealthy: Collection[str],
    claimed: Collection[str],
    reservations: str,
) -> AssignedInstances:
    """Assign a node's `resources` to its pods, but for those that are `claimed`, by the ids of GPUs and instances.

    Of `unhealthy` GPUs, by id, pods keep what they have. What pods of the namespace `reservations` have is shared by
    those that name them.
    """
    if not any(map(requests.holds, pods)):
        return AssignedInstances({}, {}, [])
    offers = [(item, _wishes(pods, item.name)) for item in resources()]
    wishes: dict[str, tuple[Pod, list[assigning.Wish]]] = {}
    for _, there in offers:
        for pod, wish in there:
            wishes.setdefault(wish.uid, (pod, []))[1].append(wish)
    totals = {uid: sum(wish.count for wish in listed) for uid, (_, listed) in wishes.items()}
    kept = _kept(offers, before, totals)
    barred = [_barred(placed, resource, claimed) for resource, _ in offers]
    used = Counter[int]()  # devices that pods and claims hold, by GPU: of all resources, before any is assigned
    for (resource, _), mine, taken in zip(offers, kept, barred, strict=True):
        used.update([*_gpus(resource, mine), *(resource.devices[name].gpu for name in taken)])
    held: dict[str, list[str]] = {uid: [] for uid in wishes}
    holders: dict[str, list[Holder]] = {}
    for (resource, there), mine, taken in zip(offers, kept, barred, strict=True):
        free = _free(resource, mine, used, _barred(placed, resource, unhealthy), taken)
        found = assigning.assign(free, mine, [wish for _, wish in there])
        used.update(_gpus(resource, found))
        used.subtract(_gpus(resource, mine))
        for pod, wish in there:
            held[wish.uid] += found[wish.uid]
            for gpu, holder in _holders(placed, resource, pod, zip(_owners(pod, wish), found[wish.uid], strict=True)):
                holders.setdefault(gpu, []).append(holder)
    memory = {card.device.uuid: card.device.model.memory_mib.usable for card in placed.cards}
    lent = reserving.lend(pods, {gpu: tuple(items) for gpu, items in holders.items()}, namespace=reservations)
    users = {
        gpu: tuple(loads.holder_user(item, item.memory_mib or memory[gpu], works=_works(item)) for item in items)
        for gpu, items in lent.items()
    }
    both = [(pod, _together(uid, listed)) for uid, (pod, listed) in wishes.items()]
    return AssignedInstances({uid: tuple(mine) for uid, mine in held.items()}, users, both)


def _wishes(pods: Iterable[Pod], resource: str) -> Wishes:
    pairs = ((pod, assigning.wish_of(pod, resource)) for pod in pods if requests.holds(pod))
    return sorted((pair for pair in pairs if pair[1].count), key=lambda pair: pair[0].metadata.seniority)


def _kept(
    offers: Sequence[tuple[OfferedResource, Wishes]], before: Mapping[str, Sequence[str]], totals: Mapping[str, int]
) -> list[Mapping[str, Sequence[str]]]:
    """Return what pods held of each resource, by uid; `totals` is how many devices of all resources each requests."""
    places, found = Counter[str](), list[Mapping[str, Sequence[str]]]()
    for resource, there in offers:
        had: dict[str, Sequence[str]] = {}
        for _, wish in there:
            uid = wish.uid
            had[uid] = _mine(before.get(uid, ()), resource, wish, places[uid], totals[uid])
            places[uid] += wish.count
        found.append(_adopted(had, resource))
    return found


def _gpus(resource: OfferedResource, held: Mapping[str, Sequence[str]]) -> list[int]:
    """Return the GPU, by index, of each device of a resource that pods hold."""
    known = (resource.devices.get(sharing.device(item)) for mine in held.values() for item in mine)
    return [item.gpu for item in known if item is not None]


def _mine(before: Sequence[str], resource: OfferedResource, wish: assigning.Wish, first: int, total: int) -> list[str]:
    """Return what a pod held of a resource, from the place `first` of its list, if that is as long as it is now."""
    if len(before) == total:
        return list(before[first : first + wish.count])
    return [item for item in before if sharing.device(item) in resource.devices][: wish.count]


def _adopted(kept: Mapping[str, Sequence[str]], resource: OfferedResource) -> Mapping[str, Sequence[str]]:
    """Return what pods hold of a resource in the form in which it is offered: its sharing may have changed."""
    shared = assigning.shares(list(resource.devices), resource.replicas) if resource.replicas > 1 else ()
    known = set(shared) if shared else resource.devices.keys()
    if all(item in known for mine in kept.values() for item in mine if item):
        return kept
    return assigning.adopt(kept, shared or list(resource.devices))


def _barred(placed: NodeCards, resource: OfferedResource, ids: Collection[str]) -> set[str]:
    """Return the devices of a resource that are among ids of GPUs and instances, or of a GPU among them."""
    if not ids:
        return set()
    gpus = {index for index, card in enumerate(placed.cards) if card.device.uuid in ids}
    return {name for name, item in resource.devices.items() if name in ids or item.gpu in gpus}


def _free(
    resource: OfferedResource,
    kept: Mapping[str, Sequence[str]],
    used: Counter[int],
    unhealthy: Collection[str],
    claimed: Collection[str],
) -> list[str]:
    """Return what pods may have, of the most `used` cards first: of what is unhealthy, only what they have."""
    taken = {item for mine in kept.values() for item in mine}
    ordered = sorted(resource.devices.items(), key=lambda pair: (-used[pair[1].gpu], pair[1].gpu))
    ids = [name for name, _ in ordered if name not in claimed]
    shares = assigning.shares(ids, resource.replicas) if resource.replicas > 1 else ids
    return [item for item in shares if item in taken or sharing.device(item) not in unhealthy]


def _owners(pod: Pod, wish: assigning.Wish) -> tuple[str, ...]:
    return wish.owners(started=requests.running(pod))


def _holders(
    placed: NodeCards, resource: OfferedResource, pod: Pod, mine: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, Holder]]:
    """Yield the GPU, by id, and the holder for each container of a pod and device, or instance, that it has.

    One that has a divided card as a whole holds its first instance: that is where its programs run.
    """
    shares = Counter((container, sharing.device(item)) for container, item in mine if item)
    for (container, name), count in shares.items():
        offered, share = resource.devices[name], min(1.0, count / resource.replicas)
        device = placed.cards[offered.gpu].device
        part, profile, room = offered.part, offered.profile, 0
        if part is None and (first := device.first_instance()) is not None:
            part, profile = first[0].number, first[1]
        if profile is not None:
            room = min(placing.memory_mib(profile, device.model), device.model.memory_mib.usable)
        yield device.uuid, Holder(pod, container, share, part=part, memory_mib=room)


def _together(uid: str, wishes: Sequence[assigning.Wish]) -> assigning.Wish:
    """Return all that a pod requests of a node as one wish, to be counted."""
    if len(wishes) == 1:
        return wishes[0]
    return assigning.Wish(uid, tuple(requests.Request("", wish.count) for wish in wishes))


def _works(holder: Holder) -> bool:
    return requests.running(holder.pod) and holder.container not in requests.regular_init(holder.pod)


def _id(card: Card, item: OfferedDevice) -> str:
    gpu = card.device.uuid
    return gpu if item.part is None else devices.part_id(gpu, item.part)
