"""Which nodes have which GPUs: every configuration format, read into one model.

A document has pools, and nodes are in one by a label; or it names nodes. Pools may be written in three ways, mixed in
one document: a list of `gpus`, fake-gpu-operator's older form (`gpuProduct`, `gpuCount`, `gpuMemory`,
`otherDevices`) and its newer one (`gpu.profile`, `overrides`, `resources`, `numa`). All mistakes are found at once,
each with its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from simgpu import errors, yaml_text
from simgpu.catalog import models
from simgpu.topology import devices, failures, keys, sharing

LABEL_KEY = "run.ai/simulated-gpu-node-pool"
GPU_RESOURCE = "nvidia.com/gpu"
SOURCES = FROM_POD, FROM_CPU = ("pod", "cpu")  # what says how busy a pod's GPUs are: it, or what its processes do
MOST_GPUS = 1024
MOST_DEVICES = 10_000  # of a resource, shares included: the kubelet takes the list of them in one message of 4 MiB
MOST_RESOURCES = 64  # besides GPUs: each has a device plugin of its own
MAX_NAME = 253  # characters: as many as names of nodes have
_MAX_MISTAKES = 100
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RESOURCE = re.compile(r"[a-z0-9.-]{1,253}/[A-Za-z0-9._-]{1,63}")

Profiles = Callable[[str], Mapping[str, Any] | None]  # a profile that cannot be read is an `InputError`


class Shown(msgspec.Struct, frozen=True):
    """What a GPU shows while no pod uses it, where the configuration says so."""

    utilization: float = 0.0
    fb_used: float = 0.0
    namespace: str = ""
    pod: str = ""
    container: str = ""


class Gpu(msgspec.Struct, frozen=True):
    """One GPU of a node: its model (with the product's name and memory), and what was said of it alone."""

    model: models.Model
    id: str | None = None
    shown: Shown | None = None


class Numa(msgspec.Struct, frozen=True):
    """How a node's GPUs lie on its NUMA zones."""

    zones: int = 1
    per_zone: tuple[int, ...] = ()

    def zone(self, index: int, count: int) -> int:
        """The zone of a GPU: as many in each as was said, else evenly, those left over in the lowest zones."""
        each, rest = divmod(count, self.zones)
        sizes = self.per_zone or tuple(each + (zone < rest) for zone in range(self.zones))
        return next((zone for zone, last in enumerate(accumulate(sizes)) if index < last), self.zones - 1)


class NodeGpus(msgspec.Struct, frozen=True):
    """What a node of a pool has."""

    gpus: tuple[Gpu, ...]
    other: dict[str, int] = msgspec.field(default_factory=dict)
    driver: str = ""
    cuda: str = ""
    numa: Numa | None = None
    slicing: sharing.TimeSlicing = sharing.NONE
    failures: failures.Failures = failures.NONE
    settable: bool = False
    utilization_from: str = FROM_POD

    @property
    def product(self) -> str:
        """The product of the first GPU: what labels and the node's ConfigMap name."""
        return self.gpus[0].model.product if self.gpus else ""

    @property
    def memory_mib(self) -> int:
        """The memory of the first GPU."""
        return self.gpus[0].model.memory_mib.total if self.gpus else 0

    @property
    def mixed(self) -> bool:
        """Whether its GPUs are of several models."""
        return len({gpu.model.key for gpu in self.gpus}) > 1


def build(spec: NodeGpus, node: str) -> list[devices.Device]:
    """The GPUs of a node."""
    found = [devices.device(node, index, gpu.model, name=gpu.id) for index, gpu in enumerate(spec.gpus)]
    if spec.numa is None:
        return found
    return [msgspec.structs.replace(item, numa=spec.numa.zone(item.index, len(found))) for item in found]


class Fleet(msgspec.Struct, frozen=True):
    """A whole configuration."""

    pools: dict[str, NodeGpus] = msgspec.field(default_factory=dict)
    nodes: dict[str, NodeGpus] = msgspec.field(default_factory=dict)
    label_key: str = LABEL_KEY
    mig_strategy: str = "mixed"
    unknown: tuple[str, ...] = ()  # keys that mean nothing, each with its place and what could stand there


class Mistakes(errors.InputError):
    """Everything that is wrong with a document."""

    def __init__(self, found: list[errors.InputError], unknown: list[str]) -> None:
        super().__init__(found[0].field, "; ".join([found[0].problem, *(str(item) for item in found[1:])]))
        self.found = found
        self.unknown = unknown


def parse(text: str, catalog: models.Catalog, profiles: Profiles = lambda _name: None) -> Fleet:
    """A document of any format; `Mistakes` if there are any."""
    return _Reader(catalog, profiles).read(text)


def parse_gpus(text: str, catalog: models.Catalog, *, field: str) -> NodeGpus:
    """`h200:8`, several with commas: what the annotation of a single node says."""
    gpus: list[Gpu] = []
    for item in text.split(","):
        name, _, count = item.strip().partition(":")
        if not re.fullmatch("[0-9]{1,5}", count) or not 0 < int(count) <= MOST_GPUS:
            raise errors.InputError(field, f"{errors.shown(item)}: must be MODEL:COUNT, at most {MOST_GPUS}")
        if len(gpus) + int(count) > MOST_GPUS:
            raise errors.InputError(field, f"a node has at most {MOST_GPUS} GPUs")
        gpus += [Gpu(catalog.get(name, field=field))] * int(count)
    return NodeGpus(tuple(gpus))


class _Reader:
    """Reads one document and gathers what is wrong with it."""

    def __init__(self, catalog: models.Catalog, profiles: Profiles) -> None:
        self._catalog = catalog
        self._profiles = profiles
        self._wrong: list[errors.InputError] = []
        self._unknown: list[str] = []
        self._more = 0  # mistakes beyond those that are listed

    def read(self, text: str) -> Fleet:
        document = self._document(text)
        fleet = Fleet()
        if document is not None:
            fleet = self._fleet(document)
        if self._more:
            self._wrong.append(errors.InputError("topology", f"and {self._more} more mistakes"))
        if self._wrong:
            raise Mistakes(self._wrong, self._unknown)
        return fleet

    def _document(self, text: str) -> Mapping[str, Any] | None:
        try:
            document = yaml_text.parse(text)
        except ValueError as error:
            self._mistake("topology", str(error))
            return None
        if document is None:
            self._mistake("topology", "is empty")
            return None
        if not isinstance(document, dict):
            self._mistake("topology", "must be a mapping")
            return None
        for chart_value in ("cluster", "topology"):  # a chart's values, of which the rest is none of ours
            if isinstance(inner := document.get(chart_value), dict):
                return inner
        return document

    def _mistake(self, field: str, problem: str) -> None:
        if len(self._wrong) < _MAX_MISTAKES:
            self._wrong.append(errors.InputError(field, errors.clipped(problem)))
        else:
            self._more += 1

    def _known(self, holder: Any, allowed: Sequence[str], where: str) -> None:
        """Whoever mistypes a key should hear of it; whoever has keys of another program's should not be stopped."""
        for key in holder if isinstance(holder, dict) else ():
            if key not in allowed and len(self._unknown) < _MAX_MISTAKES:
                name = errors.clipped(str(key), MAX_NAME)
                place = f"{where}.{name}" if where else name
                self._unknown.append(f"{place}: no such key; there are: {', '.join(allowed)}")

    def _fleet(self, document: Mapping[str, Any]) -> Fleet:
        self._known(document, keys.TOP, "")
        pools, nodes = self._mapping(document, "nodePools"), self._mapping(document, "nodes")
        if "nodePools" not in document and "nodes" not in document:
            self._mistake("nodePools", "is missing; a topology has nodePools, or nodes by name")
        strategy = document.get("migStrategy", document.get("mig-strategy", "mixed"))
        if strategy not in ("none", "single", "mixed"):
            self._mistake("migStrategy", f"{errors.shown(strategy)}: must be none, single or mixed")
        key = document.get("nodePoolLabelKey", LABEL_KEY)
        if not isinstance(key, str) or not re.fullmatch(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9._-]{1,63}", key):
            self._mistake("nodePoolLabelKey", f"{errors.shown(key)} is no label key")
        return Fleet(
            pools=self._by_name(pools, "nodePools", self._pool),
            nodes=self._by_name(nodes, "nodes", self._static),
            label_key=str(key),
            mig_strategy=str(strategy),
            unknown=tuple(self._unknown),
        )

    def _by_name(
        self, holder: Mapping[Any, Any], where: str, read: Callable[[Any, str], NodeGpus]
    ) -> dict[str, NodeGpus]:
        found: dict[str, NodeGpus] = {}
        for name, item in holder.items():
            if len(str(name)) > MAX_NAME:
                self._mistake(where, f"{errors.shown(name)}: a name has at most {MAX_NAME} characters")
            else:
                found[str(name)] = read(item, f"{where}.{name}")
        return found

    def _mapping(self, holder: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
        value = holder.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._mistake(f"{where}{name}", "must be a mapping")
            return {}
        return value

    # Pools.

    def _pool(self, pool: Any, where: str) -> NodeGpus:
        if not isinstance(pool, dict):
            self._mistake(where, "must be a mapping")
            return NodeGpus(())
        made = self._gpus(pool, where)
        other = {**self._other_devices(pool, where), **self._resources(pool, where)}
        numa = self._numa(pool.get("numa"), f"{where}.numa", len(made.gpus))
        if len(other) > MOST_RESOURCES:
            self._mistake(where, f"has {len(other)} other resources; at most {MOST_RESOURCES}")
        return self._shared(msgspec.structs.replace(made, other=other, numa=numa, **self._real(pool, where)), where)

    def _shared(self, made: NodeGpus, where: str) -> NodeGpus:
        """The same, unless devices are shared so often that the kubelet could not be told of them."""
        for resource, count in {GPU_RESOURCE: len(made.gpus), **made.other}.items():
            replicas = made.slicing.replicas(resource)
            if replicas > 1 and count * replicas > MOST_DEVICES:
                problem = f"{resource}: {count} devices, {replicas} times each; at most {MOST_DEVICES} in all"
                self._mistake(f"{where}.sharing", problem)
        return made

    def _gpus(self, pool: Mapping[str, Any], where: str) -> NodeGpus:
        if "gpus" in pool:
            self._known(pool, keys.LISTED_POOL, where)
            return NodeGpus(self._listed(pool["gpus"], f"{where}.gpus"))
        if "gpu" in pool:
            self._known(pool, keys.PROFILED_POOL, where)
            return self._profiled(pool["gpu"], f"{where}.gpu")
        self._known(pool, keys.OLD_POOL, where)
        return NodeGpus(self._old(pool, where))

    def _real(self, pool: Mapping[str, Any], where: str) -> dict[str, Any]:
        """What only real nodes do: share their GPUs, fail, let pods set things, and look at what processes do."""
        settable, source = pool.get("settable", False), pool.get("utilizationFrom", FROM_POD)
        if not isinstance(settable, bool):
            self._mistake(f"{where}.settable", f"{errors.shown(settable)}: must be true or false")
        if source not in SOURCES:
            self._mistake(f"{where}.utilizationFrom", f"{errors.shown(source)}: must be one of {', '.join(SOURCES)}")
        found: dict[str, Any] = {"settable": settable is True, "utilization_from": source}
        parsers: dict[str, tuple[str, Callable[..., Any]]] = {
            "slicing": ("sharing", sharing.parse), "failures": ("failures", failures.parse),
        }  # fmt: skip
        for name, (key, parse_part) in parsers.items():
            try:
                found[name] = parse_part(pool.get(key) or {}, field=f"{where}.{key}")
            except errors.InputError as error:
                self._mistake(error.field, error.problem)
        return found

    def _listed(self, listed: Any, where: str) -> tuple[Gpu, ...]:
        if not isinstance(listed, list):
            self._mistake(where, "must be a list of GPUs, each with type, memory and count")
            return ()
        found: list[Gpu] = []
        for number, entry in enumerate(listed):
            found += self._entry(entry, f"{where}[{number}]")
            if len(found) > MOST_GPUS:
                self._mistake(f"{where}[{number}].count", f"a node has at most {MOST_GPUS} GPUs")
                return ()
        return tuple(found)

    def _entry(self, entry: Any, where: str) -> list[Gpu]:
        if not isinstance(entry, dict):
            self._mistake(where, "must be a mapping with type, memory and count")
            return []
        self._known(entry, keys.LISTED_GPU, where)
        name, count = entry.get("type"), entry.get("count", 1)
        if not _whole(count, MOST_GPUS) or count < 1:
            self._mistake(f"{where}.count", f"{errors.shown(count)}: must be a whole number from 1 to {MOST_GPUS}")
            count = 0
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            self._mistake(f"{where}.type", f"{errors.shown(name)}: must be a model or product, such as h200")
            self._size(entry.get("memory"), f"{where}.memory")
            return []
        return [Gpu(self._product(name, entry.get("memory"), f"{where}.memory"))] * count

    def _size(self, memory: Any, where: str) -> int | None:
        if memory is None:
            return None
        try:
            return devices.mebibytes(memory, where=where)
        except errors.InputError as error:
            self._mistake(error.field, error.problem)
            return None

    def _old(self, pool: Mapping[str, Any], where: str) -> tuple[Gpu, ...]:
        count, memory = pool.get("gpuCount", 0), pool.get("gpuMemory", 0)
        if not _whole(count, MOST_GPUS):
            self._mistake(f"{where}.gpuCount", f"{errors.shown(count)}: must be a whole number from 0 to {MOST_GPUS}")
            return ()
        if not count:
            return ()
        product = self._text(pool, "gpuProduct", where)
        return (Gpu(self._product(product, memory or None, f"{where}.gpuMemory")),) * int(count)

    def _product(self, product: str, memory: Any, where: str) -> models.Model:
        """A product by name with its memory; the catalog's model behind it where there is one."""
        if memory is None and self._catalog.find(product) is None:
            self._mistake(where, f"{errors.shown(product)} is not in the catalog, so its memory must be said")
        return devices.named(product or "GPU", self._size(memory, where), self._catalog)

    def _profiled(self, gpu: Any, where: str) -> NodeGpus:
        if not isinstance(gpu, dict):
            self._mistake(where, "must be a mapping")
            return NodeGpus(())
        self._known(gpu, keys.PROFILED_GPU, where)
        overrides = self._mapping(gpu, "overrides", f"{where}.")
        self._known(overrides, keys.OVERRIDES, f"{where}.overrides")
        profile, known = dict[str, Any](), None
        if name := self._text(gpu, "profile", where):
            known = self._catalog.find(name)
            try:
                found = self._profiles(name)
            except errors.InputError as error:
                self._mistake(f"{where}.profile", str(error))
                return NodeGpus(())
            if found is None and known is None:
                problem = f"no profile {name!r}: no ConfigMap gpu-profile-{name}, no such model"
                self._mistake(f"{where}.profile", problem)
                return NodeGpus(())
            profile = dict(found or {})
        place = f"{where}.overrides." if overrides else f"{where}.profile."
        merged = models.merged(profile, overrides)
        defaults, system = (self._mapping(merged, part, place) for part in ("device_defaults", "system"))
        for part, allowed in (("device_defaults", keys.DEVICE_DEFAULTS), ("system", keys.SYSTEM)):
            self._known(overrides.get(part), allowed, f"{place}{part}")
        model = self._described(defaults, system, known, f"{place}device_defaults")
        listed = merged.get("devices") or []
        if not isinstance(listed, list):
            self._mistake(f"{place}devices", "must be a list")
            return NodeGpus(())
        count = merged.get("device_count") or len(listed) or (8 if known and not profile else 0)
        if not _whole(count, MOST_GPUS):
            problem = f"{errors.shown(count)}: must be a whole number from 0 to {MOST_GPUS}"
            self._mistake(f"{place}device_count", problem)
            return NodeGpus(())
        driver, cuda = (self._text(system, name, f"{place}system") for name in ("driver_version", "cuda_version"))
        return NodeGpus((Gpu(model),) * int(count), driver=driver, cuda=cuda)

    def _text(self, holder: Mapping[str, Any], name: str, where: str) -> str:
        """A text, or a number that stands for one; empty if nothing is said."""
        value = holder.get(name)
        if value is None:
            return ""
        if not isinstance(value, str | int | float) or len(str(value)) > MAX_NAME:
            self._mistake(f"{where}.{name}", f"{errors.shown(value)}: must be a text of at most {MAX_NAME} characters")
            return ""
        return str(value)

    def _described(
        self, defaults: Mapping[str, Any], system: Mapping[str, Any], like: models.Model | None, where: str
    ) -> models.Model:
        """The model that a profile describes; of what it does not say, what the model of its name has."""
        size = self._mapping(defaults, "memory", f"{where}.").get("total_bytes")
        if size is not None and not (isinstance(size, int | float) and 1 << 20 <= size <= 1 << 50):
            problem = f"{errors.shown(size)}: must be a number of bytes, at least a MiB"
            self._mistake(f"{where}.memory.total_bytes", problem)
            size = None
        facts: dict[str, str] = {}
        if architecture := self._text(defaults, "architecture", where):
            facts["architecture"] = architecture
        capability = self._mapping(defaults, "compute_capability", f"{where}.")
        if "major" in capability:
            major, minor = capability["major"], capability.get("minor", 0)
            if _whole(major, 99) and _whole(minor, 9):
                facts["compute_capability"] = f"{major}.{minor}"
            else:
                self._mistake(f"{where}.compute_capability", "major is a whole number up to 99, minor one up to 9")
        if system.get("driver_version"):
            facts["driver"] = str(system["driver_version"])
        product = self._text(defaults, "name", where) or (like.product if like else "GPU")
        memory = int(size) >> 20 if size is not None else None
        return devices.named(product, memory, self._catalog, like=like, facts=facts)

    def _other_devices(self, pool: Mapping[str, Any], where: str) -> dict[str, int]:
        listed = pool.get("otherDevices") or []
        if not isinstance(listed, list):
            self._mistake(f"{where}.otherDevices", "must be a list")
            return {}
        for number, item in enumerate(listed):
            self._known(item, keys.OTHER_DEVICE, f"{where}.otherDevices[{number}]")
        pairs = [(item.get("name"), item.get("count")) if isinstance(item, dict) else (None, None) for item in listed]
        found = self._counted(pairs, f"{where}.otherDevices")
        return {name: count for name, count in found.items() if name != GPU_RESOURCE}

    def _resources(self, pool: Mapping[str, Any], where: str) -> dict[str, int]:
        listed = pool.get("resources") or []
        if not isinstance(listed, list):
            self._mistake(f"{where}.resources", "must be a list of mappings with one entry")
            return {}
        pairs = [
            next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else (None, None) for item in listed
        ]
        return {
            name: count for name, count in self._counted(pairs, f"{where}.resources").items() if name != GPU_RESOURCE
        }

    def _counted(self, pairs: list[tuple[Any, Any]], where: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, (name, count) in enumerate(pairs):
            if not isinstance(name, str) or not RESOURCE.fullmatch(name):
                self._mistake(f"{where}[{number}]", f"{errors.shown(name)} is no resource name such as rdma/hca")
            elif not _whole(count, MOST_DEVICES):
                problem = f"{name}: {errors.shown(count)}: must be a whole number from 0 to {MOST_DEVICES}"
                self._mistake(f"{where}[{number}]", problem)
            else:
                found[name] = int(count)
        return found

    def _numa(self, numa: Any, where: str, gpus: int) -> Numa | None:
        if numa is None:
            return None
        if not isinstance(numa, dict) or not _whole(numa.get("zones", 1), 64):
            self._mistake(where, "must have zones, a whole number up to 64")
            return None
        self._known(numa, keys.NUMA, where)
        if numa.get("zones") == 0:
            return None
        spread = numa.get("gpusPerZone") or []
        if not isinstance(spread, list) or not all(_whole(item, MOST_GPUS) for item in spread):
            self._mistake(f"{where}.gpusPerZone", "must be a list of whole numbers")
            return None
        zones = int(numa.get("zones", 1))
        if zones and spread and gpus and (len(spread) != zones or sum(spread) != gpus):
            self._mistake(f"{where}.gpusPerZone", f"must have {zones} entries that add up to {gpus} GPUs")
        return Numa(zones, tuple(int(item) for item in spread))

    # Nodes by name.

    def _static(self, node: Any, where: str) -> NodeGpus:
        if not isinstance(node, dict):
            self._mistake(where, "must be a mapping")
            return NodeGpus(())
        self._known(node, keys.NAMED_NODE, where)
        listed = node.get("gpus")
        if not isinstance(listed, list) or len(listed) > MOST_GPUS:
            self._mistake(f"{where}.gpus", f"must be a list of at most {MOST_GPUS} GPUs with ids")
            return NodeGpus(())
        product = self._text(node, "gpu-product", where)
        model = self._product(product, node.get("gpu-memory") or None, f"{where}.gpu-memory")
        gpus, seen = [], set[str]()
        for number, item in enumerate(listed):
            place = f"{where}.gpus[{number}]"
            name = item.get("id") if isinstance(item, dict) else None
            if not isinstance(name, str) or not ID.fullmatch(name) or name in seen:
                self._mistake(
                    f"{place}.id", "must be 1 to 63 letters, digits, '.', '_' or '-' that no other GPU of the node has"
                )
                continue
            seen.add(name)
            self._known(item, keys.NAMED_GPU, place)
            gpus.append(Gpu(model, name, self._shown(item.get("metrics"), place)))
        return self._shared(NodeGpus(tuple(gpus), **self._real(node, where)), where)

    def _shown(self, metrics: Any, where: str) -> Shown | None:
        if metrics is None:
            return None
        if not isinstance(metrics, dict):
            self._mistake(f"{where}.metrics", "must be a mapping")
            return None
        self._known(metrics, keys.METRICS, f"{where}.metrics")
        owner = self._mapping(metrics, "metadata", f"{where}.metrics.")
        self._known(owner, keys.OWNER, f"{where}.metrics.metadata")
        usage, used = metrics.get("utilization", 0), metrics.get("fb-used", 0)
        if not _whole(usage, 100) or not _whole(used, 100_000_000):
            self._mistake(f"{where}.metrics", "utilization is from 0 to 100, and fb-used a number of MiB")
            return None
        names = {name: self._text(owner, name, f"{where}.metrics.metadata") for name in keys.OWNER}
        return Shown(float(usage), float(used), **names)


def _whole(value: Any, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
