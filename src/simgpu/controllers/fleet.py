"""All fake nodes' cards in one engine: which node has which, who uses them, and how that is shown."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
import numpy as np

from simgpu import vocabulary
from simgpu.controllers.publishing import Use
from simgpu.identities import view
from simgpu.pods import profiles, requests
from simgpu.sim import activity, engine
from simgpu.topology import devices, links, pools
from simgpu.topology.devices import Device

_NOBODY = uuid.UUID(int=0)
_REMEMBERED = 100_000  # counters of GPUs that are gone and may come back


class Card(msgspec.Struct):
    """A GPU of a node: its id, its card in the engine, who has it, and who is seen to have it since the last step.

    `played` is what its workload was made from.
    """

    id: str
    gpu: pools.NodeGpu
    number: int
    device: Device
    use: Use | None = None
    seen: Use | None = None
    played: Use | pools.StaticMetrics | None = None
    workload: int = 0


class NodeCards(msgspec.Struct):
    """A node's GPUs, in their order."""

    name: str
    spec: pools.NodeGpus
    cards: list[Card]

    @property
    def ids(self) -> list[str]:
        """Their ids."""
        return [card.id for card in self.cards]


def gpu_id(node: str, index: int) -> str:
    """The id of a node's GPU."""
    return f"GPU-{uuid.uuid5(_NOBODY, f'{node}-{index}')}"


