"""Where the page's data comes from: all fake nodes of a controller, or the box of an exporter or an agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from simgpu.dashboard.answers import GpuOwner, RecordedEvent
from simgpu.kube.views import Pod
from simgpu.machines.box import Box
from simgpu.machines.fleet import Fleet, pod_usage
from simgpu.machines.health import DeviceFaults
from simgpu.machines.machine import Machine
from simgpu.machines.users import PodRef

MIB = 2.0**20


class PodUse(msgspec.Struct, frozen=True):
    """What a pod uses, summed over its GPUs: utilisation in percent of one GPU, and memory; and its MIG instances.

    Of a GPU of which it has instances, the utilisation is their mean.
    """

    percent: float = 0.0
    memory_mib: float = 0.0
    instances: int = 0


_NO_USE = PodUse()


class DashboardSource(Protocol):
    """What the page reads. Places are positions of GPUs in `machine`."""

    role: str

    def away(self) -> bool:
        """Return whether there is nothing to show, such as without the lease."""

    def machine(self) -> Machine | None:
        """Return all GPUs; None while there are none to show, such as without the lease."""

    def machine_of(self, node: str) -> Machine | None:
        """Return the GPUs of one node; None if it is unknown."""

    def node_name(self, hostname: str) -> str:
        """Return the name of a node by the host name of its GPUs' series, which may be that of an exporter's pod."""

    def pool_of(self, node: str) -> str:
        """Return the pool of a node; empty if it has none."""

    def versions_of(self, node: str) -> tuple[str, str]:
        """Return the versions of a node's driver and of CUDA."""

    def faults(self) -> Mapping[str, DeviceFaults]:
        """Return what is wrong with GPUs, by id; healthy ones are left out."""

    def first_owners(self, machine: Machine) -> Mapping[int, PodRef]:
        """Return the pod, or the workload, that has each GPU first, by place."""

    def owners(self, machine: Machine, place: int) -> list[GpuOwner]:
        """Return all owners of a GPU."""

    def pod_places(self, machine: Machine) -> Mapping[PodRef, Sequence[int]]:
        """Return the places of each pod, which is named without its container."""

    def pod_uses(self, machine: Machine, pods: Mapping[PodRef, Sequence[int]]) -> list[PodUse]:
        """Return what each of some pods uses of its GPUs, in their order; `pods` has the places of each."""

    def pod(self, pod: PodRef) -> Pod | None:
        """Return a pod as Kubernetes has it."""

    async def pending(self) -> Sequence[Pod]:
        """Return pods that no node has yet, at most as many as the page lists."""

    def renamed_resources(self) -> Collection[str]:
        """Return the names that time-slicing gives to resources of GPUs."""

    def events(self) -> Iterable[RecordedEvent]:
        """Return recent events, oldest first."""

    def forget(self) -> None:
        """Keep nothing that was computed of any machine."""


class ClusterFacts(msgspec.Struct, frozen=True):
    """What a source knows from Kubernetes; nothing by default."""

    pool_of: Callable[[str], str] = lambda _node: ""
    faults: Callable[[], Mapping[str, DeviceFaults]] = dict
    pod: Callable[[PodRef], Pod | None] = lambda _pod: None
    pending: Callable[[], Awaitable[Sequence[Pod]]] | None = None
    events: Callable[[], Iterable[RecordedEvent]] = tuple
    renamed_resources: Callable[[], Collection[str]] = tuple


NO_FACTS = ClusterFacts()


