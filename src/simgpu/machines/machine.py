"""A machine as it is rendered: its devices and their parts, their labels, and their values at one step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.machines.users import PodRef
from simgpu.sim import engine
from simgpu.topology import links as fabric
from simgpu.topology.devices import Device

Values = npt.NDArray[np.float64]


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
        self.hostnames = [name for name, count in nodes for _ in range(count)]
        self.node_of = np.repeat(np.arange(len(nodes)), [count for _, count in nodes])
        self.parts = parts
        self.parent = np.array([part.device for part in parts], dtype=np.intp)
        self.pods: dict[int, PodRef] = {}
        self.part_pods: dict[int, PodRef] = {}
        self.lost: npt.NDArray[np.bool_] = np.zeros(len(devices), bool)
        self._list_usages = list_usages
        self._usages: tuple[Usage, ...] = ()
        self._listed_at = -1
        self.version = 0
        self.step = 0
        self.time = 0.0
        self._columns: dict[str, Values] = {}
        self._at = -1
        self._static: dict[object, Values] = {}
        self._models = {device.model.key: device for device in devices}

    def column(self, name: str) -> Values:
        """Return a quantity of the engine for each device, at this step."""
        if self._at != self.step:
            self._columns.clear()
            self._at = self.step
        if name not in self._columns:
            self._columns[name] = self.engine.read(name, self.ids)
        return self._columns[name]

    def invalidate(self) -> None:
        """Drop cached quantities, after a setting has changed."""
        self._columns.clear()

    def part_column(self, name: str) -> Values:
        """Return a quantity of the engine for each part, at this step."""
        key = f"part.{name}"
        if self._at != self.step or key not in self._columns:
            self.column("power")  # start the step's cache
            states = self.engine.read_parts([part.handle for part in self.parts])
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
        if name not in self._static:
            found = {device.model.key: _figure(device.model, name) for device in self._models.values()}
            self._static[name] = np.array([found[device.model.key] for device in self.devices])
        return self._static[name]

    def static(self, read: Callable[[Device], float]) -> Values:
        """Return a constant number for each device, as `read` computes it once."""
        if read not in self._static:
            self._static[read] = np.array([read(device) for device in self.devices])
        return self._static[read]

    @functools.cached_property
    def topology(self) -> tuple[fabric.Link, ...]:
        """All links between devices, and each device's to itself."""
        return tuple(fabric.links(self.devices))

    @functools.cached_property
    def links(self) -> tuple[fabric.Link, ...]:
        """Links from one device to another."""
        return tuple(link for link in self.topology if link.ports)

    @functools.cached_property
    def ports(self) -> tuple[fabric.Link, ...]:
        """The single ports of links."""
        return tuple(port for link in self.links for port in link.split())

    @functools.cached_property
    def peers(self) -> npt.NDArray[np.intp]:
        """How many others each device is linked to."""
        return np.array(fabric.peers(self.devices), dtype=np.intp)

    def set_lost(self, indices: Iterable[int]) -> None:
        """Set which devices are lost, by index."""
        self.lost = np.zeros(len(self.devices), bool)
        self.lost[list(indices)] = True

    def set_pods(self, pods: Mapping[int, PodRef], parts: Mapping[int, PodRef] = {}) -> None:
        """Set the pods that label devices, by index, and parts, by handle."""
        if pods != self.pods or parts != self.part_pods:
            self.pods, self.part_pods = dict(pods), dict(parts)
            self.version += 1


def _figure(model: object, path: str) -> float:
    value: object = model
    for name in path.split("."):
        value = getattr(value, name, None)
        if value is None:
            return float("nan")
    return float(value)  # type: ignore[arg-type]
