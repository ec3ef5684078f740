"""All fake nodes' cards in one engine: the cards of each node, their users, and the simulated exporters."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.machines.health import DeviceFailure, DeviceFaults
from simgpu.machines.inventory import Card, DeviceState, Inventory
from simgpu.machines.machine import Machine, Values
from simgpu.machines.users import User
from simgpu.sim import cards
from simgpu.topology import pools
from simgpu.topology.mig_instances import with_instances
from simgpu.vocabulary import EXPORTER

_NONE = DeviceFailure.NONE
_FINEST_SECONDS = 1.0  # of a step's pieces; more than the usual step, so that plans of pods split none of all cards
_MAX_GONE = 100_000  # removed GPUs whose counters are kept, in case they come back


Instances = Mapping[str, tuple[tuple[str, int], ...]]  # profile and first slice of MIG instances, by GPU id


class NodeCards(msgspec.Struct):
    """A node's GPUs, in order, and the labels of its exporter. `instances` are those besides the ones of its spec."""

    name: str
    spec: pools.NodeGpus
    cards: list[Card]
    exporter: dict[str, str]
    exporter_pod: tuple[str, str] = ("", "")  # name and address; empty if no pod stands for it
    idle_share: float = 0.0  # of its power limit that a GPU draws at rest: the largest
    instances: Instances = {}

    @property
    def ids(self) -> list[str]:
        """The ids of the GPUs."""
        return [card.device.uuid for card in self.cards]

    @property
    def idle(self) -> bool:
        """Whether no GPU is used, nor configured to look so."""
        return not any(card.playing for card in self.cards)

    def users(self) -> dict[str, tuple[User, ...]]:
        """Return the users of each GPU that has any, by id."""
        return {card.device.uuid: card.users for card in self.cards if card.users}


