"""A simulated machine: its devices, the engine that moves them, the workloads on them.

Whoever owns a box gives it the time. Views read it between steps; nothing that reads changes it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from simgpu import errors
from simgpu.catalog import placing
from simgpu.identities import view
from simgpu.identities.occupants import Occupants
from simgpu.sim import activity, cards, engine
from simgpu.topology import links
from simgpu.topology.devices import Device

MOST_WORKLOADS = 100_000
MOST_GONE = 4096

Ended = Callable[[int, str], None]

_log = logging.getLogger(__name__)


class Workload(msgspec.Struct, frozen=True):
    """A workload on the box: what it is called, where it runs, whose it is, and whom to tell when it ends.

    One that spans several models is several for the engine, which start and end `together`. `pid` is the process that
    asked for it; 0 where the box's owner did.
    """

    name: str
    places: tuple[tuple[int, int], ...]
    pod: view.Pod | None
    ended: Ended | None
    together: list[int]
    pid: int = 0

    @property
    def devices(self) -> tuple[int, ...]:
        """Indices of its devices."""
        return tuple(index for index, _ in self.places)

    @property
    def handles(self) -> tuple[int, ...]:
        """The engine's ids of the cards, or parts of cards, that it is on."""
        return tuple(handle for _, handle in self.places)


class Kept(msgspec.Struct, frozen=True):
    """Where a device stood, by quantity, and of which kind it was."""

    kind: str
    values: dict[str, float]

    def cold(self) -> Kept:
        """The same after it was away: what it has counted remains."""
        return Kept("", {name: value for name, value in self.values.items() if name in cards.OUTLIVING})


