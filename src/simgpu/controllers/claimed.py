"""Users of a fake node's GPUs through claims, and which GPUs claims hold.

A claim's device belongs to the pods that the claim is reserved for. Several containers or pods on one device are
several users, who share its memory; a user of a MIG device has that instance of its GPU. Of devices that overlap, the
oldest pod has its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from simgpu.catalog import models
from simgpu.controllers.loading import PodLoads
from simgpu.dra import claims
from simgpu.dra.node_devices import DevicePlace, MigPart
from simgpu.kube.views import Pod
from simgpu.machines.users import PodRef, User
from simgpu.pods import assigning, requests
from simgpu.pods.loads import Load
from simgpu.topology.devices import Device, part_id
from simgpu.vocabulary import DRA_DRIVER

PATIENCE = 3.0  # seconds until a problem is reported: pods and claims are watched apart, and one may be behind

_REASON = "FailedPrepareDynamicResources"  # as the kubelet has it


class Trouble(msgspec.Struct, frozen=True):
    """Why a pod does not have GPUs that it should have; `missing` is how many others hold."""

    pod: Pod
    reason: str
    message: str
    missing: int = 0


class ClaimedUsers(msgspec.Struct):
    """Users of each GPU, by id, without and with administrative access, and why pods do not use their claims.

    `parts` are the MIG instances that claims hold, of GPUs by id, and `observed` those with administrative access.
    """

    owners: dict[str, tuple[User, ...]] = {}
    observers: dict[str, tuple[User, ...]] = {}
    problems: list[Trouble] = []
    parts: dict[str, tuple[MigPart, ...]] = {}
    observed: dict[str, tuple[MigPart, ...]] = {}

    @property
    def taken(self) -> set[str]:
        """The ids of GPUs that claims hold, and of instances of those that are divided."""
        instances = {part_id(gpu, part.number) for gpu, parts in self.parts.items() for part in parts}
        return instances | (self.owners.keys() - self.parts.keys())

    def instances(self, assigned: Collection[str]) -> dict[str, tuple[tuple[str, int], ...]]:
        """Return the MIG instances that claims divide GPUs into, by GPU id: profile and first slice of each.

        Administrative access divides no GPU that others hold whole, by a claim or because it was `assigned`.
        """
        found = dict(self.parts)
        for gpu, parts in self.observed.items():
            if gpu in self.parts or not (gpu in self.owners or gpu in assigned):
                found[gpu] = (*found.get(gpu, ()), *parts)
        return {gpu: tuple(dict.fromkeys((part.profile, part.start) for part in parts)) for gpu, parts in found.items()}

    def joined(self, assigned: Mapping[str, tuple[User, ...]]) -> dict[str, tuple[User, ...]]:
        """Return these users together with those that GPUs were assigned to; administrators come last."""
        found = {**assigned, **self.owners}
        for gpu in self.parts:  # others may have other instances of it
            found[gpu] = (*self.owners.get(gpu, ()), *assigned.get(gpu, ()))
        for gpu, observers in self.observers.items():
            found[gpu] = (*found.get(gpu, ()), *observers)
        return found


Troubles = dict[tuple[str, str], float | None]  # since when, by the uid of a pod and the message; None once reported


def lasting(problems: Iterable[Trouble], before: Troubles, now: float) -> tuple[list[Trouble], Troubles, float | None]:
    """Return the problems to report, all of them with their times, and the seconds until there are more to report.

    One that has lasted is to be reported once. If it goes and comes back, it is new.
    """
    found, troubles, waits = list[Trouble](), Troubles(), list[float]()
    for item in problems:
        key = item.pod.metadata.uid, item.message
        if key in troubles:
            continue
        troubles[key] = since = before.get(key, now)
        if since is not None and now - since >= PATIENCE:
            troubles[key] = None
            found.append(item)
        elif since is not None:
            waits.append(PATIENCE - (now - since))
    return found, troubles, min(waits, default=None)


def shortages(
    wishes: Iterable[tuple[Pod, assigning.Wish]], held: Mapping[str, Sequence[str]], claimed: int
) -> list[Trouble]:
    """Return the pods that request more GPUs than they have; `claimed` is how many of the node's GPUs claims hold."""
    found: list[Trouble] = []
    for pod, wish in wishes:
        if missing := held[wish.uid].count(""):
            message = (
                f"{missing} of the {wish.count} GPUs that it requests are not free; claims hold {claimed} of the node"
            )
            found.append(Trouble(pod, "GpusOvercommitted", message, missing))
    return found


class _Use(msgspec.Struct, frozen=True):
    """A container's use of a device; users of one slot share it. A device without a container is only held."""

    pod: Pod
    container: str
    place: DevicePlace
    device: claims.ClaimedDevice

    @property
    def slot(self) -> tuple[str, str]:
        return self.device.device, self.device.share