class _FromCluster:
    """What fleets and boxes have in common."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._facts = facts

    def pool_of(self, node: str) -> str:
        """Return the pool of a node."""
        return self._facts.pool_of(node)

    def pod(self, pod: PodRef) -> Pod | None:
        """Return a pod as Kubernetes has it."""
        return self._facts.pod(pod)

    async def pending(self) -> Sequence[Pod]:
        """Return pods that no node has yet."""
        return await self._facts.pending() if self._facts.pending is not None else ()

    def renamed_resources(self) -> Collection[str]:
        """Return the names that time-slicing gives to resources of GPUs."""
        return self._facts.renamed_resources()

    def events(self) -> Iterable[RecordedEvent]:
        """Return recent events."""
        return self._facts.events()


class FleetSource(_FromCluster):
    """All nodes of a fleet, which may be replaced by another."""

    role = "controller"

    def __init__(self, fleet: Callable[[], Fleet | None], facts: ClusterFacts = NO_FACTS) -> None:
        super().__init__(facts)
        self._fleet = fleet
        self._grouped: tuple[Machine | None, int, dict[PodRef, list[int]]] = (None, -1, {})
        self._first: tuple[Machine | None, int, dict[int, PodRef]] = (None, -1, {})

    def away(self) -> bool:
        """Return whether there is no fleet."""
        return self._fleet() is None

    def machine(self) -> Machine | None:
        """Return all GPUs."""
        fleet = self._fleet()
        return None if fleet is None else fleet.machine()

    def node_name(self, hostname: str) -> str:
        """Return the name of a node."""
        return hostname

    def machine_of(self, node: str) -> Machine | None:
        """Return the GPUs of one node."""
        fleet = self._fleet()
        return None if fleet is None else fleet.machine_of(node)

    def versions_of(self, node: str) -> tuple[str, str]:
        """Return the versions of a node's driver and of CUDA."""
        fleet = self._fleet()
        cards = None if fleet is None else fleet.nodes.get(node)
        return ("", "") if cards is None else (cards.spec.driver_version, cards.spec.cuda_version)

    def faults(self) -> Mapping[str, DeviceFaults]:
        """Return what is wrong with GPUs."""
        return self._facts.faults()

    def first_owners(self, machine: Machine) -> Mapping[int, PodRef]:
        """Return the pod that has each GPU, or an instance of it, first."""
        if not machine.parts:
            return machine.pods
        if self._first[:2] != (machine, machine.version):
            divided = {place: users[0].pod for place in machine.part_rows if (users := machine.users.get(place))}
            self._first = (machine, machine.version, divided | machine.pods)
        return self._first[2]

    def owners(self, machine: Machine, place: int) -> list[GpuOwner]:
        """Return all owners of a GPU: its users, or the owner that is configured."""
        users = machine.users.get(place, ())
        if not users and (pod := machine.pods.get(place)) is not None:
            return [_owner(pod)]
        return [_owner(user.pod, user.share, user.part) for user in users if not user.reserves or len(users) == 1]

    def pod_places(self, machine: Machine) -> Mapping[PodRef, Sequence[int]]:
        """Return the places of each pod; of the whole fleet they are kept until its users change."""
        if machine is not self.machine():
            return _grouped(machine)
        if self._grouped[:2] != (machine, machine.version):
            self._grouped = (machine, machine.version, _grouped(machine))
        return self._grouped[2]

    def pod_uses(self, machine: Machine, pods: Mapping[PodRef, Sequence[int]]) -> list[PodUse]:
        """Return what each pod uses, read at once: each read looks at what all shared GPUs are asked for."""
        found: dict[str, PodUse] = {}
        for uid, _, percent, memory in pod_usage(machine, {place for places in pods.values() for place in places}):
            known = found.get(uid, _NO_USE)
            found[uid] = PodUse(known.percent + percent, known.memory_mib + memory / MIB)
        uses = [found.get(pod.uid, _NO_USE) for pod in pods]
        if not machine.parts:
            return uses
        return [
            msgspec.structs.replace(use, instances=_instances(machine, pod.uid, places))
            for use, (pod, places) in zip(uses, pods.items(), strict=True)
        ]

    def forget(self) -> None:
        """Keep no places of pods."""
        self._grouped, self._first = (None, -1, {}), (None, -1, {})


class _Held:
    """Who has the GPUs of a box, and the parts of them: pods, and workloads without one."""

    def __init__(self, box: Box, machine: Machine) -> None:
        listed: dict[int, dict[tuple[PodRef, int | None], GpuOwner]] = {}
        found: dict[PodRef, dict[int, None]] = {}
        parts: dict[PodRef, dict[int, dict[int, None]]] = {}
        self.first: dict[int, PodRef] = {}
        for place, part, pod in box.workload_places():
            listed.setdefault(place, {})[pod, part] = _owner(pod, 1.0, part)
            found.setdefault(own := _without_container(pod), {})[place] = None
            if part is not None and (row := machine.part_rows.get(place, {}).get(part)) is not None:
                parts.setdefault(own, {}).setdefault(place, {})[row] = None
            self.first.setdefault(place, pod)
        for place, pod in machine.pods.items():
            if place not in listed:
                listed[place] = {(pod, None): _owner(pod)}
            found.setdefault(_without_container(pod), {})[place] = None
            self.first[place] = pod
        self.owners = {place: list(owners.values()) for place, owners in listed.items()}
        self.places = {pod: list(places) for pod, places in found.items()}
        # Rows of the parts that each pod has, by place.
        self.parts = {pod: {place: list(rows) for place, rows in cards.items()} for pod, cards in parts.items()}


