"""A machine at one step, as columns: small whole numbers for cells of the canvas, and sums.

What does not change with steps (nodes, pools, models) is a layout, which is made once for each machine.
"""

from __future__ import annotations

import functools
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from simgpu.dashboard.answers import FleetTotals
from simgpu.dashboard.sources import DashboardSource
from simgpu.machines.health import DeviceFaults
from simgpu.machines.machine import Machine, Values
from simgpu.machines.users import PodRef
from simgpu.sim import physics

Cells = npt.NDArray[np.uint8] | npt.NDArray[np.uint32]

HEALTHY, THROTTLED, UNHEALTHY, LOST = range(4)
_THROTTLING = physics.POWER_CAP | physics.HARDWARE_SLOWDOWN | physics.SOFTWARE_THERMAL | physics.HARDWARE_THERMAL

POOLS_SECONDS = 5.0  # between reads of the pools of nodes, of which there may be thousands

_MAX_NAMESPACES = 12  # of the legend
_MAX_FOUND = 8  # texts whose GPUs are kept
_OF_IDS = frozenset("gpu-0123456789abcdef")  # characters of GPU ids


def _hash(text: str) -> int:
    return zlib.crc32(text.encode(errors="replace")) & 0xFFFF


def namespace_hash(name: str) -> int:
    """Return the number that stands for a namespace; never 0, which stands for no owner."""
    return _hash(name) or 1


class OwnerNumbers:
    """A number for each GPU's owner: the upper half from the namespace, the lower from the pod; 0 for none.

    Numbers from hashes need no table of names, which would be larger than everything else that viewers get. They are
    computed again only for other owners.
    """

    def __init__(self, gpus: int) -> None:
        self._cells = np.zeros(gpus, np.uint32)
        self._namespaces: list[tuple[str, int, int]] = []
        self._of: Mapping[int, PodRef] | None = None

    def cells(self, owners: Mapping[int, PodRef]) -> npt.NDArray[np.uint32]:
        """Return the number of each GPU's owner."""
        self._read(owners)
        return self._cells

    def namespaces(self, owners: Mapping[int, PodRef]) -> list[tuple[str, int, int]]:
        """Return the namespaces with the most GPUs: name, hash, and number of GPUs."""
        self._read(owners)
        return self._namespaces

    def _read(self, owners: Mapping[int, PodRef]) -> None:
        if owners is self._of:
            return
        cells, known = np.zeros(len(self._cells), np.uint32), dict[tuple[str, str], int]()
        for place, pod in owners.items():
            key = (pod.namespace, pod.name)
            if (number := known.get(key)) is None:
                number = known[key] = namespace_hash(pod.namespace) << 16 | _hash(pod.name)
            cells[place] = number
        counts = Counter(pod.namespace for pod in owners.values()).most_common(_MAX_NAMESPACES)
        self._cells, self._of = cells, owners
        self._namespaces = [(name, namespace_hash(name), count) for name, count in counts]