def users_of(
    node: str,
    pods: Iterable[Pod],
    find: claims.FindClaim,
    *,
    places: Mapping[str, DevicePlace] | None,
    devices: Mapping[str, Device],
    loads: PodLoads,
) -> ClaimedUsers:
    """Return the users of a node's GPUs through claims, the oldest pod first.

    `places` are the devices that the node publishes, None if it publishes none.
    """
    found = ClaimedUsers({}, {}, [], {}, {})
    uses: list[_Use] = []
    holding = [pod for pod in pods if claims.has_claims(pod) and requests.holds(pod)]
    for pod in sorted(holding, key=lambda pod: pod.metadata.seniority):
        result = claims.uses_of(pod, find)
        here = {use.device: (places or {}).get(use.device.device) for use in result.uses if use.device.pool == node}
        absent = dict.fromkeys(use.device for use in result.uses if here.get(use.device) is None)
        missing = (_absent(device, node, registered=places is not None) for device in absent)
        found.problems += (Trouble(pod, _REASON, problem) for problem in (*result.problems, *missing))
        ended = requests.regular_init(pod) if requests.running(pod) else ()
        uses += (
            _Use(pod, "" if use.container in ended else use.container, place, use.device)
            for use in (claims.held(result.uses) if absent else result.uses)
            if (place := here.get(use.device)) is not None
        )
    if any(use.place.part is not None for use in uses):  # else no two devices overlap
        uses = _without_overlaps(uses, found.problems)
    for admin, into in ((False, found.owners), (True, found.observers)):
        mine = [use for use in uses if use.device.admin is admin]
        for gpu in dict.fromkeys(use.place.gpu for use in mine):
            holding_it = [use for use in mine if use.place.gpu == gpu]
            using = [use for use in holding_it if use.container]
            if admin:
                into[gpu] = _observing(using)
            else:
                whole = [use for use in using if use.place.part is None]
                into[gpu] = _sharing(whole, devices[gpu].model, loads) + _on_instances(using, loads)
            if parts := tuple(dict.fromkeys(use.place.part for use in holding_it if use.place.part is not None)):
                (found.observed if admin else found.parts)[gpu] = parts
    return found


def _without_overlaps(uses: Sequence[_Use], problems: list[Trouble]) -> list[_Use]:
    """Return uses without devices that overlap with an older pod's; pods that lack one only hold the others.

    Why they lack them is added to `problems`. Of pods of the same second it is always the same one that has its device.
    Administrative access to a device excludes no other.
    """
    kept, holders = list[_Use](), dict[str, dict[DevicePlace, _Use]]()  # by GPU id, and its device
    refused: dict[tuple[str, str], Trouble] = {}  # by the uid of a pod, and the device
    for use in sorted(uses, key=lambda use: (use.pod.metadata.seniority, use.pod.metadata.uid)):
        there = holders.setdefault(use.place.gpu, {})
        holder = next((known for place, known in there.items() if place.overlaps(use.place)), None)
        if use.device.admin:
            kept.append(use)
        elif holder is None:
            there.setdefault(use.place, use)
            kept.append(use)
        else:
            refused[use.pod.metadata.uid, use.device.device] = _refused(use, holder)
    problems += refused.values()
    lacking = {uid for uid, _ in refused}
    return [msgspec.structs.replace(use, container="") if use.pod.metadata.uid in lacking else use for use in kept]


def _refused(use: _Use, holder: _Use) -> Trouble:
    owner = f"{holder.pod.metadata.namespace}/{holder.pod.metadata.name}"
    message = f"device {use.device.device} overlaps with device {holder.device.device}, which pod {owner} holds"
    return Trouble(use.pod, _REASON, message, 1)


def _absent(device: claims.ClaimedDevice, node: str, *, registered: bool) -> str:
    if device.pool != node:
        return f"device {device.device} is of pool {device.pool}, not of node {node}"
    if not registered:
        return f"DRA driver {DRA_DRIVER} is not registered on node {node}: its GPUs are not allocated through DRA"
    return f"node {node} has no device {device.device}"


def _reference(use: _Use) -> PodRef:
    meta = use.pod.metadata
    return PodRef(meta.name, meta.namespace, use.container, meta.uid)


def _observing(uses: Sequence[_Use]) -> tuple[User, ...]:
    pairs = dict.fromkeys((_reference(use), use.place.part) for use in uses)
    return tuple(User(ref, share=0.0, part=None if part is None else part.number) for ref, part in pairs)


def _sharing(uses: Sequence[_Use], model: models.Model, loads: PodLoads) -> tuple[User, ...]:
    """Return the users of one whole GPU; a container that has several shares of it is one user of all of them."""
    total = model.memory_mib.usable
    members = Counter(use.slot for use in uses)
    slots = Counter(device for device, _ in members)
    memory, pods = Counter[PodRef](), dict[PodRef, _Use]()
    for use in uses:
        ref, room = _reference(use), min(total, use.device.memory_mib or total // slots[use.device.device])
        memory[ref] += room // members[use.slot]
        pods.setdefault(ref, use)
    return tuple(
        loads.user(use.pod, _load(use, loads), ref, min(memory[ref], total), total) for ref, use in pods.items()
    )


def _on_instances(uses: Sequence[_Use], loads: PodLoads) -> tuple[User, ...]:
    """Return the users of the MIG instances of one GPU; those of one instance share its memory."""
    found: dict[tuple[PodRef, int], User] = {}
    pairs = {(use.place.part.number, _reference(use)) for use in uses if use.place.part is not None}
    sharing = Counter(number for number, _ in pairs)
    for use in uses:
        ref, part = _reference(use), use.place.part
        if part is None or (ref, part.number) in found:
            continue
        room = part.memory_mib // sharing[part.number]
        user = loads.user(use.pod, _load(use, loads), ref, room, part.memory_mib)
        found[ref, part.number] = msgspec.structs.replace(user, part=part.number)
    return tuple(found.values())


def _load(use: _Use, loads: PodLoads) -> Load:
    works = requests.running(use.pod) and use.container not in requests.regular_init(use.pod)
    return loads.of(use.pod).of(use.container, works=works)
