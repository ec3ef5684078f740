"""An identity: the names, labels and layout of one exporter's page, as data.

Ours are YAML files in `data`; users write their own in the same form. A reader of another form can be passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from simgpu import errors
from simgpu.catalog import models
from simgpu.catalog.facts import Facts, Number
from simgpu.machines import documents, quantities

DATA = Path(__file__).parent / "data"

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MAX_BYTES = 1 << 20

SOURCES = (
    "index", "uuid", "short_uuid", "serial", "file", "pci_bus_id", "pci_short", "product", "hostname", "driver", "cuda",
    "vendor", "pci_device", "device_id", "subsystem_id", "architecture", "compute_capability", "vbios", "memory_type",
    "numa", "cpus", "card", "summed", "averaged", "vgpu", "workload", "pod", "namespace", "container", "pod_uid",
    "part", "part_profile", "part_uuid", "tile", "on_tile", "lanes", "port", "remote_port", "peer", "peer_file",
    "peer_pci_short",
)  # fmt: skip
FAMILY = "*"


class Dimension(Facts, frozen=True):
    """One of several series of a family per device: its labels, and the value and scale where they differ."""

    labels: dict[str, str]
    value: str | None = None
    scale: Number | None = None


class Family(Facts, frozen=True):
    """A metric family: one series for each thing of the kind `of`.

    `both` are devices and their parts, `cards` those and the boards that carry them, `undivided` devices without parts.
    `links` go from one device to another, `topology` are these and each device's to itself, `ports` their single ports.
    `information` are labels of its own that come from the device, or `=text`. A value is the quantity times `scale`
    plus `offset`, rounded to `digits` decimal places; negative ones are before the point.
    """

    name: str
    value: str
    help: str = ""
    type: Literal["gauge", "counter", "untyped"] = "gauge"
    form: Literal["int", "fixed", "shortest"] = "shortest"
    scale: Number = 1.0
    offset: Number = 0.0
    digits: Annotated[int, msgspec.Meta(ge=-12, le=12)] | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    dimensions: tuple[Dimension, ...] = ()
    information: dict[str, str] = msgspec.field(default_factory=dict)
    of: Literal[
        "devices", "parts", "both", "cards", "parts-or-devices", "undivided", "links", "topology", "ports", "node",
        "workloads",
    ] = "devices"  # fmt: skip


class Layout(Facts, frozen=True):
    """The format of the page."""

    comments: Literal["family", "first", "none"] = "family"
    order: Literal["family", "sorted", "device"] = "family"
    separator: Literal[",", ", "] = ","
    header: str | None = None
    timestamps: bool = False
    numbers: Literal["plain", "go", "python"] = "plain"


class Identity(Facts, frozen=True):
    """An exporter. Its labels are printed in the order in which they are listed, or sorted after `first_labels`.

    `keep_empty` labels are printed even without a value, `target_labels` on every series. `vendors` limits the devices.
    """

    about: str
    labels: dict[str, str]
    families: tuple[Family, ...]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 9400
    sort_labels: bool = False
    first_labels: tuple[str, ...] = ()
    keep_empty: tuple[str, ...] = ()
    target_labels: tuple[str, ...] = ()
    layout: Layout = Layout()
    openmetrics: bool = False
    vendors: tuple[str, ...] = ()


def names() -> list[str]:
    """Return the names of the built-in identities."""
    return sorted(path.stem for path in DATA.glob("*.yaml"))


def load(name: str, *, from_json: Callable[[Path], Identity] | None = None) -> Identity:
    """Return an identity by name, or from a file; `from_json` reads files that end in `.json`."""
    path = DATA / f"{name}.yaml"
    if "/" not in name and path.exists():
        return _from_yaml(path)
    path = Path(name)
    if not path.is_file():
        raise errors.InputError("--identity", f"no identity {name!r}; there are: {', '.join(names())}, or a file")
    if path.stat().st_size > _MAX_BYTES:
        raise errors.InputError(str(path), f"larger than {_MAX_BYTES} bytes")
    if from_json is not None and path.suffix == ".json":
        return from_json(path)
    return _from_yaml(path)


def _from_yaml(path: Path) -> Identity:
    document = models.parse_yaml(path)
    base = document.pop("base", None)
    if base is not None:
        document = _derived(document, base, path)
    return checked(errors.convert(document, Identity, field=str(path)), where=str(path))


def _derived(document: dict[str, Any], base: Any, path: Path) -> dict[str, Any]:
    """Merge a file into its `base`: fields are replaced, `change` alters single families, `more` adds some."""
    if not isinstance(base, str) or base not in names():
        raise errors.InputError(str(path), f"base: no identity {errors.shown(base)}; there are: {', '.join(names())}")
    parent: dict[str, Any] = models.parse_yaml(DATA / f"{base}.yaml")
    change, more = document.pop("change", None) or {}, document.pop("more", None) or []
    if not isinstance(change, dict) or not all(isinstance(item, dict) for item in change.values()):
        raise errors.InputError(f"{path}: change", "must be a mapping from families to what differs about them")
    if not isinstance(more, list):
        raise errors.InputError(f"{path}: more", "must be a list of families")
    known = {family["name"] for family in parent["families"]}
    for name in change:
        if name not in known:
            raise errors.InputError(f"{path}: change.{name}", f"{base} has no such family")
    families = [{**family, **change.get(family["name"], {})} for family in parent["families"]]
    result = {**parent, "families": [*families, *more], **document}
    result.pop("base", None)
    return result


def limit_names(identity: Identity) -> dict[str, documents.LimitName]:
    """Return the names that an exporter gives to quantities which workloads can have limits of."""
    return {
        family.name: documents.LimitName(family.value, family.scale, family.offset)
        for family in identity.families
        if family.value in documents.LIMITABLE and family.scale
    }


def with_labels(identity: Identity, names: Iterable[str], *, where: str) -> Identity:
    """Return the identity with labels that devices have of their own, but for those that it shows already."""
    more = [name for name in dict.fromkeys(names) if f"@{name}" not in identity.labels.values()]
    own = {*identity.labels}
    for family in identity.families:
        own.update(family.labels, family.information, *(item.labels for item in family.dimensions))
    if (taken := next((name for name in more if name in own), None)) is not None:
        raise errors.InputError(where, f"the exporter has a label {taken} already; choose another name")
    return msgspec.structs.replace(identity, labels={**identity.labels, **{name: f"@{name}" for name in more}})


def with_workloads(identity: Identity) -> Identity:
    """Return the identity with device series for each workload too, if it has a label that distinguishes them."""
    if "vgpu" not in identity.labels.values():
        return identity
    families: list[Family] = []
    for family in identity.families:
        families.append(family)
        if family.of in ("devices", "both", "parts-or-devices", "undivided"):
            families.append(msgspec.structs.replace(family, of="workloads"))
    return msgspec.structs.replace(identity, families=tuple(families))


def checked(identity: Identity, *, where: str) -> Identity:
    """Return the identity if names are valid and unique, and quantities and sources exist; errors name `where`."""
    seen: set[str] = set()
    for index, family in enumerate(identity.families):
        _check_family(family, f"{where}: families[{index}]")
        if family.name in seen:
            raise errors.InputError(f"{where}: families", f"{family.name} is listed twice")
        seen.add(family.name)
    for name, source in identity.labels.items():
        if name != FAMILY:
            _check_labels({name: source}, f"{where}: labels")
            _check_source(source, f"{where}: labels.{name}")
    return identity


def _check_family(family: Family, place: str) -> None:
    if not _METRIC.fullmatch(family.name):
        raise errors.InputError(f"{place}.name", f"{family.name!r} is not a valid metric name")
    for value in (family.value, *(item.value for item in family.dimensions if item.value)):
        if value not in quantities.QUANTITIES:
            known = ", ".join(sorted(quantities.QUANTITIES))
            raise errors.InputError(f"{place}.value", f"no quantity {value!r}; there are: {known}")
    for name, source in family.information.items():
        _check_source(source, f"{place}.information.{name}")
    for labels in (family.labels, family.information, *(item.labels for item in family.dimensions)):
        _check_labels(labels, f"{place}.labels")


def _check_source(source: str, where: str) -> None:
    if source not in SOURCES and not source.startswith(("=", "@")):
        known = f"{', '.join(SOURCES)}, =text, or @name for a label of the devices' configuration"
        raise errors.InputError(where, f"no source {source!r}; there are: {known}")


def _check_labels(labels: dict[str, str], where: str) -> None:
    for name in labels:
        if not _LABEL.fullmatch(name):
            raise errors.InputError(where, f"{name!r} is not a valid label name")
