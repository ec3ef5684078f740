"""The answers of the API that are shown, with the fields that are used."""

from __future__ import annotations

import msgspec


class TotalsShown(msgspec.Struct, frozen=True):
    """Sums over all GPUs."""

    nodes: int = 0
    gpus: int = 0
    busy: int = 0
    allocated: int = 0
    throttled: int = 0
    unhealthy: int = 0
    utilization: float = 0.0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    energy_j: float = 0.0
    memory_used_mib: float = 0.0
    memory_total_mib: float = 0.0


class FleetShown(msgspec.Struct, frozen=True):
    """What is simulated, and its totals."""

    role: str = ""
    version: str = ""
    time: float = 0.0
    totals: TotalsShown = TotalsShown()
    pools: dict[str, int] = {}
    models: dict[str, int] = {}


class OwnerShown(msgspec.Struct, frozen=True):
    """Who has a GPU."""

    namespace: str
    pod: str
    container: str = ""


class GpuShown(msgspec.Struct, frozen=True):
    """A GPU with its readings."""

    id: str
    node: str
    index: int
    model: str = ""
    pool: str = ""
    health: str = ""
    problem: str = ""
    utilization: float = 0.0
    power_w: float = 0.0
    power_limit_w: float = 0.0
    temperature_c: float = 0.0
    memory_used_mib: float = 0.0
    memory_total_mib: float = 0.0
    owners: list[OwnerShown] = []


class NodeShown(msgspec.Struct, frozen=True):
    """A node with sums over its GPUs."""

    name: str
    pool: str = ""
    models: list[str] = []
    gpus: int = 0
    busy: int = 0
    allocated: int = 0
    unhealthy: int = 0
    utilization: float = 0.0
    power_w: float = 0.0
    memory_used_mib: float = 0.0
    memory_total_mib: float = 0.0
    temperature_max_c: float = 0.0


class PodShown(msgspec.Struct, frozen=True):
    """A pod that has GPUs, or waits for some."""

    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    since: str = ""
    gpus: int = 0
    utilization: float = 0.0
    memory_used_mib: float = 0.0
    reason: str = ""
    message: str = ""


class EventShown(msgspec.Struct, frozen=True):
    """A recorded event."""

    time: float = 0.0
    type: str = ""
    reason: str = ""
    message: str = ""


class NodePage(msgspec.Struct, frozen=True):
    """All about a node."""

    summary: NodeShown
    time: float = 0.0
    driver: str = ""
    cuda: str = ""
    gpus: list[GpuShown] = []
    pods: list[PodShown] = []
    events: list[EventShown] = []


class GpuPage(msgspec.Struct, frozen=True):
    """All about a GPU."""

    summary: GpuShown
    time: float = 0.0
    architecture: str = ""
    pci_bus_id: str = ""
    serial: str = ""
    reasons: list[str] = []
    readings: dict[str, float] = {}
    counters: dict[str, float] = {}
    errors: dict[str, float] = {}


class CurvesShown(msgspec.Struct, frozen=True):
    """Values of the last minutes: a row for each moment, a name for each column."""

    names: list[str]
    rows: list[list[float | None]]


class NodeList(msgspec.Struct, frozen=True):
    """A part of all nodes."""

    total: int
    items: list[NodeShown]


class PodList(msgspec.Struct, frozen=True):
    """A part of all pods."""

    total: int
    items: list[PodShown]
