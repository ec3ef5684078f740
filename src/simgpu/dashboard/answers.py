"""The answers of the API as structs, from which its OpenAPI document is generated. Names end in their unit."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

import msgspec

T = TypeVar("T")

Percent = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]


class FleetTotals(msgspec.Struct, frozen=True):
    """Sums over GPUs. A busy GPU has a utilisation above zero, an allocated one belongs to somebody.

    Of lost GPUs only energy counts.
    """

    nodes: int
    gpus: int
    busy: int
    allocated: int
    throttled: int
    unhealthy: int
    utilization: Percent  # the mean of all GPUs
    power_w: float
    power_limit_w: float
    energy_j: float
    memory_used_mib: float
    memory_total_mib: float


class FleetSummary(msgspec.Struct, frozen=True):
    """What is simulated here, and its totals; GPUs by pool and by model."""

    role: str
    version: str
    time: float  # of the last step, in seconds since 1970
    step: int
    totals: FleetTotals
    pools: dict[str, int]
    models: dict[str, int]


class GpuOwner(msgspec.Struct, frozen=True):
    """A container that has a GPU or a part of it."""

    namespace: str
    pod: str
    container: str = ""
    share: float = 1.0  # of the GPU's memory, from 0 to 1
    instance: int | None = None  # MIG instance, by number


class GpuSummary(msgspec.Struct, frozen=True):
    """A GPU with its readings, which are zero if it is lost."""

    id: str
    node: str
    index: int
    model: str
    pool: str
    health: str
    problem: str
    utilization: Percent
    power_w: float
    power_limit_w: float
    temperature_c: float
    memory_used_mib: float
    memory_total_mib: float
    numa: int
    owners: list[GpuOwner]


class GpuInstance(msgspec.Struct, frozen=True):
    """A MIG instance, or a tile, of a GPU."""

    number: int
    profile: str
    utilization: Percent
    memory_used_mib: float


class GpuLink(msgspec.Struct, frozen=True):
    """The link of a GPU to a peer on the same node, by index."""

    peer: int
    ports: int


class GpuDetail(msgspec.Struct, frozen=True):
    """Everything about one GPU. Readings, counters and errors are by name; those that it does not have are left out.

    A lost GPU has no readings.
    """

    summary: GpuSummary
    time: float
    architecture: str
    file: str
    pci_bus_id: str
    serial: str
    reasons: list[str]  # why its clock is lower than it could be
    readings: dict[str, float]
    counters: dict[str, float]
    errors: dict[str, float]
    instances: list[GpuInstance]
    links: list[GpuLink]


class NodeSummary(msgspec.Struct, frozen=True):
    """A node with sums over its GPUs."""

    name: str
    pool: str
    models: list[str]
    gpus: int
    busy: int
    allocated: int
    unhealthy: int
    utilization: Percent
    power_w: float
    memory_used_mib: float
    memory_total_mib: float
    temperature_max_c: float


class PodSummary(msgspec.Struct, frozen=True):
    """A pod that has GPUs, or a pending one that requests some; `message` is the scheduler's reason for the latter.

    `gpus` are those of which it has all or a part; a pending one may request shares and MIG instances as well.
    """

    namespace: str
    name: str
    node: str
    phase: str
    since: str  # RFC 3339: its start, or its creation if it is pending
    gpus: int
    gpu_ids: list[str]
    utilization: Percent
    memory_used_mib: float
    reason: str = ""
    message: str = ""
    instances: int = 0  # MIG instances that it has, or requests


class GpuPage(msgspec.Struct, frozen=True):
    """The state page of a GPU or, by its id, of a GPU with one MIG instance alone: bytes as base64."""

    id: str
    page: str


class ContainerGpus(msgspec.Struct, frozen=True):
    """What nvidia-smi reads in a container of a pod on a fake node.

    `state` is `running`, or why there are no pages, which `message` explains: the pod or container is `unknown`, it has
    no GPUs (`empty`), does not run (`stopped`), or is on a `real` node.
    """

    state: str
    message: str = ""
    node: str = ""
    container: str = ""
    time: float = 0.0  # of the last step, in seconds since 1970
    pages: list[GpuPage] = []


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event that this process has recorded."""

    time: float
    type: str
    reason: str
    message: str
    kind: str
    name: str
    namespace: str = ""


class NodeDetail(msgspec.Struct, frozen=True):
    """A node with its GPUs, pods and events. Of a very large one the first GPUs are listed."""

    summary: NodeSummary
    time: float
    driver: str
    cuda: str
    gpus: list[GpuSummary]
    instances: dict[str, list[GpuInstance]]  # by GPU id
    links: dict[str, list[GpuLink]]  # by GPU id
    pods: list[PodSummary]
    events: list[RecordedEvent]


class ApiPage(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list: `total` items match, and `next` is the address of the next part, if there is one."""

    total: int
    offset: int
    items: list[T]
    next: str | None = None


class SearchHit(msgspec.Struct, frozen=True):
    """A node, a pod or a GPU that matches; `index` is of the GPU on its node, or of the pod's first one."""

    kind: str
    name: str
    node: str
    index: int | None = None


class SearchResult(msgspec.Struct, frozen=True):
    """How many GPUs match, where they are among those of the same pool and model, and what matches first.

    `places` are bytes as base64: how many cells to skip before each match; 255 skips so many and is no match yet.
    """

    total: int
    places: str
    hits: list[SearchHit]


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was rejected; `parameter` is the invalid part of the query."""

    error: str
    parameter: str = ""
