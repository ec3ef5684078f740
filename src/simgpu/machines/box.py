"""A simulated machine: its devices, the engine that simulates them, and their workloads and users.

Time is an argument of `step`. Views read a box between steps; reading changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from simgpu import errors
from simgpu.machines.health import DeviceFailure, DeviceFaults
from simgpu.machines.inventory import Card, DeviceState, Inventory
from simgpu.machines.machine import DevicePart, Usage
from simgpu.machines.registry import Ended, RunningWorkload, WorkloadGroup
from simgpu.machines.users import CpuSource, PodRef, User
from simgpu.sim import activity, engine
from simgpu.topology.devices import MIG_PREFIX, Device, StaticMetrics, compute_shares, part_id

MAX_WORKLOADS = 100_000
MAX_GONE = 4096  # removed devices whose state is kept, in case they come back


class WorkloadTarget(msgspec.Struct, frozen=True):
    """Where a workload can run: a device by index, and the engine's number of it or of a part of it.

    `compute` is the number of a compute instance that has that `share` of the part, from 0 to 1.
    """

    device: int
    handle: int
    compute: int = 0
    share: float = 1.0


class Box:
    """Devices in order, found by name or index; `card0.1` is a part of one, by its number, and may have an id too.

    If compute instances share the part, `card0.1.0` is the first of them. A card that is divided by MIG stands for the
    first of its MIG devices.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        seed: int,
        hostname: str,
        spread: float = 1.0,
        now: float = 0.0,
        epoch: float = 0.0,
        saved: Mapping[str, DeviceState] = {},
        finest: float = activity.MIN_SECONDS,
    ) -> None:
        """`epoch` is when `now` was 0, in seconds since 1970. `finest` is the engine's.

        `saved` are states of devices at `now`, in seconds; those of devices absent at the first step become cold."""
        self._inventory = Inventory(
            seed=seed, max_gone=MAX_GONE, tiles=True, now=now, spread=spread, saved=saved, finest=finest
        )
        self.engine = self._inventory.engine
        self.engine.epoch = epoch
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
        """How many steps were made."""
        return self._inventory.steps

    def change(self, devices: Sequence[Device]) -> None:
        """Set the devices. Unchanged ones keep their state and workloads; workloads on removed ones end.

        The states of the last `MAX_GONE` removed devices are kept.
        """
        self.cards = self._inventory.exchange(self.cards, devices)
        before = self.machine
        self.machine = self._inventory.machine([(self._hostname, self.cards)], list_usages=self._usages)
        self.machine.step, self.machine.time, self.machine.version = before.step, before.time, before.version + 1
        self._by_name = {device.file: device.index for device in devices}
        self._by_name |= {device.uuid: device.index for device in devices}
        self._parts = {part.handle: part for part in self.machine.parts}
        self._part_names: dict[str, WorkloadTarget] = {}
        self._part_ids: dict[str, WorkloadTarget] = {}
        for part in self.machine.parts:
            self._name_part(devices[part.device], part)
        self._index_of = {card.number: index for index, card in enumerate(self.cards)}
        self.machine.set_lost(index for index, card in enumerate(self.cards) if card.failure == DeviceFailure.LOST)
        self._name_users()

    def _name_part(self, device: Device, part: DevicePart) -> None:
        name, shared = f"{device.file}.{part.id}", compute_shares(device, part.id)
        if not shared:
            self._part_names[name] = WorkloadTarget(part.device, part.handle)
        if part.profile and not shared:
            self._part_ids[part_id(device.uuid, part.id)] = self._part_names[name]
        for number, share in shared.items():
            target = WorkloadTarget(part.device, part.handle, number, share)
            self._part_names[f"{name}.{number}"] = self._part_ids[part_id(device.uuid, part.id, number)] = target

    # Workloads.

    def find(self, name: str) -> int | None:
        """Return the index of a device by name or id; None if there is none."""
        return self._by_name.get(name)

    @property
    def part_ids(self) -> list[str]:
        """The ids of all MIG devices."""
        return list(self._part_ids)

    def places(self) -> list[str]:
        """Return the names of all cards, and of the MIG devices instead for divided cards."""
        divided = {part.device for part in self.machine.parts if part.profile}
        of_instances = [name for name, target in self._part_names.items() if target.device in divided]
        return [device.file for device in self.devices if device.index not in divided] + of_instances

    def open_parts(self, index: int) -> set[tuple[int, int]]:
        """Return the numbers of a device's MIG instances, and compute instances in them, that programs have open."""
        parts = {part.handle: part.id for part in self.machine.parts if part.device == index and part.profile}
        found = (
            (number, work) for number, work in self.workloads().items() if not parts.keys().isdisjoint(work.handles)
        )
        return {
            (parts[share.part], work.compute)
            for number, work in found
            for share in self.engine.shares(number)
            if share.part in parts and share.memory_mib > 0
        }

    def is_open(self, index: int) -> bool:
        """Return whether programs have a device or an instance of it open."""
        _, cards, _, memory = self.engine.usages(list(self.workloads()))
        return bool((memory[cards == self.cards[index].number] > 0).any())

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
        """Start a workload on devices, by name or index; return a number for each model that it spans.

        All devices must exist. `ended` is called with the exit code and a message. The costs of all workloads of a
        named `owner` are limited.
        """
        if len(self.workloads()) >= MAX_WORKLOADS:
            raise errors.InputError("workload", f"at most {MAX_WORKLOADS} can run")
        activity.check(profile)
        targets = list(dict.fromkeys(self._target(item) for item in on))
        if not targets:
            raise errors.InputError("Devices", "a workload needs at least one")
        groups: dict[tuple[str, int, float], list[int]] = {}
        for item in targets:
            key = self.devices[item.device].model.key, item.compute, item.share
            groups.setdefault(key, []).append(item.handle)
        numbers = self._inventory.workloads.start(
            profile, [WorkloadGroup(tuple(handles), *key[1:]) for key, handles in groups.items()],
            pod=pod, ended=ended, pid=pid, owner=owner,
        )  # fmt: skip
        if pod is not None:
            self._name_pods()
        return numbers

    def _target(self, item: str | int) -> WorkloadTarget:
        part = (self._part_names.get(item) or self._part_ids.get(item)) if isinstance(item, str) else None
        if part is not None:
            return part
        index = item if isinstance(item, int) else self._by_name.get(item)
        if index is None and isinstance(item, str) and item.isdecimal() and len(item) < 10:
            index = int(item)
        if index is None or not 0 <= index < len(self.devices):
            raise errors.InputError("Devices", f"no device {item!r}; there are {len(self.devices)}: {self._names()}")
        return self._whole(index)

    def _whole(self, index: int) -> WorkloadTarget:
        """Return where a workload on all of a device runs: on a divided one, it is the first MIG device."""
        device = self.devices[index]
        if (first := device.first_instance()) is None:
            return WorkloadTarget(index, self.cards[index].number)
        return self._part_ids[MIG_PREFIX + device.part_uuid(first[0].number)]

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
        """Return running workloads by number."""
        return self._inventory.workloads.running

    def workload_places(self) -> Iterator[tuple[int, int | None, PodRef]]:
        """Yield device, part and owner of each running workload; one without a pod owns by its own name.

        Static metrics are no workload of anybody: their devices are free.
        """
        static = {
            item.number for card in self.cards for item in card.playing if isinstance(item.what, StaticMetrics)
        }  # fmt: skip
        for number, work in self.workloads().items():
            if number in static:
                continue
            pod = work.pod or PodRef(work.name)
            for handle in work.handles:
                if (part := self._parts.get(handle)) is not None:
                    yield part.device, part.id, pod
                elif handle in self._index_of:
                    yield self._index_of[handle], None, pod

    # Users.

    def use(self, users: Mapping[str, Sequence[User]], *, resting: Collection[tuple[str, str]] = ()) -> None:
        """Set the users of devices, by id; the first one's pod labels the device. Devices not listed have none.

        Users that are `resting`, by uid and container, are driven by workloads of their own instead.
        """
        changed = [self._inventory.use(card, users.get(card.device.uuid, ()), resting=resting) for card in self.cards]
        if any(changed):
            self._name_users()

    def take_ended(self) -> list[tuple[User, str]]:
        """Return the users that a limit ended since the last call, and the reason."""
        return self._inventory.take_ended()

    def request_driven(self) -> list[tuple[User, int]]:
        """Return the users that their requests drive, and the workload of each."""
        return self._inventory.request_driven()

    # Health.

    def fail(self, failures: Mapping[int, DeviceFailure]) -> None:
        """Let devices fail as configured, by index; those not listed are healed."""
        changed = [
            self._inventory.fail(card, failures.get(index, DeviceFailure.NONE)) for index, card in enumerate(self.cards)
        ]
        if any(changed):
            self.machine.set_lost(index for index, failure in failures.items() if failure == DeviceFailure.LOST)

    def faults(self) -> dict[str, DeviceFaults]:
        """Return what is wrong with devices, by id; healthy ones are left out."""
        return self._inventory.faults(self.cards)

    def cpu_driven(self) -> Iterator[tuple[CpuSource, int]]:
        """Yield workloads, by number, whose utilisation follows a container's CPU time."""
        for card in self.cards:
            for item in card.playing:
                if isinstance(item.what, User) and item.what.cpu is not None and not item.resting:
                    yield item.what.cpu, item.number

    def _name_users(self) -> None:
        whole = ((index, [user for user in card.users if user.part is None]) for index, card in enumerate(self.cards))
        self._user_pods = {index: users[0].pod for index, users in whole if users}
        self._name_pods()

    def _name_pods(self) -> None:
        """Label each device with the pod of its first user, or else of its first workload."""
        named, whole = dict(self._inventory.workloads.first_pods()), self._index_of
        pods = {whole[handle]: pod for handle, pod in named.items() if handle in whole}
        parts = {handle: pod for handle, pod in named.items() if handle not in whole}
        self.machine.set_pods(pods | self._user_pods, parts)

    # Time.

    def step(self, now: float, *, clock: float) -> None:
        """Simulate up to `now`, in seconds; `clock` is the time for pages, in seconds since 1970."""
        ended = self._inventory.step(now, clock=clock)
        self.machine.step, self.machine.time = self.steps, clock
        if ended:
            self._name_pods()

    def _usages(self) -> list[Usage]:
        """Return usages of pods' workloads: each device's users in order, then others."""
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

    # Saved state.

    def counters(self) -> dict[str, list[float]]:
        """Return the counters of each device, by id."""
        return self._inventory.counters(self.cards)

    def device_states(self) -> dict[str, DeviceState]:
        """Return the state of each device by id, and of removed ones, to resume from."""
        return self._inventory.device_states(self.cards)

    # Views as plain data.

    def describe_devices(self) -> list[dict[str, Any]]:
        """Return every device with its current readings."""
        names = (
            "usage", "memory_usage", "power_average", "temperature", "temperature_memory", "sm_clock", "memory_used",
        )  # fmt: skip
        columns = {name: np.round(self.machine.column(name), 3).tolist() for name in names}
        return [
            {
                "index": device.index, "file": device.file, "uuid": device.uuid, "model": device.model.key,
                "product": device.model.product, "pci_bus_id": device.pci_bus_id,
                "memory_total_mib": device.model.memory_mib.total, "labels": device.labels,
                **{name: values[row] for name, values in columns.items()},
            }
            for row, device in enumerate(self.devices)
        ]  # fmt: skip

    def describe_workloads(self) -> list[dict[str, Any]]:
        """Return every workload with its share of each device."""
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