class Fleet:
    """Cards of all nodes. Changes are idempotent; pages are rendered from `machine`."""

    def __init__(self, *, seed: int, parallel: cards.Parallel = cards.in_turn) -> None:
        self._inventory = Inventory(
            seed=seed, max_gone=_MAX_GONE, tiles=False, parallel=parallel, finest=_FINEST_SECONDS
        )
        self.engine = self._inventory.engine
        self.nodes: dict[str, NodeCards] = {}
        self._machine: Machine | None = None
        self._machines: dict[str, Machine] = {}  # of single nodes, at this step
        self._addresses: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self._errors: dict[int, float] = {}  # of cards, by number, as last seen
        self._driven: dict[int, Card] = {}  # cards that several users share and plans or requests drive, by number

    @property
    def steps(self) -> int:
        """How many steps were made."""
        return self._inventory.steps

    @property
    def time(self) -> float:
        """When the last step was made, in seconds since 1970; zero before the first."""
        return self._inventory.time

    def begin(self, clock: float) -> None:
        """Let the simulation's time begin now, in seconds since 1970: plans of pods began before it."""
        self.engine.epoch = clock - self.engine.now

    # Nodes.

    def place(self, name: str, spec: pools.NodeGpus) -> NodeCards:
        """Set the GPUs of a node; unchanged cards keep their state."""
        known = self.nodes.get(name)
        if known is not None and (known.spec is spec or _same_gpus(known.spec, spec)):
            known.spec = spec
            return known
        exporter = known.exporter if known is not None else self._exporter(name)
        instances = known.instances if known is not None else {}
        devices = pools.build(spec, name, labels=exporter)
        if instances:
            devices = [with_instances(device, instances.get(device.uuid, ())) for device in devices]
        made = self._inventory.exchange(known.cards if known is not None else (), devices)
        if known is not None and self._driven:
            kept = {card.number for card in made}
            self._forget([card for card in known.cards if card.number not in kept])
        pod = known.exporter_pod if known is not None else ("", "")
        power = [card.device.model.power_w for card in made]
        idle_share = max((item.idle / item.max for item in power), default=0.0)
        self.nodes[name] = NodeCards(name, spec, made, exporter, pod, idle_share, instances)
        self._changed(name)
        return self.nodes[name]

    def divide(self, node: NodeCards, instances: Instances) -> None:
        """Divide a node's GPUs into these MIG instances besides those of its spec; what stays keeps its load.

        Those that a GPU cannot have, or that overlap with earlier ones, are left out.
        """
        if node.instances == instances:
            return
        before, node.instances = node.instances, instances
        devices = [card.device for card in node.cards]
        for index, device in enumerate(devices):
            wanted, own = instances.get(device.uuid, ()), node.spec.gpus[index].layout
            if set(wanted) != set(before.get(device.uuid, ())):
                plain = msgspec.structs.replace(device, instances=own.instances, starts=own.starts)
                devices[index] = with_instances(plain, wanted)
        self._inventory.exchange(node.cards, devices)
        self._changed(node.name)

    def remove(self, name: str) -> None:
        """Remove a node and its GPUs."""
        if known := self.nodes.pop(name, None):
            self._inventory.remove(known.cards)
            self._forget(known.cards)
            self._changed(name)
        if address := self._addresses.pop(name, None):
            del self._taken[address]

    def _forget(self, gone: Iterable[Card]) -> None:
        for card in gone if self._driven else ():
            self._driven.pop(card.number, None)

    def name_exporter(self, name: str, pod: str, address: str) -> None:
        """Set the pod that stands for a node's exporter; empty for a generated name and address."""
        node = self.nodes[name]
        if node.exporter_pod != (pod, address):
            node.exporter_pod, node.exporter = (pod, address), self._exporter(name, pod, address)
            for card in node.cards:
                card.device = msgspec.structs.replace(card.device, labels=node.exporter)
            self._changed(name)

    def _exporter(self, node: str, pod: str = "", address: str = "") -> dict[str, str]:
        digest = hashlib.sha1(node.encode(), usedforsecurity=False).hexdigest()[:10]
        name = pod or f"{EXPORTER}-{digest}"
        return {"node": node, "exporter": name, "instance": f"{address or self.address(node)}:9400"}

    def address(self, node: str, before: str = "") -> str:
        """Return a unique address for a node's exporter: the one from before, or else one derived from the name."""
        if node not in self._addresses:
            for address in candidate_addresses(node, before):
                if address not in self._taken:
                    self._addresses[node], self._taken[address] = address, node
                    break
        return self._addresses[node]

    # Users.

    def use(self, node: NodeCards, users: Mapping[str, tuple[User, ...]]) -> bool:
        """Set the users of a node's GPUs, by id; GPUs not listed have none. Return whether that changed anything."""
        changed = False
        for card in node.cards:
            wanted = users.get(card.device.uuid, ())
            if wanted != card.users or (not wanted and (card.playing or card.device.static)):
                changed |= self._inventory.use(card, wanted)
                if len(wanted) > 1 and any(user.plan or user.full_load for user in wanted):
                    self._driven[card.number] = card
                else:
                    self._driven.pop(card.number, None)
        return changed

    def _demands(self) -> dict[int, Counter[str]]:
        """Return what users ask for now of shared cards that plans or requests drive, by the card's number and uid."""
        if not self._driven:
            return {}
        running, found = self._inventory.workloads.running, dict[int, Counter[str]]()
        pods = {
            item.number: (number, item.what.pod.uid)
            for number, card in self._driven.items()
            for item in card.playing
            if isinstance(item.what, User) and item.number in running
        }
        usages = self.engine.usages(list(pods))
        for workload, usage in zip(usages.workload.tolist(), usages.usage.tolist(), strict=True):
            number, uid = pods[workload]
            found.setdefault(number, Counter())[uid] += usage
        return found

    def take_ended(self) -> list[tuple[User, str]]:
        """Return the users that a limit ended since the last call, and the reason."""
        return self._inventory.take_ended()

    def request_driven(self) -> list[tuple[User, int]]:
        """Return the users that their requests drive, and the workload of each."""
        return self._inventory.request_driven()

    # Health.

    def fail(self, node: NodeCards, failures: Mapping[int, DeviceFailure]) -> bool:
        """Let a node's GPUs fail as configured, by index; those not listed are healed. Return whether that is news."""
        changed = [
            self._inventory.fail(card, failures.get(index, DeviceFailure.NONE)) for index, card in enumerate(node.cards)
        ]
        if any(changed):
            self._machines.pop(node.name, None)
            if self._machine is not None:
                self._machine.set_lost(_lost(self.nodes.values()))
        return any(changed)

    def faults(self, node: NodeCards) -> dict[str, DeviceFaults]:
        """Return what is wrong with a node's GPUs, by id; healthy ones are left out."""
        return self._inventory.faults(node.cards)

    def struck(self) -> set[str]:
        """Return the nodes whose GPUs had errors of the simulation since the last call."""
        if not self.engine.take_errors():
            return set()
        listed = [(node.name, card) for node in self.nodes.values() for card in node.cards]
        found = self._inventory.errors([card for _, card in listed])
        before = self._errors
        self._errors = {listed[place][1].number: count for place, count in found.items()}
        places = (listed[place] for place in found)
        return {name for name, card in places if before.get(card.number) != self._errors[card.number]}

    # Time and views.

    def step(self, now: float, *, clock: float) -> None:
        """Simulate up to `now`, in seconds; `clock` is in seconds since 1970."""
        self._inventory.step(now, clock=clock)
        self._machines.clear()
        if self._machine is not None and (changed := self._inventory.changed):
            self._machine.change_users(
                {card.place: (card.pod(card.seen), card.seen) for card in changed},
                {card.place: card.part_pods(card.seen) for card in changed if card.parts},
            )

    def machine(self) -> Machine:
        """Return all GPUs of all nodes, as one machine to render."""
        if self._machine is None:
            self._machine = self._view(self.nodes.values())
            for place, card in enumerate(chain.from_iterable([node.cards for node in self.nodes.values()])):
                card.place = place
        return self._current(self._machine)

    def machine_of(self, name: str) -> Machine | None:
        """Return one node's GPUs, the same machine until the next step or change; None for an unknown node."""
        if name not in self._machines and (node := self.nodes.get(name)) is not None:
            self._machines[name] = machine = self._current(self._view([node]))
            machine.hold(usages=False)  # reading all values at once takes a third less time
        return self._machines.get(name)

    def _changed(self, name: str) -> None:
        """Make machines anew: a node has other devices."""
        self._machine = None
        self._machines.pop(name, None)

    def _view(self, nodes: Collection[NodeCards]) -> Machine:
        """Return the machine of some nodes, with the pods of the last step, to which its readings belong.

        There may be many thousands of cards: few passes over them keep the event loop responsive.
        """
        machine = self._inventory.machine([(node.name, node.cards) for node in nodes])
        listed = enumerate(chain.from_iterable([node.cards for node in nodes]))
        special = [(place, card) for place, card in listed if card.seen or card.playing or card.failure is not _NONE]
        machine.users = {place: card.seen for place, card in special if card.seen}
        machine.set_pods(
            {place: pod for place, card in special if (pod := card.pod(card.seen)) is not None},
            {handle: pod for _, card in special if card.parts for handle, pod in card.part_pods(card.seen).items()},
        )
        machine.set_lost([place for place, card in special if card.failure == DeviceFailure.LOST])
        machine.demands = self._demands
        return machine

    def _current(self, machine: Machine) -> Machine:
        machine.step, machine.time = self.steps, self._inventory.time
        return machine

    def exporters(self) -> Iterator[tuple[str, str, str]]:
        """Yield node, pod and address of each simulated exporter."""
        for name, node in self.nodes.items():
            if node.cards:
                yield name, node.exporter["exporter"], node.exporter["instance"]

    # Counters.

    def counters(self, node: NodeCards) -> dict[str, list[float]]:
        """Return a node's counters, by GPU id."""
        return self._inventory.counters(node.cards, digits=3)

    def all_counters(self) -> dict[str, list[float]]:
        """Return the counters of all GPUs, by id."""
        listed = chain.from_iterable(node.cards for node in self.nodes.values())
        return self._inventory.counters([*listed], digits=3)

    def failures(self, node: NodeCards) -> dict[str, DeviceFailure]:
        """Return the configured failures that a node's counters include, by GPU id."""
        return {card.device.uuid: card.failure for card in node.cards if card.failure != DeviceFailure.NONE}

    def remember(self, saved: Mapping[str, Sequence[float]], seconds: float) -> None:
        """Keep counters of absent GPUs, saved `seconds` ago, to resume from if the GPUs come back."""
        self._inventory.remember({gpu: _state(values, seconds) for gpu, values in saved.items()})

    def resume(
        self,
        node: NodeCards,
        saved: Mapping[str, Sequence[float]],
        seconds: float,
        failures: Mapping[str, DeviceFailure] = {},
    ) -> None:
        """Resume from counters saved `seconds` ago, plus the most that they can have grown since.

        They include `failures`, by GPU id, which go on and are not counted again.
        """
        for card in node.cards:
            if (values := saved.get(card.device.uuid)) is not None:
                failure = failures.get(card.device.uuid, DeviceFailure.NONE)
                self._inventory.resume(card, msgspec.structs.replace(_state(values, seconds), failure=failure))
        if failures:
            self._changed(node.name)