class FleetLayout:
    """Nodes of a machine in order: name, pool, first place and number of GPUs; and each GPU's model, by number."""

    def __init__(self, source: DashboardSource, machine: Machine) -> None:
        self.machine = machine
        firsts = np.flatnonzero(np.diff(machine.node_of, prepend=-1)).tolist()
        self.names = [source.node_name(machine.hostnames[first]) for first in firsts]
        self.pools = [source.pool_of(name) for name in self.names]
        self.firsts = np.array(firsts, dtype=np.intp)
        self.counts = [after - first for first, after in pairwise([*firsts, len(machine.devices)])]
        self.node_of = np.repeat(np.arange(len(firsts)), self.counts)
        self.number = {name: number for number, name in enumerate(self.names)}
        products: dict[str, int] = {}
        self.model_of = np.array(
            [products.setdefault(device.model.product, len(products)) for device in machine.devices], dtype=np.intp
        )
        self.products = list(products)
        self.owners = OwnerNumbers(len(machine.devices))
        self._places: dict[str, int] | None = None
        self._found: dict[str, frozenset[int]] = {}  # by text

    def adopts(self, source: DashboardSource, machine: Machine) -> bool:
        """Return whether a machine has the same nodes and GPUs, perhaps divided otherwise; it is its own then."""
        pairs = zip(self.machine.devices, machine.devices, strict=False)
        same = (
            self.machine.hostnames == machine.hostnames
            and all(one is other or (one.uuid, one.model) == (other.uuid, other.model) for one, other in pairs)
            and self.has_pools(source)
        )
        if same:
            self.machine = machine
        return same

    def has_pools(self, source: DashboardSource) -> bool:
        """Return whether all nodes are in the pools that they had."""
        return self.pools == [source.pool_of(name) for name in self.names]

    @functools.cached_property
    def order(self) -> list[int]:
        """Nodes by name, numbers in names by their value."""
        parts = [re.split(r"(\d+)", name) for name in self.names]
        keys = [[(int(part), "") if part.isdecimal() else (-1, part) for part in name] for name in parts]
        return sorted(range(len(keys)), key=keys.__getitem__)

    def place(self, gpu: str) -> int | None:
        """Return the place of a GPU by id; None if there is none."""
        if self._places is None:
            self._places = {device.uuid: place for place, device in enumerate(self.machine.devices)}
        return self._places.get(gpu)

    def with_id(self, text: str) -> frozenset[int]:
        """Return the places of GPUs whose id contains a text in lower case; kept for the last few texts."""
        if not set(text) <= _OF_IDS:
            return frozenset()
        if text not in self._found:
            if len(self._found) == _MAX_FOUND:
                self._found.clear()
            devices = enumerate(self.machine.devices)
            self._found[text] = frozenset(place for place, device in devices if text in device.uuid.lower())
        return self._found[text]

    def nodes_in(self, pool: str) -> npt.NDArray[np.bool_]:
        """Return which nodes are in a pool; all for an empty one."""
        return np.array([not pool or pool == own for own in self.pools], dtype=bool)

    def within(self, *, pool: str, model: str) -> npt.NDArray[np.intp]:
        """Return the places of GPUs in a pool and of a model; empty ones mean all."""
        chosen = np.ones(len(self.node_of), bool) if not pool else self.nodes_in(pool)[self.node_of]
        if model:
            chosen &= self.model_of == (self.products.index(model) if model in self.products else -1)
        return np.flatnonzero(chosen)

    def gpus_by_pool(self) -> dict[str, int]:
        """Return the number of GPUs in each pool."""
        found: dict[str, int] = {}
        for pool, count in zip(self.pools, self.counts, strict=True):
            found[pool] = found.get(pool, 0) + count
        return found

    def gpus_by_model(self) -> dict[str, int]:
        """Return the number of GPUs of each model."""
        return dict(zip(self.products, np.bincount(self.model_of, minlength=len(self.products)).tolist(), strict=True))


