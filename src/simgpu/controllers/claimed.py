"""Users of a fake node's GPUs through claims, and which GPUs claims hold.

A claim's device belongs to the pods that the claim is reserved for. Several containers or pods on one device are
several users, who share its memory; a user of a MIG device has that part of its GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from simgpu.catalog import models, placing
from simgpu.controllers.loading import PodLoads
from simgpu.dra import claims
from simgpu.dra.node_devices import DevicePlace
from simgpu.kube.views import Pod
from simgpu.machines.users import PodRef, User
from simgpu.pods import assigning, requests
from simgpu.topology.devices import Device
from simgpu.vocabulary import DRA_DRIVER

PATIENCE = 3.0  # seconds until a problem is reported: pods and claims are watched apart, and one may be behind

_REASON = "FailedPrepareDynamicResources"  # as the kubelet has it


class Trouble(msgspec.Struct, frozen=True):
    """Why a pod does not have GPUs that it should have; `missing` is how many it requests in vain."""

    pod: Pod
    reason: str
    message: str
    missing: int = 0


class ClaimedUsers(msgspec.Struct):
    """Users of each GPU, by id, without and with administrative access, and why pods do not use their claims."""

    owners: dict[str, tuple[User, ...]] = {}
    observers: dict[str, tuple[User, ...]] = {}
    problems: list[Trouble] = []

    def joined(self, assigned: Mapping[str, tuple[User, ...]]) -> dict[str, tuple[User, ...]]:
        """Return these users together with those that GPUs were assigned to; administrators come last."""
        found = {**assigned, **self.owners}
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
    found = ClaimedUsers({}, {}, [])
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
    for admin, into in ((False, found.owners), (True, found.observers)):
        mine = [use for use in uses if use.device.admin is admin]
        for gpu in dict.fromkeys(use.place.gpu for use in mine):
            using = [use for use in mine if use.place.gpu == gpu and use.container]
            into[gpu] = _observing(using) if admin else _sharing(using, devices[gpu].model, loads)
    return found


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
    return tuple(User(ref, share=0.0) for ref in dict.fromkeys(_reference(use) for use in uses))


def _sharing(uses: Sequence[_Use], model: models.Model, loads: PodLoads) -> tuple[User, ...]:
    """Return the users of one GPU; a container that has several parts of it is one user of all of them."""
    total = model.memory_mib.usable
    members = Counter(use.slot for use in uses)
    slots = Counter(device for device, _ in members)
    memory, compute = Counter[PodRef](), dict[PodRef, float]()
    pods: dict[PodRef, _Use] = {}
    for use in uses:
        ref, profile = _reference(use), use.place.profile
        room = total if profile is None else min(total, placing.memory_mib(profile, model))
        room = min(room, use.device.memory_mib or room // slots[use.device.device])
        memory[ref] += room // members[use.slot]
        compute[ref] = compute.get(ref, 0.0) + (1.0 if profile is None else _compute(profile, model))
        pods.setdefault(ref, use)
    found: list[User] = []
    for ref, use in pods.items():
        part, mine = min(compute[ref], 1.0), min(memory[ref], total)
        works = requests.running(use.pod) and use.container not in requests.regular_init(use.pod)
        load = loads.of(use.pod).of(use.container, works=works)
        found.append(loads.user(use.pod, load, ref, mine, total, compute=part))
    return tuple(found)


def _compute(profile: models.MigProfile, model: models.Model) -> float:
    return placing.multiprocessors(profile, model) / (model.sm_count or 1)