def _same_gpus(known: pools.NodeGpus, spec: pools.NodeGpus) -> bool:
    """Return whether nodes differ in nothing but the way in which pods get their GPUs."""
    return msgspec.structs.replace(known, allocation=spec.allocation) == spec


def _lost(nodes: Collection[NodeCards]) -> list[int]:
    """Return the places of lost cards in the machine of these nodes."""
    listed = (card for node in nodes for card in node.cards)
    return [place for place, card in enumerate(listed) if card.failure == DeviceFailure.LOST]


def pod_usage(machine: Machine, places: Collection[int] | None = None) -> Iterator[tuple[str, int, float, float]]:
    """Return pod uid, index of the GPU, utilisation in percent, and memory in bytes, for each pod on each GPU.

    Pods that share a GPU split its utilisation in proportion to what they ask for; one with MIG instances of it has
    the utilisation of these. The values are of the moment of the call. With `places` it is only for GPUs at these
    places of the machine.
    """
    users = machine.users
    if places is not None:
        users = {place: users[place] for place in places if place in users}
    usage, demands = machine.column("usage"), machine.demands()
    asked = {int(place): demands[int(machine.ids[place])] for place in _places(machine, demands)} if demands else {}
    parts = machine.part_column("usage") if machine.parts else np.empty(0)
    return _pod_usage(machine, users, usage, parts, asked)


