"""Devices of a machine: their model and identifiers, and the configuration `gpus: [{type, memory, count}]`."""

from __future__ import annotations

import contextlib
import hashlib
import re
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import computing, models, placing

MIG_PREFIX = "MIG-"  # of the ids of instances

_NAMESPACE = uuid.UUID(int=0)
_FILES = {"nvidia": "nvidia", "intel": "card", "amd": "card", "habana": "accel"}
_UNITS = {
    "": 1.0, "B": 2**-20, "KB": 1e3 / 2**20, "MB": 1e6 / 2**20, "GB": 1e9 / 2**20, "TB": 1e12 / 2**20,
    "KiB": 2**-10, "MiB": 1.0, "GiB": 1024.0, "TiB": 1024.0**2,
}  # fmt: skip
_SOCKETS, _CORES = 2, 24  # of the machine around them
_UNKNOWN: dict[str, Any] = {"architecture": "", "compute_capability": None, "mig": (), "estimated": ("mig",)}


class StaticMetrics(msgspec.Struct, frozen=True):
    """Metrics of a GPU while no pod uses it: utilization in percent, memory used in MiB, and the owner to show."""

    utilization: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 0.0
    fb_used: Annotated[float, msgspec.Meta(ge=0.0, le=1e9)] = 0.0
    namespace: str = ""
    pod: str = ""
    container: str = ""


class ComputeInstance(msgspec.Struct, frozen=True):
    """A compute instance that is smaller than its GPU instance: numbers of both, its kind, and its first slice."""

    within: int
    number: int
    kind: int
    start: int


class Device(msgspec.Struct, frozen=True):
    """One device of a machine; `file` is its name below `/dev`, `labels` are extra labels of its metrics.

    `starts` are the first slices of its MIG instances, where they were chosen; the driver chooses them otherwise. A
    compute instance fills each of them, but not those with the numbers in `bare`, which have none, or smaller ones that
    `compute` lists. With `mig_enabled` it is in MIG mode also without instances.
    """

    index: int
    model: models.Model
    uuid: str
    file: str
    pci_bus_id: str
    serial: str
    numa: int
    instances: tuple[models.MigProfile, ...] = ()
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    static: StaticMetrics | None = None
    starts: tuple[int, ...] = ()
    bare: tuple[int, ...] = ()
    compute: tuple[ComputeInstance, ...] = ()
    mig_enabled: bool = False

    @property
    def mig_mode(self) -> bool:
        """Whether it is in MIG mode."""
        return self.mig_enabled or bool(self.instances)

    @property
    def pci_short(self) -> str:
        """The PCI address as the kernel writes it."""
        return self.pci_bus_id[4:].lower()

    @property
    def pcie_root(self) -> str:
        """The PCIe root complex as the kernel names it; each NUMA node has one."""
        return f"pci{self.pci_short[:4]}:{self.numa:02x}"

    @property
    def cpus(self) -> str:
        """The CPUs of its NUMA node as a list of ranges, both threads of each core."""
        first, second = (thread + self.numa * _CORES for thread in (0, _SOCKETS * _CORES))
        return f"{first}-{first + _CORES - 1},{second}-{second + _CORES - 1}"

    def placements(self) -> list[placing.Placement]:
        """Return slices and numbers of its MIG instances."""
        if self.starts:
            chosen = zip(self.instances, self.starts, strict=True)
            return [placing.placed(profile, self.model, start) for profile, start in chosen]
        return placing.place(self.instances, self.model, where="mig")

    def mig_devices(self) -> list[tuple[placing.Placement, models.MigProfile]]:
        """Return the instances that are a MIG device each, with their place: a compute instance fills them."""
        pairs = zip(self.placements(), self.instances, strict=True)
        return [(place, profile) for place, profile in pairs if place.number not in self.bare]

    def usable_instances(self) -> list[tuple[placing.Placement, models.MigProfile]]:
        """Return the instances that have compute instances, of any size, each with its place."""
        if not self.compute:
            return self.mig_devices()
        pairs, shared = zip(self.placements(), self.instances, strict=True), {item.within for item in self.compute}
        return [pair for pair in pairs if pair[0].number not in self.bare or pair[0].number in shared]

    def first_instance(self) -> tuple[placing.Placement, models.MigProfile] | None:
        """Return the instance, with its place, that a program on all of the card gets; None if it has none.

        It is that of the MIG device that `nvidia-smi -L` lists first.
        """
        return min(self.usable_instances(), key=lambda pair: pair[0].number, default=None) if self.instances else None

    def part_uuid(self, number: int) -> str:
        """Return the UUID of a MIG instance, without a prefix: that of the first MIG device in it."""
        first = min((item.number for item in self.compute if item.within == number), default=0)
        return part_id(self.uuid, number, first).removeprefix(MIG_PREFIX)


