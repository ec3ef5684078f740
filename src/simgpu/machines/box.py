"""A simulated machine: its devices, the engine that moves them, and what runs on them.

The owner of a box gives it the time. Views read it between steps; reading changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simgpu import errors
from simgpu.machines.inventory import Card, Inventory, Kept
from simgpu.machines.machine import DevicePart, Usage
from simgpu.machines.registry import Ended, RunningWorkload
from simgpu.machines.users import CpuSource, PodRef, User
from simgpu.sim import activity, engine
from simgpu.topology.devices import Device

MAX_WORKLOADS = 100_000
MAX_GONE = 4096  # devices that are gone and may come back


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
        self._inventory = Inventory(seed=seed, max_gone=MAX_GONE, now=now, spread=spread, kept=kept)
        self.engine = self._inventory.engine
        self.cards: list[Card] = []
        self.machine = self._inventory.machine([])
        self._hostname = hostname
        self.change(devices)

    @property
    def devices(self) -> Sequence[Device]:
        """All devices."""
        return self.machine.devices

    @property
    def steps(self) -> int:
        """How often the box has moved on."""
        return self._inventory.steps

    def change(self, devices: Sequence[Device]) -> None:
        """Let the box have these devices. One that stays what it was goes on as it is; what runs on one that goes ends.

        Where those that are gone stood is remembered, of the last so many.
        """
        self.cards = self._inventory.exchange(self.cards, devices)
        before = self.machine
        self.machine = self._inventory.machine([(self._hostname, self.cards)], list_usages=self._usages)
        self.machine.step, self.machine.time, self.machine.version = before.step, before.time, before.version + 1
        self._by_name = {device.file: device.index for device in devices}
        self._by_name |= {device.uuid: device.index for device in devices}
        self._part_names = {f"{devices[part.device].file}.{part.id}": part for part in self.machine.parts}
        self._parts = {part.handle: part for part in self.machine.parts}
        self._index_of = {card.number: index for index, card in enumerate(self.cards)}
        self._name_users()

    # Workloads.

    def find(self, name: str) -> int | None:
        """The index of a device by name."""
        return self._by_name.get(name)

    def places(self) -> list[str]:
        """Everything that a workload can run on: cards, and of divided ones the instances."""
        instances = {name: part.device for name, part in self._part_names.items() if part.profile}
        divided = set(instances.values())
        return [device.file for device in self.devices if device.index not in divided] + list(instances)

    def admit(
        self,
        profile: activity.Profile,
        on: Sequence[str | int],
        *,
        pod: PodRef | None = None,
        ended: Ended | None = None,
        pid: int = 0,
        owner: str = "",
    ) -> list[int]:
        """Start a workload on devices, by name or index; one number for each model that it spans.

        All of them must exist, or none is used. `ended` is called with the exit code and a message. What workloads of
        an `owner` with a name can cost is bounded.
        """
        if len(self.workloads()) >= MAX_WORKLOADS:
            raise errors.InputError("workload", f"there are {MAX_WORKLOADS} already")
        activity.check(profile)
        targets = list(dict.fromkeys(self._target(item) for item in on))
        if not targets:
            raise errors.InputError("Devices", "a workload needs at least one")
        groups: dict[str, list[int]] = {}
        for index, handle in targets:
            groups.setdefault(self.devices[index].model.key, []).append(handle)
        numbers = self._inventory.workloads.start(profile, groups.values(), pod=pod, ended=ended, pid=pid, owner=owner)
        if pod is not None:
            self._name_pods()
        return numbers

    def _target(self, item: str | int) -> tuple[int, int]:
        if isinstance(item, str) and item in self._part_names:
            part = self._part_names[item]
            return part.device, part.handle
        index = item if isinstance(item, int) else self._by_name.get(item)
        if index is None and isinstance(item, str) and item.isdecimal() and len(item) < 10:
            index = int(item)
        if index is None or not 0 <= index < len(self.devices):
            raise errors.InputError("Devices", f"no device {item!r}; there are {len(self.devices)}: {self._names()}")
        return index, self.cards[index].number

    def _names(self) -> str:
        if not self.devices:
            return "none"
        first, last = self.devices[0].file, self.devices[-1].file
        return first if first == last else f"{first} to {last}"

    def drop(self, numbers: Sequence[int]) -> None:
        """End workloads without calling `ended`."""
        if self._inventory.workloads.drop(numbers):
            self._name_pods()

    def workloads(self) -> Mapping[int, RunningWorkload]:
        """Running workloads by number."""
        return self._inventory.workloads.running

    # Users.

    def use(self, users: Mapping[str, Sequence[User]], *, resting: Collection[tuple[str, str]] = ()) -> None:
        """Let devices, by id, have these users, each named after its first; all others have none.

        Those that are `resting`, by uid and container, say by workloads of their own what they do.
        """
        changed = [self._inventory.use(card, users.get(card.device.uuid, ()), resting=resting) for card in self.cards]
        if any(changed):
            self._name_users()

    def cpu_driven(self) -> Iterator[tuple[CpuSource, int]]:
        """Workloads, by number, whose utilisation follows a container's processor time."""
        for card in self.cards:
            for item in card.playing:
                if isinstance(item.what, User) and item.what.cpu is not None and not item.resting:
                    yield item.what.cpu, item.number

    def _name_users(self) -> None:
        self._user_pods = {index: card.users[0].pod for index, card in enumerate(self.cards) if card.users}
        self._name_pods()

    def _name_pods(self) -> None:
        """Name each device after its first user, or else after the first pod that runs a workload there."""
        named, whole = dict(self._inventory.workloads.first_pods()), self._index_of
        pods = {whole[handle]: pod for handle, pod in named.items() if handle in whole}
        parts = {handle: pod for handle, pod in named.items() if handle not in whole}
        self.machine.set_pods(pods | self._user_pods, parts)

    # Time.

    def step(self, now: float, *, clock: float) -> None:
        """Move on to `now`; `clock` is the time of day, for pages that print it."""
        ended = self._inventory.step(now, clock=clock)
        self.machine.step, self.machine.time = self.steps, clock
        if ended:
            self._name_pods()

    def _usages(self) -> list[Usage]:
        """What workloads of pods have: of each device's users in their order, then of others."""
        pods = {number: work.pod for number, work in self.workloads().items() if work.pod is not None}
        first = dict.fromkeys(item.number for card in self.cards for item in card.playing if item.number in pods)
        numbers = [*first, *(number for number in pods if number not in first)]
        columns = (column.tolist() for column in self.engine.usages(numbers))
        return [
            Usage(self._index_of[card], pods[number], usage, memory, number)
            for number, card, usage, memory in zip(*columns, strict=True)
        ]

    def _name_of(self, share: engine.Share) -> str:
        file = self.devices[self._index_of[share.card]].file
        part: DevicePart | None = self._parts.get(share.part) if share.part is not None else None
        return f"{file}.{part.id}" if part else file

    # What is kept.

    def counters(self) -> dict[str, list[float]]:
        """Where the counters of each device stand, by id."""
        return self._inventory.counters(self.cards)

    def keep(self) -> dict[str, Kept]:
        """Where each device stands, and where those that are gone stood, for a box that comes after this one."""
        return self._inventory.keep(self.cards)

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
            for number, work in self.workloads().items()
        ]  # fmt: skip
