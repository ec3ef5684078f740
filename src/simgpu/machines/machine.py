"""A machine as it is rendered: its devices and their parts, their labels, and their values at one step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.machines.users import PodRef, User
from simgpu.sim import cards, engine
from simgpu.topology import links as fabric
from simgpu.topology.devices import Device

Values = npt.NDArray[np.float64]
T = TypeVar("T")


class Usage(msgspec.Struct, frozen=True):
    """One workload's use of one device: a share of its time from 0 to 1, and memory in MiB."""

    device: int
    pod: PodRef
    usage: float
    memory_mib: float
    workload: int = 0


class DevicePart(msgspec.Struct, frozen=True):
    """A tile or an instance of a device; `id` is its number on the device, `handle` the engine's."""

    device: int
    id: int
    profile: str
    handle: int


UsageLister = Callable[[], Iterable[Usage]]


class Machine:
    """Devices with the engine that simulates them. Labels change with `version`, values with `step`.

    `nodes` are its hosts, with the number of devices of each. `list_usages` is called only when usages of workloads are
    rendered: there may be many.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        made: engine.Engine,
        ids: Sequence[int] | npt.NDArray[np.int64],
        *,
        nodes: Sequence[tuple[str, int]],
        parts: Sequence[DevicePart] = (),
        list_usages: UsageLister = tuple,
    ) -> None:
        self.devices = devices
        self.engine = made
        self.ids = np.asarray(ids, dtype=np.int64)
        self.hostnames = list(chain.from_iterable(repeat(name, count) for name, count in nodes))
        self.node_of = np.repeat(np.arange(len(nodes)), [count for _, count in nodes])
        self.parts = parts
        self.parent = np.array([part.device for part in parts], dtype=np.intp)
        self.pods: dict[int, PodRef] = {}
        self.part_pods: dict[int, PodRef] = {}
        self.lost: npt.NDArray[np.bool_] = np.zeros(len(devices), bool)
        self.users: dict[int, tuple[User, ...]] = {}  # of a fleet's devices
        # What users of devices ask for that several share and plans or requests drive, by the engine's number and uid.
        self.demands: Callable[[], Mapping[int, Mapping[str, float]]] = dict
        self._list_usages = list_usages
        self._usages: tuple[Usage, ...] = ()
        self._listed_at = -1
        self.version = 0
        self.step = 0
        self.time = 0.0
        self._columns: dict[str, Values] = {}
        self._at = -1
        self._instant: tuple[float, float] | None = None  # epoch and time of a snapshot
        self._static: dict[object, object] = {}  # computed once, also for snapshots

    def column(self, name: str) -> Values:
        """Return a quantity of the engine for each device, at this step."""
        if self._at != self.step:
            self._columns.clear()
            self._at = self.step
        if name not in self._columns and self._instant is None:
            self._columns[name] = self.engine.read(name, self.ids)
        return self._columns[name]

    def snapshot(self, *, usages: bool = False) -> Machine:
        """Return a copy that keeps its values, and usages where needed, whatever the engine does next.

        It may be read in another thread: it shares with this machine only what does not change.
        """
        taken = copy.copy(self)
        taken.hold(usages=usages)
        return taken

    def hold(self, *, usages: bool) -> None:
        """Read all values of this step, and none of later ones."""
        self._instant = (self.engine.epoch, self.engine.now)
        self._usages, self._listed_at = self.usages if usages else (), self.step
        self._columns, self._at = self.engine.read_all(self.ids), self.step
        if self.parts:
            states = self.engine.read_parts(self._handles)
            self._columns |= {f"part.{field}": values for field, values in states.items()}

    @property
    def epoch(self) -> float:
        """The time at which the simulation began, in seconds since 1970."""
        return self.engine.epoch if self._instant is None else self._instant[0]

    @property
    def now(self) -> float:
        """Seconds since the simulation began."""
        return self.engine.now if self._instant is None else self._instant[1]

    def invalidate(self) -> None:
        """Drop cached quantities, after a setting has changed."""
        self._columns.clear()

    def part_column(self, name: str) -> Values:
        """Return a quantity of the engine for each part, at this step."""
        key = f"part.{name}"
        if self._at != self.step or key not in self._columns:
            self.column("power")  # start the step's cache
            states = self.engine.read_parts(self._handles)
            self._columns |= {f"part.{field}": values for field, values in states.items()}
        return self._columns[key]

    @property
    def usages(self) -> tuple[Usage, ...]:
        """The use of each device by each workload of a pod, at this step."""
        if self._listed_at != self.step:
            self._usages, self._listed_at = tuple(self._list_usages()), self.step
        return self._usages

    def fact(self, name: str) -> Values:
        """Return a figure of each device's model, by path; NaN where it has none."""
        return self._once(("fact", name), lambda: self._by_model(lambda device: _figure(device.model, name)))

    def highest(self, kind: str) -> Values:
        """Return the most traffic of a kind that each device can have, in bytes per second."""
        return self._once(
            ("highest", kind), lambda: self._by_model(lambda device: cards.highest_rates(device.model)[kind])
        )

    def static(self, read: Callable[[Device], float]) -> Values:
        """Return a constant number for each device, as `read` computes it once."""
        return self._once(read, lambda: np.array([read(device) for device in self.devices]))

    def _by_model(self, read: Callable[[Device], float]) -> Values:
        found = {key: read(device) for key, device in self._models.items()}
        return np.array([found[device.model.key] for device in self.devices])

    @property
    def _models(self) -> dict[str, Device]:
        return self._once("models", lambda: {device.model.key: device for device in self.devices})

    @property
    def topology(self) -> tuple[fabric.Link, ...]:
        """All links between devices, and each device's to itself."""
        return self._once("topology", lambda: tuple(fabric.links(self.devices)))

    @property
    def links(self) -> tuple[fabric.Link, ...]:
        """Links from one device to another."""
        return self._once("links", lambda: tuple(link for link in self.topology if link.ports))

    @property
    def ports(self) -> tuple[fabric.Link, ...]:
        """The single ports of links."""
        return self._once("ports", lambda: tuple(port for link in self.links for port in link.split()))

    @property
    def peers(self) -> npt.NDArray[np.intp]:
        """How many others each device is linked to."""
        return self._once("peers", lambda: np.array(fabric.peers(self.devices), dtype=np.intp))

    @property
    def instances(self) -> npt.NDArray[np.bool_]:
        """Which parts are MIG instances; others are tiles."""
        return self._once("instances", lambda: np.array([bool(part.profile) for part in self.parts], bool))

    def _once(self, key: object, make: Callable[[], T]) -> T:
        if key not in self._static:
            self._static[key] = make()
        return cast("T", self._static[key])

    def set_lost(self, indices: Iterable[int]) -> None:
        """Set which devices are lost, by index."""
        self.lost = np.zeros(len(self.devices), bool)
        self.lost[list(indices)] = True

    def set_pods(self, pods: Mapping[int, PodRef], parts: Mapping[int, PodRef] = {}) -> None:
        """Set the pods that label devices, by index, and parts, by handle."""
        if pods != self.pods or parts != self.part_pods:
            self.pods, self.part_pods = dict(pods), dict(parts)
            self.version += 1

    def change_users(
        self,
        changed: Mapping[int, tuple[PodRef | None, tuple[User, ...]]],
        parts: Mapping[int, Mapping[int, PodRef]] = {},
    ) -> None:
        """Set the pod that labels a device, and its users, for some devices, by index; snapshots keep theirs.

        `parts` are the pods that label the parts of divided ones among them, by index and handle.
        """
        self.pods, self.users = dict(self.pods), dict(self.users)
        for place, (pod, users) in changed.items():
            _put(self.pods, place, pod)
            _put(self.users, place, users)
        if parts:
            self.part_pods = dict(self.part_pods)
            for place, pods in parts.items():
                for row in self.part_rows[place].values():
                    handle = self.parts[row].handle
                    _put(self.part_pods, handle, pods.get(handle))
        self.version += 1

    @property
    def _handles(self) -> npt.NDArray[np.int64]:
        return self._once("handles", lambda: np.array([part.handle for part in self.parts], dtype=np.int64))

    @property
    def rows_of_handles(self) -> dict[int, int]:
        """Where parts are in `parts`, by handle."""
        return self._once("rows", lambda: {part.handle: row for row, part in enumerate(self.parts)})

    @property
    def part_rows(self) -> dict[int, dict[int, int]]:
        """Where the parts of each divided device are in `parts`: by the device's index and the part's number."""
        return self._once("parts", self._part_rows)

    def _part_rows(self) -> dict[int, dict[int, int]]:
        found: dict[int, dict[int, int]] = {}
        for row, part in enumerate(self.parts):
            found.setdefault(part.device, {})[part.id] = row
        return found


def _put(items: dict[int, T], place: int, value: T | None) -> None:
    """Set an item; an empty one is removed."""
    if value:
        items[place] = value
    else:
        items.pop(place, None)


def _figure(model: object, path: str) -> float:
    value: object = model
    for name in path.split("."):
        value = getattr(value, name, None)
        if value is None:
            return float("nan")
    return float(value)  # type: ignore[arg-type]