def part_id(gpu: str, number: int, compute: int = 0) -> str:
    """Return the id of a MIG device of a GPU: a UUID of version 5, made in a third of `uuid.uuid5`'s time.

    `number` is that of its instance, `compute` that of its compute instance.
    """
    name = f"{gpu}/{number}/{compute}" if compute else f"{gpu}/{number}"
    digest = hashlib.sha1(_NAMESPACE.bytes + name.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{MIG_PREFIX}{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def compute_shares(device: Device, number: int) -> dict[int, float]:
    """Return the compute instances that share an instance of a device, by number, and how much of it each has."""
    mine = [item for item in device.compute if item.within == number]
    if not mine:
        return {}
    pairs = zip(device.placements(), device.instances, strict=True)
    profile = next(profile for place, profile in pairs if place.number == number)
    kinds = {kind.number: kind for kind in computing.kinds(profile, device.model)}
    whole = placing.multiprocessors(profile, device.model) or 1
    return {item.number: min(1.0, kinds[item.kind].multiprocessors / whole) for item in mine}


LabelName = Annotated[str, msgspec.Meta(pattern="^(?!__)[a-zA-Z_][a-zA-Z0-9_]*\\Z", max_length=vocabulary.MAX_NAME)]
LabelValue = Annotated[str, msgspec.Meta(max_length=1024)]


class GpuEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of one model or product: how many, their memory if it differs, and their MIG instances by profile.

    `labels` are added to all series of the devices.
    """

    type: str
    count: Annotated[int, msgspec.Meta(ge=1, le=vocabulary.MAX_MACHINE_GPUS)] = 1
    memory: str | int | None = None
    mig: tuple[str, ...] = ()
    labels: Annotated[dict[LabelName, LabelValue], msgspec.Meta(max_length=32)] = {}


class BoxConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration of a machine: its devices, in order."""

    gpus: Annotated[tuple[GpuEntry, ...], msgspec.Meta(min_length=1, max_length=10_000)]


def build(config: BoxConfig, catalog: models.Catalog, *, node: str) -> list[Device]:
    """Return the devices of a machine; a product that is not in the catalog keeps its name and memory."""
    found: list[Device] = []
    for number, entry in enumerate(config.gpus):
        where = f"gpus[{number}]"
        model = model_of(entry, catalog, where)
        instances = _instances(entry, model, where)
        if len(found) + entry.count > vocabulary.MAX_MACHINE_GPUS:
            raise errors.InputError(f"{where}.count", f"more than {vocabulary.MAX_MACHINE_GPUS} devices")
        found += (
            device(node, index, model, instances=instances, labels=entry.labels)
            for index in range(len(found), len(found) + entry.count)
        )
    return found


def mebibytes(text: Any, *, where: str) -> int:
    """Return an amount of memory in MiB: `12GB` is 12e9 bytes, `12GiB` is binary, a bare number is MiB."""
    written = str(text).strip() if isinstance(text, str | int | float) else ""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)(?:\s*([KMGT]i?B|B))?", written)
    if found is None:
        raise errors.InputError(
            where, f"{errors.shown(text)} is no amount of memory; must be such as 80GB or 40GiB, or a number of MiB"
        )
    amount = int(float(found[1]) * _UNITS[found[2] or ""])
    if not 1 <= amount <= vocabulary.MAX_MEMORY_MIB:
        raise errors.InputError(where, f"{errors.shown(text)} must be from 1 MiB to 100 TB")
    return amount


def model_of(entry: GpuEntry, catalog: models.Catalog, where: str) -> models.Model:
    """Return the model of an entry; raises `InputError` if it is not in the catalog and has no memory."""
    memory = None if entry.memory is None else mebibytes(entry.memory, where=f"{where}.memory")
    if memory is None and catalog.find(entry.type) is None:
        raise errors.InputError(
            f"{where}.memory", f"{errors.shown(entry.type)} is not in the catalog; specify its memory"
        )
    return named(entry.type, memory, catalog)


def named(
    product: str,
    memory: int | None,
    catalog: models.Catalog,
    *,
    like: models.Model | None = None,
    facts: Mapping[str, str] = {},
) -> models.Model:
    """Return the model of a product, with its own memory (MiB) and facts.

    A product that is not in the catalog behaves like the model `like`, or like the default model: then its architecture
    and MIG profiles are unknown unless they are among `facts`.
    """
    known = catalog.find(product) or like
    base = known or catalog.models[vocabulary.DEFAULT_MODEL]
    changes: dict[str, Any] = {**(_UNKNOWN if known is None else {}), **facts}
    if product != base.key:
        changes["product"] = product
    if memory is not None and memory != base.memory_mib.total:
        reserved = min(base.memory_mib.reserved, memory // 50)
        changes["memory_mib"] = msgspec.structs.replace(base.memory_mib, total=memory, reserved=reserved)
    changes = {name: value for name, value in changes.items() if value != getattr(base, name)}
    if not changes:
        return base
    key = f"{base.key}-{uuid.uuid5(_NAMESPACE, repr(sorted(changes.items()))).hex[:12]}"
    return msgspec.structs.replace(base, key=key, **changes)


def _instances(entry: GpuEntry, model: models.Model, where: str) -> tuple[models.MigProfile, ...]:
    """Return the instances of an entry in its order, or if they do not fit so, the largest first."""
    profiles = {profile.name: profile for profile in model.mig}
    for place, name in enumerate(entry.mig):
        if name not in profiles:
            known = ", ".join(profiles) or "none"
            raise errors.InputError(
                f"{where}.mig[{place}]", f"{model.product} has no profile {errors.shown(name)}; it has: {known}"
            )
        if entry.mig.count(name) > profiles[name].count:
            raise errors.InputError(f"{where}.mig", f"a card has at most {profiles[name].count} of {name}")
    found = tuple(profiles[name] for name in entry.mig)
    try:
        placing.place(found, model, where=f"{where}.mig")
    except errors.InputError:
        ordered = tuple(placing.largest_first(found, model))
        with contextlib.suppress(errors.InputError):
            placing.place(ordered, model, where=where)
            return ordered
        raise  # with the place in the list
    return found


def device(node: str, index: int, model: models.Model, *, name: str | None = None, **more: Any) -> Device:
    """Return a device of a node; its identifiers follow from the node's name and the index, but for a UUID `name`."""
    rest, slot = divmod(index, 7)
    domain, bus = rest // 36, 3 + 7 * (rest % 36)
    found: dict[str, Any] = {
        "uuid": name or f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}-{index}')}",
        "file": f"{_FILES[model.vendor]}{index}",
        "pci_bus_id": f"{domain:08X}:{bus:02X}:{slot:02X}.0",
        "serial": f"{1_650_000_000_000 + uuid.uuid5(_NAMESPACE, f'{node}/{index}').int % 10_000_000_000}",
        "numa": index * 2 // 8 % 2,
    }
    return Device(index=index, model=model, **{**found, **more})
