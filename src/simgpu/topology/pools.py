"""Which nodes have which GPUs: the model that every configuration format is read into.

`reading` reads documents, `inline` the short form `MODEL:COUNT`.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Annotated, Any

import msgspec

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.catalog.facts import Count
from simgpu.topology import allocating, devices, failures, mig_files, mig_layouts, sharing

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RESOURCE = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}")


def is_resource_name(text: str) -> bool:
    """Return whether a text is the name of a device plugin's resource, such as `rdma/hca`."""
    return RESOURCE.fullmatch(text) is not None


class NodeGpu(msgspec.Struct, frozen=True):
    """One GPU of a node: its model (with the product's name and memory), and its own id and metrics if configured.

    `layout` is how it is divided into MIG instances.
    """

    model: models.Model
    id: str | None = None
    metrics: devices.StaticMetrics | None = None
    layout: mig_layouts.CardLayout = mig_layouts.WHOLE


class Numa(msgspec.Struct, frozen=True):
    """NUMA zones of a node: how many, and GPUs in each (even where `per_zone` is empty).

    `policy` and `scope` are the topology manager's, `cpu` and `memory` quantities of each zone (empty for an equal part
    of the node's), and `near` and `far` the distances of a zone from itself and from others.
    """

    zones: Annotated[int, msgspec.Meta(ge=1, le=vocabulary.MAX_NUMA_ZONES)] = 1
    per_zone: tuple[Count, ...] = ()
    policy: str = vocabulary.DEFAULT_TOPOLOGY_POLICY
    scope: str = vocabulary.DEFAULT_TOPOLOGY_SCOPE
    cpu: str = ""
    memory: str = ""
    near: Count = vocabulary.DEFAULT_NUMA_DISTANCES[0]
    far: Count = vocabulary.DEFAULT_NUMA_DISTANCES[1]

    def zone(self, index: int, count: int) -> int:
        """Return the zone of a GPU: `per_zone` in each, else evenly, those left over in the lowest zones."""
        each, rest = divmod(count, self.zones)
        sizes = self.per_zone or tuple(each + (zone < rest) for zone in range(self.zones))
        return next((zone for zone, last in enumerate(accumulate(sizes)) if index < last), self.zones - 1)


class NodeGpus(msgspec.Struct, frozen=True):
    """What a node has: its GPUs, other resources by name, and how its device plugin and its metrics behave."""

    gpus: tuple[NodeGpu, ...]
    other: dict[str, int] = msgspec.field(default_factory=dict)
    driver: str = ""
    cuda: str = ""
    numa: Numa | None = None
    slicing: sharing.TimeSlicing = sharing.NONE
    failures: failures.Failures = failures.NONE
    settable: bool = False
    utilization_from: str = vocabulary.FROM_POD
    allocation: allocating.GpuAllocation = allocating.DEFAULT
    mig: mig_files.MigSettings = mig_files.NONE

    @property
    def product(self) -> str:
        """The product of the first GPU, for labels and the node's ConfigMap."""
        return self.gpus[0].model.product if self.gpus else ""

    @property
    def memory_mib(self) -> int:
        """The memory of the first GPU, in MiB."""
        return self.gpus[0].model.memory_mib.total if self.gpus else 0

    @property
    def driver_version(self) -> str:
        """The driver's version: as configured, else the one of the first GPU's model."""
        return self.driver or (self.gpus[0].model.driver if self.gpus else "") or vocabulary.DEFAULT_DRIVER

    @property
    def cuda_version(self) -> str:
        """The CUDA version: as configured, else the one of the first GPU's model."""
        return self.cuda or (self.gpus[0].model.cuda if self.gpus else "") or vocabulary.DEFAULT_CUDA

    @property
    def divided(self) -> bool:
        """Whether any of its GPUs is in MIG mode."""
        return any(gpu.layout.enabled for gpu in self.gpus)

    @property
    def mixed(self) -> bool:
        """Whether its GPUs are of several models."""
        return len({gpu.model.key for gpu in self.gpus}) > 1


def build(spec: NodeGpus, node: str, *, labels: dict[str, str] | None = None) -> list[devices.Device]:
    """Return the devices of a node, in order, each with these labels of its exporter."""
    found = []
    for index, gpu in enumerate(spec.gpus):
        more: dict[str, Any] = {} if spec.numa is None else {"numa": spec.numa.zone(index, len(spec.gpus))}
        if gpu.layout.enabled:
            more |= {"instances": gpu.layout.instances, "starts": gpu.layout.starts, "mig_enabled": True}
        labelled = devices.device(
            node, index, gpu.model, name=gpu.id, static=gpu.metrics, labels=labels if labels is not None else {}, **more
        )
        found.append(labelled)
    return found


class Topology(msgspec.Struct, frozen=True):
    """A whole configuration: what nodes of each pool have, and nodes by name."""

    pools: dict[str, NodeGpus] = msgspec.field(default_factory=dict)
    nodes: dict[str, NodeGpus] = msgspec.field(default_factory=dict)
    label_key: str = vocabulary.POOL_LABEL
    mig_strategy: str = "mixed"
    mig_configs: dict[str, mig_layouts.Layout] = msgspec.field(default_factory=dict)  # by name, beside the well-known
    allocation: allocating.GpuAllocation = allocating.DEFAULT  # of nodes with an annotation for their GPUs
    unknown: tuple[str, ...] = ()  # keys that mean nothing, each with its path and the keys allowed there

    def adopting(self, before: Topology) -> Topology:
        """Return a copy in which pools and nodes that are as before are the same objects: whether a node is concerned
        by a change is quickly seen then.
        """
        return msgspec.structs.replace(
            self, pools=_adopted(self.pools, before.pools), nodes=_adopted(self.nodes, before.nodes)
        )

    def changed_since(self, before: Topology) -> tuple[set[str], set[str]] | None:
        """Return the pools and the nodes by name that are others than `before`, or are new or gone.

        None if more has changed than these, which concerns every node.
        """
        same = msgspec.structs.replace(before, pools=self.pools, nodes=self.nodes, unknown=self.unknown)
        return (_changed(self.pools, before.pools), _changed(self.nodes, before.nodes)) if self == same else None


def _changed(found: dict[str, NodeGpus], before: dict[str, NodeGpus]) -> set[str]:
    return {name for name in found.keys() | before.keys() if found.get(name) != before.get(name)}


def _adopted(found: dict[str, NodeGpus], before: dict[str, NodeGpus]) -> dict[str, NodeGpus]:
    return {name: before[name] if before.get(name) == spec else spec for name, spec in found.items()}