def _places(machine: Machine, numbers: Collection[int]) -> npt.NDArray[np.intp]:
    """Return the places of cards, by number, in a machine."""
    return np.flatnonzero(np.isin(machine.ids, list(numbers)))


def _pod_usage(
    machine: Machine,
    users: Mapping[int, tuple[User, ...]],
    usage: Values,
    parts: Values,
    asked: Mapping[int, Mapping[str, float]],
) -> Iterator[tuple[str, int, float, float]]:
    devices = machine.devices
    for place, sharing in sorted(users.items()):
        index, percent = devices[place].index, float(np.rint(usage[place]))
        if sharing[0].part is not None:
            rows = machine.part_rows.get(place, {})  # users are of the last step, parts of now
            yield from ((uid, index, *values) for uid, values in _on_parts(sharing, rows, parts).items())
        elif len(sharing) == 1 and not sharing[0].reserves:
            yield sharing[0].pod.uid, index, percent, sharing[0].memory_mib * 2.0**20
        else:
            yield from ((uid, index, *values) for uid, values in _divided(sharing, percent, asked.get(place)).items())


def _on_parts(users: Sequence[User], rows: Mapping[int, int], usage: Values) -> dict[str, tuple[float, float]]:
    """Utilisation in percent and memory in bytes of each pod, by uid, from the rows of parts by number."""
    found: dict[str, list[float]] = {}
    memory = Counter[str]()
    for user in users:
        if user.part is not None and user.part in rows:
            found.setdefault(user.pod.uid, []).append(float(usage[rows[user.part]]))
            memory[user.pod.uid] += user.memory_mib
    return {uid: (round(sum(values) / len(values)), memory[uid] * 2.0**20) for uid, values in found.items()}


def candidate_addresses(node: str, before: str) -> Iterator[str]:
    """Yield addresses for a node's exporter, best first."""
    if re.fullmatch(r"10(\.\d{1,3}){3}", before):
        yield before
    first = int.from_bytes(hashlib.sha1(node.encode(), usedforsecurity=False).digest()[:3])
    for number in range(first, first + 2**24):
        yield f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _state(values: Sequence[float], seconds: float) -> DeviceState:
    """Return saved counters as a state; empty for those of another version."""
    known = len(values) == len(cards.COUNTERS)
    return DeviceState("", dict(zip(cards.COUNTERS, values, strict=True)) if known else {}, max(0.0, seconds))


def _divided(
    users: Sequence[User], percent: float, demands: Mapping[str, float] | None
) -> dict[str, tuple[float, float]]:
    """Utilisation in percent and memory in bytes of each pod, by uid: to each the part that it asks for.

    That is as its annotation says, or its `demands` of the moment.
    """
    asked, memory = Counter[str](), Counter[str]()
    for user in users:
        if user.reserves:  # it holds the GPU for the others
            continue
        asked[user.pod.uid] += user.utilization.low + user.utilization.high
        memory[user.pod.uid] += user.memory_mib
    parts: Mapping[str, float] = asked if demands is None else {uid: demands.get(uid, 0.0) for uid in asked}
    whole = sum(parts.values()) or 1
    return {uid: (round(percent * part / whole), memory[uid] * 2.0**20) for uid, part in parts.items()}