class Box:
    """Devices in their order; names and indices find them, and `card0.1` finds a part of one by its number."""

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        seed: int,
        hostname: str,
        spread: float = 1.0,
        now: float = 0.0,
        kept: Mapping[str, Kept] = {},
    ) -> None:
        """`kept` is where devices stood when it was `now`; one that is not there by the first step has been away."""
        self.devices: Sequence[Device] = ()
        self.engine = engine.Engine(seed=seed, now=now)
        self.machine = view.Machine((), self.engine, ())
        self._hostname = hostname
        self.steps = 0
        self._spread = spread
        self._workloads: dict[int, Workload] = {}
        self._occupants = Occupants()
        self._gone = dict(kept)
        self._kinds: dict[str, str] = {}
        self.change(devices)

    def change(self, devices: Sequence[Device]) -> None:
        """These are the devices now. One that stays what it was goes on as it is; what runs on one that goes ends.

        Of those that are gone, the last are remembered.
        """
        before = {device.uuid: (device, int(card)) for device, card in zip(self.devices, self.machine.ids, strict=True)}
        kept = {
            device.uuid: known[1]
            for device in devices
            if (known := before.get(device.uuid)) and _alike(known[0], device)
        }
        self._remove({name: card for name, (_, card) in before.items() if name not in kept})
        new = iter(self._add([device for device in devices if device.uuid not in kept], self._spread))
        ids = [kept[device.uuid] if device.uuid in kept else next(new) for device in devices]
        self._place(devices, ids)
        self._kinds.clear()
        for device, card in zip(devices, ids, strict=True):
            if (stood := self._gone.pop(device.uuid, None)) is not None:
                same = stood.kind == self._kind(device)
                impossible = self.engine.resume(card, (stood if same else stood.cold()).values)
                if impossible:
                    _log.warning("%s cannot have stood where it did: %s start anew", device.uuid, ", ".join(impossible))
        for name in list(self._gone)[:-MOST_GONE]:
            del self._gone[name]

    def _remove(self, gone: Mapping[str, int]) -> None:
        self._gone |= {name: Kept("", self.engine.keep(card)).cold() for name, card in gone.items()}
        for outcome in self.engine.remove_cards(gone.values()):
            self._ended(outcome)

    def _place(self, devices: Sequence[Device], ids: list[int]) -> None:
        parts = [part for device, card in zip(devices, ids, strict=True) for part in self._split(device, card)]
        places = {card: index for index, card in enumerate(ids)} | {part.handle: part.device for part in parts}
        self._workloads = {
            number: msgspec.structs.replace(work, places=tuple((places[handle], handle) for _, handle in work.places))
            for number, work in self._workloads.items()
        }
        step, time, version = self.machine.step, self.machine.time, self.machine.version
        self.devices = devices
        self.machine = view.Machine(
            devices, self.engine, ids, hostname=self._hostname, parts=parts, list_usages=self._usages
        )
        self.machine.step, self.machine.time, self.machine.version = step, time, version + 1
        self._by_name = {device.file: device.index for device in devices}
        self._by_name |= {device.uuid: device.index for device in devices}
        self._part_names = {f"{devices[part.device].file}.{part.id}": part for part in parts}
        self._index_of = {card: index for index, card in enumerate(ids)}
        for card, peers in zip(ids, links.peers(devices), strict=True):
            self.engine.set_linked(card, linked=bool(peers))
        self._name_pods()

    def _add(self, devices: Sequence[Device], spread: float) -> list[int]:
        ids: list[int] = []
        start = 0
        for stop in range(1, len(devices) + 1):
            if stop == len(devices) or devices[stop].model is not devices[start].model:
                ids += self.engine.add_cards(devices[start].model, stop - start, spread=spread)
                start = stop
        return ids

    def _split(self, device: Device, card: int) -> list[view.Part]:
        model = device.model
        if device.instances:
            slices = model.sm_count or 1
            wanted = [
                (item.name, placing.multiprocessors(item, model) / slices, placing.memory_mib(item, model))
                for item in device.instances
            ]
        elif model.tiles > 1:
            wanted = [
                (str(tile), 1 / model.tiles, model.memory_mib.total // model.tiles) for tile in range(model.tiles)
            ]
        else:
            return []
        handles = list(self.engine.parts(card)) or self.engine.split(card, wanted)
        numbers = [place.number for place in device.placements()] if device.instances else range(model.tiles)
        return [
            view.Part(device.index, number, name if device.instances else "", handle)
            for number, (name, _, _), handle in zip(numbers, wanted, handles, strict=True)
        ]

    # Workloads.

    def find(self, name: str) -> int | None:
        """The index of a device by name."""
        return self._by_name.get(name)

    def places(self) -> list[str]:
        """Everything that a workload can be put on: cards, and of divided ones the instances."""
        instances = {name: part.device for name, part in self._part_names.items() if part.profile}
        divided = set(instances.values())
        return [device.file for device in self.devices if device.index not in divided] + list(instances)

    def admit(
        self,
        profile: activity.Profile,
        on: Sequence[str | int],
        *,
        pod: view.Pod | None = None,
        ended: Ended | None = None,
        pid: int = 0,
        owner: str = "",
    ) -> list[int]:
        """Start a workload on devices, by name or index; one number for each model that it spans.

        All of them must exist, or none is used. `ended` is told the exit code and the message. What workloads of an
        `owner` with a name can cost is bounded.
        """
        if len(self._workloads) >= MOST_WORKLOADS:
            raise errors.InputError("workload", f"there are {MOST_WORKLOADS} already")
        activity.check(profile)
        targets = list(dict.fromkeys(self._target(item) for item in on))
        if not targets:
            raise errors.InputError("Devices", "a workload needs at least one")
        groups: dict[str, list[tuple[int, int]]] = {}
        for index, handle in targets:
            groups.setdefault(self.devices[index].model.key, []).append((index, handle))
        numbers: list[int] = []
        try:
            for members in groups.values():
                number = self.engine.add_workload(profile, [handle for _, handle in members], owner=owner)
                self._workloads[number] = Workload(profile.name, tuple(members), pod, ended, numbers, pid)
                numbers.append(number)
                if pod is not None:
                    self._occupants.add(number, pod, [handle for _, handle in members])
        except BaseException:  # what could not be put on one model is on none
            self.drop(numbers)
            raise
        if pod is not None:
            self._name_pods()
        return list(numbers)

    def _target(self, item: str | int) -> tuple[int, int]:
        if isinstance(item, str) and item in self._part_names:
            part = self._part_names[item]
            return part.device, part.handle
        index = item if isinstance(item, int) else self._by_name.get(item)
        if index is None and isinstance(item, str) and item.isdecimal() and len(item) < 10:
            index = int(item)
        if index is None or not 0 <= index < len(self.devices):
            raise errors.InputError("Devices", f"no device {item!r}; there are {len(self.devices)}: {self._names()}")
        return index, int(self.machine.ids[index])

    def _names(self) -> str:
        if not self.devices:
            return "none"
        first, last = self.devices[0].file, self.devices[-1].file
        return first if first == last else f"{first} to {last}"

    def drop(self, numbers: Sequence[int]) -> None:
        """Workloads are gone; their owners know."""
        for number in numbers:
            self.engine.end_workload(number)
        gone = [self._forget(number) for number in numbers]
        if any(work is not None and work.pod is not None for work in gone):
            self._name_pods()

    def _forget(self, number: int) -> Workload | None:
        work = self._workloads.pop(number, None)
        if work is not None and work.pod is not None:
            self._occupants.remove(number, work.handles)
        return work

    def arrange(self, numbers: Sequence[int]) -> None:
        """Let these come first, in this order: of several pods on a device, the first is named."""
        if list(islice(self._workloads, len(numbers))) == list(numbers):
            return
        self._workloads = {number: self._workloads[number] for number in numbers} | self._workloads
        self._occupants = Occupants()
        for number, work in self._workloads.items():
            if work.pod is not None:
                self._occupants.add(number, work.pod, work.handles)
        self._name_pods()

    def workloads(self) -> Mapping[int, Workload]:
        """Running workloads by number."""
        return self._workloads

    def _name_pods(self) -> None:
        named, whole = self._occupants.named(), self._index_of
        self.machine.set_pods(
            {whole[place]: pod for place, pod in named.items() if place in whole},
            {place: pod for place, pod in named.items() if place not in whole},
        )

    # Time.

    def step(self, now: float, *, clock: float) -> None:
        """Move on to `now`; `clock` is the time of day, for pages that print it."""
        if not self.steps:
            self.engine.epoch = clock - now
            self._gone = {name: stood.cold() for name, stood in self._gone.items()}
        outcomes = self.engine.step(now)
        self.steps += 1
        self.machine.step, self.machine.time = self.steps, clock
        for outcome in outcomes:
            self._ended(outcome)
        if outcomes:
            self._name_pods()

    def _ended(self, outcome: engine.Outcome) -> None:
        work = self._forget(outcome.workload)
        if work is None:
            return
        others = [number for number in work.together if number in self._workloads]
        if outcome.exit_code:
            self.drop(others)
            others = []
        if not others and work.ended is not None:
            work.ended(outcome.exit_code, outcome.message)

    def _usages(self) -> list[view.Usage]:
        pods = {number: work.pod for number, work in self._workloads.items() if work.pod is not None}
        columns = (column.tolist() for column in self.engine.usages(list(pods)))
        return [
            view.Usage(self._index_of[card], pods[number], usage, memory, number)
            for number, card, usage, memory in zip(*columns, strict=True)
        ]

    def _name_of(self, share: engine.Share) -> str:
        file = self.devices[self._index_of[share.card]].file
        part = next((part for part in self.machine.parts if part.handle == share.part), None) if share.part else None
        return f"{file}.{part.id}" if part else file

    # What stays.

    def counters(self) -> dict[str, list[float]]:
        """Where the counters of each device stand."""
        standing = self.engine.counters(self.machine.ids.tolist()).tolist()
        return dict(zip((device.uuid for device in self.devices), standing, strict=True))

    def keep(self) -> dict[str, Kept]:
        """Where each device stands, and where those that are gone stood, for a box that comes after this one."""
        return self._gone | {
            device.uuid: Kept(self._kind(device), self.engine.keep(int(card)))
            for device, card in zip(self.devices, self.machine.ids, strict=True)
        }

    def _kind(self, device: Device) -> str:
        """The same for devices that are alike, in another process too."""
        if device.uuid not in self._kinds:
            facts = msgspec.msgpack.encode((device.model, device.instances))
            self._kinds[device.uuid] = hashlib.sha256(facts).hexdigest()[:16]
        return self._kinds[device.uuid]

    # Views as plain data.

    def describe_devices(self) -> list[dict[str, Any]]:
        """Every device with what it shows now."""
        names = (
            "usage",
            "memory_usage",
            "power_average",
            "temperature",
            "temperature_memory",
            "sm_clock",
            "memory_used",
        )
        columns = {name: np.round(self.machine.column(name), 3).tolist() for name in names}
        return [
            {
                "index": device.index, "file": device.file, "uuid": device.uuid, "model": device.model.key,
                "product": device.model.product, "pci_bus_id": device.pci_bus_id,
                "memory_total_mib": device.model.memory_mib.total,
                **{name: values[row] for name, values in columns.items()},
            }
            for row, device in enumerate(self.devices)
        ]  # fmt: skip

    def describe_workloads(self) -> list[dict[str, Any]]:
        """Every workload with what it has of each device."""
        return [
            {
                "number": number,
                "name": work.name,
                "pod": work.pod,
                "devices": [
                    {
                        "file": self._name_of(share), "usage": round(share.usage, 4),
                        "memory_mib": round(share.memory_mib, 1), "power_w": round(share.power_w, 2),
                    }
                    for share in self.engine.shares(number)
                ],
                "runtime": round(self.engine.shares(number)[0].runtime, 3),
            }
            for number, work in self._workloads.items()
        ]  # fmt: skip


def _alike(one: Device, other: Device) -> bool:
    """Whether two are the same card."""
    return one.model == other.model and one.instances == other.instances