class FleetFrame:
    """All GPUs at one step."""

    def __init__(self, source: DashboardSource, layout: FleetLayout) -> None:
        self.layout = layout
        self.machine = layout.machine
        self.step, self.time = self.machine.step, self.machine.time
        self.faults: Mapping[str, DeviceFaults] = source.faults()
        self.owners = source.first_owners(self.machine)
        self._cells: dict[str, Cells] = {}

    # Columns of numbers.

    @functools.cached_property
    def lost(self) -> npt.NDArray[np.bool_]:
        """Which GPUs have fallen off the bus, and so have no readings."""
        return np.asarray(self.cells("health") == LOST)

    def column(self, name: str) -> Values:
        """Return a quantity of each GPU; zero for lost ones."""
        values = self.machine.column(name)
        return np.where(self.lost, 0.0, values) if self.lost.any() else values

    @property
    def usage(self) -> Values:
        """Utilisation in percent."""
        return np.rint(self.column("usage"))

    @property
    def throttled(self) -> npt.NDArray[np.bool_]:
        """Which GPUs have a lower clock because of power or heat."""
        return np.asarray(self.machine.column("reasons").astype(np.int64) & _THROTTLING, dtype=bool)

    def health(self) -> npt.NDArray[np.uint8]:
        """Return the state of each GPU."""
        found = self.throttled.astype(np.uint8)
        for gpu, faults in self.faults.items():
            if faults.unhealthy and (place := self.layout.place(gpu)) is not None:
                found[place] = LOST if faults.lost else UNHEALTHY
        found[self.machine.lost] = LOST
        return found

    # Cells.

    def cells(self, name: str) -> Cells:
        """Return a column as small whole numbers: percent of the most, degrees, a state, or a number of an owner."""
        if name not in self._cells:
            self._cells[name] = self._make(name)
        return self._cells[name]

    def _make(self, name: str) -> Cells:
        machine = self.machine
        if name == "owner":
            return self.layout.owners.cells(self.owners)
        if name == "health":
            return self.health()
        if name == "fault":
            health = self.cells("health")
            return np.where(health >= UNHEALTHY, health, 0).astype(np.uint8)
        if name == "utilization":
            values = self.usage
        elif name == "power":
            values = 100 * self.column("power_average") / machine.column("limit")
        elif name == "memory":
            values = 100 * self.column("memory_used") / machine.fact("memory_mib.total")
        else:
            values = self.column("temperature")
        return np.asarray(np.clip(np.nan_to_num(np.rint(values)), 0, 255), dtype=np.uint8)

    def namespaces(self) -> list[tuple[str, int, int]]:
        """Return the namespaces with the most GPUs: name, hash, and number of GPUs."""
        return self.layout.owners.namespaces(self.owners)

    # Sums.

    def totals(self, places: npt.NDArray[np.intp] | None = None) -> FleetTotals:
        """Return sums over all GPUs, or over those at some places; lost ones have only counters."""
        machine = self.machine
        columns: dict[str, npt.NDArray[Any]] = {
            "usage": self.usage, "power": self.column("power_average"), "limit": machine.column("limit"),
            "energy": machine.column("energy"), "used": self.column("memory_used"),
            "memory": machine.fact("memory_mib.total"), "health": self.cells("health"),
        }  # fmt: skip
        if places is None:
            allocated, nodes = len(self.owners), len(self.layout.names)
        else:
            columns = {name: values[places] for name, values in columns.items()}
            inside = set(places.tolist())
            allocated = sum(place in inside for place in self.owners)
            nodes = len(np.unique(self.layout.node_of[places]))
        usage, health = columns["usage"], columns["health"]
        sums = {name: round(float(np.nansum(values)), 1) for name, values in columns.items()}
        return FleetTotals(
            nodes=nodes, gpus=len(usage), busy=int(np.count_nonzero(usage)), allocated=allocated,
            throttled=int(np.count_nonzero(health == THROTTLED)), unhealthy=int(np.count_nonzero(health > THROTTLED)),
            utilization=round(float(usage.mean()), 2) if len(usage) else 0.0,
            power_w=sums["power"], power_limit_w=sums["limit"], energy_j=sums["energy"],
            memory_used_mib=sums["used"], memory_total_mib=sums["memory"],
        )  # fmt: skip


class FrameKeeper:
    """Returns the frame of the current step, which all readers share; pools of nodes are read every few seconds."""

    def __init__(self, source: DashboardSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = source
        self._clock = clock
        self._frame: FleetFrame | None = None
        self._pools_read = 0.0

    def frame(self) -> FleetFrame | None:
        """Return the frame; None while there is no machine."""
        machine = self.source.machine()
        if machine is None:
            self._frame = None
            return None
        known = self._frame
        if known is not None and known.machine is machine and known.step == machine.step:
            return known
        layout = known.layout if known is not None and self._fits(known.layout, machine) else None
        if layout is None:
            layout, self._pools_read = FleetLayout(self.source, machine), self._clock()
        self._frame = FleetFrame(self.source, layout)
        return self._frame

    def _fits(self, layout: FleetLayout, machine: Machine) -> bool:
        """Return whether a layout is that of a machine: nodes may move to other pools, which makes no new machine."""
        if layout.machine is machine and self._clock() - self._pools_read < POOLS_SECONDS:
            return True
        self._pools_read = self._clock()
        return layout.has_pools(self.source) if layout.machine is machine else layout.adopts(self.source, machine)

    def forget(self) -> None:
        """Keep nothing of any machine."""
        self._frame = None
        self.source.forget()