class BoxSource(_FromCluster):
    """The one node of an exporter or an agent; `node` is its name, that of its series by default."""

    def __init__(self, box: Callable[[], Box], *, role: str, node: str = "", facts: ClusterFacts = NO_FACTS) -> None:
        super().__init__(facts)
        self.role = role
        self._node = node
        self._box = box
        self._known: tuple[tuple[Machine, int, int], _Held] | None = None

    def away(self) -> bool:
        """Return whether the box made no step yet."""
        return not self._box().steps

    def machine(self) -> Machine | None:
        """Return all GPUs, once they made a step."""
        box = self._box()
        return box.machine if box.steps else None

    def node_name(self, hostname: str) -> str:
        """Return the name of the node."""
        return self._node or hostname

    def machine_of(self, node: str) -> Machine | None:
        """Return the GPUs of the node."""
        machine = self.machine()
        return machine if machine is not None and node in map(self.node_name, machine.hostnames[:1]) else None

    def versions_of(self, node: str) -> tuple[str, str]:
        """Return the versions of the driver and of CUDA."""
        model = self._box().devices[0].model if node and self._box().devices else None
        return (model.driver or "", model.cuda or "") if model is not None else ("", "")

    def faults(self) -> Mapping[str, DeviceFaults]:
        """Return what is wrong with GPUs."""
        return self._box().faults()

    def first_owners(self, machine: Machine) -> Mapping[int, PodRef]:
        """Return the pod or workload that has each GPU first."""
        return self._held(machine).first

    def owners(self, machine: Machine, place: int) -> list[GpuOwner]:
        """Return all owners of a GPU."""
        return self._held(machine).owners.get(place, [])

    def pod_places(self, machine: Machine) -> Mapping[PodRef, Sequence[int]]:
        """Return the places of each pod and of each workload without one."""
        return self._held(machine).places

    def _held(self, machine: Machine) -> _Held:
        """Return who has what: read once in a step, for all GPUs."""
        at = (machine, machine.step, machine.version)
        if self._known is None or self._known[0] != at:
            self._known = at, _Held(self._box(), machine)
        return self._known[1]

    def pod_uses(self, machine: Machine, pods: Mapping[PodRef, Sequence[int]]) -> list[PodUse]:
        """Return what each pod uses of its GPUs; of a workload without a pod, what its GPUs and parts of them do."""
        found: dict[PodRef, PodUse] = {}
        parts = self._held(machine).parts
        for item in machine.usages:
            pod = _without_container(item.pod)
            known = found.get(pod, _NO_USE)
            percent = 0.0 if item.device in parts.get(pod, ()) else 100 * item.usage  # that of parts follows
            found[pod] = PodUse(known.percent + percent, known.memory_mib + item.memory_mib)
        return [
            _with_parts(machine, found.get(pod) or _of_cards(machine, places, parts.get(pod, {})), parts.get(pod, {}))
            for pod, places in pods.items()
        ]

    def forget(self) -> None:
        """Keep no owners."""
        self._known = None


def _of_cards(machine: Machine, places: Sequence[int], parts: Mapping[int, Sequence[int]]) -> PodUse:
    """Return what GPUs do, and how much memory they use; of those with `parts`, only the memory of these."""
    whole = [place for place in places if place not in parts]
    rows = [row for found in parts.values() for row in found]
    memory = float(machine.column("memory_used")[whole].sum())
    if rows:
        memory += float(machine.part_column("memory_mib")[rows].sum())
    return PodUse(float(np.rint(machine.column("usage"))[whole].sum()), memory)


def _with_parts(machine: Machine, use: PodUse, parts: Mapping[int, Sequence[int]]) -> PodUse:
    """Return a use with that of parts of GPUs, whose rows are by place: their mean on each."""
    if not parts:
        return use
    usage = machine.part_column("usage")
    percent = sum(float(usage[rows].mean()) for rows in parts.values())
    instances = sum(bool(machine.parts[row].profile) for rows in parts.values() for row in rows)
    return PodUse(use.percent + percent, use.memory_mib, instances)


def _instances(machine: Machine, uid: str, places: Sequence[int]) -> int:
    """Return how many MIG instances a pod of a fleet has."""
    users = ((place, user) for place in places for user in machine.users.get(place, ()))
    return len({(place, user.part) for place, user in users if user.pod.uid == uid and user.part is not None})


def _grouped(machine: Machine) -> dict[PodRef, list[int]]:
    found: dict[PodRef, list[int]] = {}
    by_uid: dict[str, list[int]] = {}
    for place, users in machine.users.items():
        for user in users:
            known = by_uid.get(user.pod.uid)
            if known is None:
                known = found[_without_container(user.pod)] = by_uid[user.pod.uid] = []
            if not known or known[-1] != place:
                known.append(place)
    return found


def _without_container(pod: PodRef) -> PodRef:
    return PodRef(pod.name, pod.namespace, "", pod.uid)


def _owner(pod: PodRef, share: float = 1.0, part: int | None = None) -> GpuOwner:
    return GpuOwner(pod.namespace, pod.name, pod.container, round(share, 4), part)