class Fleet:
    """Cards of all nodes. Changes are idempotent; `machine` is what pages are rendered from."""

    def __init__(self, *, seed: int) -> None:
        self.engine = engine.Engine(seed=seed)
        self.nodes: dict[str, NodeCards] = {}
        self._machine: view.Machine | None = None
        self._changed: list[Card] = []
        self._gone: dict[str, tuple[Sequence[float], float]] = {}
        self._addresses: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        self.steps = 0
        self.time = 0.0

    # Nodes.

    def place(self, name: str, spec: pools.NodeGpus) -> NodeCards:
        """A node has these GPUs; cards that stay what they were go on as they are."""
        known = self.nodes.get(name)
        if known is not None and known.spec == spec:
            return known
        before = {card.id: card for card in known.cards} if known else {}
        kept: dict[int, Card] = {}
        new: list[tuple[int, str, pools.NodeGpu]] = []
        for index, gpu in enumerate(spec.gpus):
            identity = gpu.id or gpu_id(name, index)
            card = before.get(identity)
            if card is not None and card.gpu.model == gpu.model:
                card.gpu = gpu
                if card.device.index != index:
                    card.device = devices.device(name, index, gpu.model, name=identity, labels=card.device.labels)
                kept[index] = before.pop(identity)
            else:
                new.append((index, identity, gpu))
        kept |= self._new(name, new)
        self._remove(before.values())
        made = NodeCards(name, spec, [kept[index] for index in range(len(spec.gpus))])
        for card, peers in zip(made.cards, links.peers([card.device for card in made.cards]), strict=True):
            self.engine.set_linked(card.number, linked=peers > 0)
        self.nodes[name] = made
        self._machine = None
        return made

    def remove(self, name: str) -> None:
        """A node is gone, or has no GPUs any more."""
        if known := self.nodes.pop(name, None):
            self._remove(known.cards)
            self._machine = None
        if address := self._addresses.pop(name, None):
            del self._taken[address]

    def _new(self, node: str, wanted: Sequence[tuple[int, str, pools.NodeGpu]]) -> dict[int, Card]:
        made: dict[int, Card] = {}
        for _, group in groupby(wanted, key=lambda item: item[2].model.key):
            members = list(group)
            numbers = self.engine.add_cards(members[0][2].model, len(members))
            for (index, identity, gpu), number in zip(members, numbers, strict=True):
                made[index] = self._card(node, index, identity, gpu, number)
        return made

    def _card(self, node: str, index: int, identity: str, gpu: pools.NodeGpu, number: int) -> Card:
        device = devices.device(node, index, gpu.model, name=identity, labels=self._exporter(node))
        card = Card(identity, gpu, number, device)
        if (before := self._gone.pop(identity, None)) is not None:
            self.engine.resume_counters(card.number, *before)
        return card

    def _remove(self, gone: Iterable[Card]) -> None:
        listed = list(gone)
        if listed:
            standing = self.engine.counters([card.number for card in listed]).tolist()
            self.remember(dict(zip((card.id for card in listed), standing, strict=True)), 0.0)
        for card in listed:
            if card.workload:
                self.engine.end_workload(card.workload)
        if listed:
            self.engine.remove_cards([card.number for card in listed])

    def name_exporter(self, name: str, pod: str, address: str) -> None:
        """The pod that pretends to be a node's exporter; without one it has a made-up name and address."""
        labels = self._exporter(name, pod, address)
        for card in self.nodes[name].cards:
            if card.device.labels != labels:
                card.device = msgspec.structs.replace(card.device, labels=labels)
                self._machine = None

    def _exporter(self, node: str, pod: str = "", address: str = "") -> dict[str, str]:
        digest = hashlib.sha1(node.encode(), usedforsecurity=False).hexdigest()[:10]
        name = pod or f"{vocabulary.EXPORTER}-{digest}"
        return {"node": node, "exporter": name, "instance": f"{address or self.address(node)}:9400"}

    def address(self, node: str, before: str = "") -> str:
        """A made-up address that no other node's exporter has: the one from before, or else one from the name."""
        if node not in self._addresses:
            for address in made_up(node, before):
                if address not in self._taken:
                    self._addresses[node], self._taken[address] = address, node
                    break
        return self._addresses[node]

    # Pods.

    def use(self, node: NodeCards, uses: Mapping[str, Use]) -> bool:
        """Who uses which of a node's GPUs, by id. True if that changes anything."""
        changed = False
        for card in node.cards:
            wanted = uses.get(card.id)
            played = wanted or card.gpu.metrics
            if card.played == played:
                continue
            if card.workload:
                self.engine.end_workload(card.workload)
                card.workload = 0
            card.use, card.played = wanted, played
            if played is not None:
                profile = (
                    _profile(played)
                    if isinstance(played, Use)
                    else profiles.standing(played.utilization, played.fb_used)
                )
                card.workload = self.engine.add_workload(profile, [card.number])
            self._changed.append(card)
            changed = True
        return changed

    # Time and views.

    def step(self, now: float, *, clock: float) -> None:
        """Move on."""
        if not self.steps:
            self.engine.epoch = clock - now
        self.engine.step(now)
        for card in self._changed:  # whose numbers these are now
            card.seen = card.use
        self._changed.clear()
        self.steps += 1
        self.time = clock

    def machine(self) -> view.Machine:
        """All GPUs of all nodes, as one machine to render."""
        if self._machine is None:
            self._machine = self._view(list(self.nodes.values()))
        machine = self._machine
        machine.set_pods(self._pods(card for node in self.nodes.values() for card in node.cards))
        machine.step, machine.time = self.steps, self.time
        return machine

    def machine_of(self, name: str) -> view.Machine | None:
        """One node's GPUs."""
        node = self.nodes.get(name)
        if node is None:
            return None
        machine = self._view([node])
        machine.set_pods(self._pods(iter(node.cards)))
        machine.step, machine.time = self.steps, self.time
        return machine

    def _view(self, nodes: Sequence[NodeCards]) -> view.Machine:
        listed = [card for node in nodes for card in node.cards]
        ids = np.array([card.number for card in listed], dtype=np.int64)
        counts = [(node.name, len(node.cards)) for node in nodes]
        return view.Machine([card.device for card in listed], self.engine, ids, nodes=counts)

    @staticmethod
    def _pods(listed: Iterator[Card]) -> dict[int, view.Pod]:
        found: dict[int, view.Pod] = {}
        for position, card in enumerate(listed):
            if card.seen is not None:
                found[position] = view.Pod(card.seen.pod, card.seen.namespace, card.seen.container)
            elif card.gpu.metrics is not None and card.gpu.metrics.pod:
                shown = card.gpu.metrics
                found[position] = view.Pod(shown.pod, shown.namespace, shown.container)
        return found

    def exporters(self) -> Iterator[tuple[str, str, str]]:
        """Node, pod and address of the exporter that each node would have."""
        for name, node in self.nodes.items():
            if node.cards:
                labels = node.cards[0].device.labels
                yield name, labels["exporter"], labels["instance"]

    def pod_usage(self) -> Iterator[tuple[str, int, float, float]]:
        """Pod, index of the GPU, utilisation in percent, memory in bytes, for every GPU that a pod has."""
        used = [(index, card) for node in self.nodes.values() for index, card in enumerate(node.cards) if card.seen]
        numbers = [card.number for _, card in used]
        usage = np.rint(self.engine.read("usage", numbers)).tolist() if numbers else []
        for (index, card), percent in zip(used, usage, strict=True):
            assert card.seen is not None  # noqa: S101 - asked above
            yield card.seen.uid, index, percent, card.seen.fb_used * 2.0**20

    # Counters.

    def counters(self, node: NodeCards) -> dict[str, list[float]]:
        """Where a node's counters stand, by GPU id."""
        standing = np.round(self.engine.counters([card.number for card in node.cards]), 3).tolist()
        return dict(zip(node.ids, standing, strict=True))

    def remember(self, saved: Mapping[str, Sequence[float]], seconds: float) -> None:
        """Where counters of GPUs that are not there stood, that long ago; if these come back, they go on from there."""
        for gpu, values in saved.items():
            self._gone.setdefault(gpu, (values, seconds))
        while len(self._gone) > _REMEMBERED:
            self._gone.pop(next(iter(self._gone)))

    def resume(self, node: NodeCards, saved: Mapping[str, Sequence[float]], seconds: float) -> None:
        """Go on where counters stood, plus the most that they can have grown since."""
        for card in node.cards:
            values = saved.get(card.id)
            if isinstance(values, list):
                self.engine.resume_counters(card.number, values, max(0.0, seconds))


def made_up(node: str, before: str) -> Iterator[str]:
    """Addresses that a node's exporter may have, best first."""
    if re.fullmatch(r"10(\.\d{1,3}){3}", before):
        yield before
    first = int.from_bytes(hashlib.sha1(node.encode(), usedforsecurity=False).digest()[:3])
    for number in range(first, first + 2**24):
        yield f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def _profile(use: Use) -> activity.Profile:
    return profiles.of(f"{use.namespace}/{use.pod}/{use.container}", requests.Range(use.low, use.high))
