"""fakedev-exporter's identity files: JSON maps of names (v1), or with a type, unit and format per family (v2)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

from simgpu import errors
from simgpu.catalog.facts import Number
from simgpu.fakedev import files
from simgpu.identities.identity import FAMILY, Dimension, Family, Identity, Layout, checked

_SUBDEVICE = "subdevice"
_MAX_SERIES = 1000  # of one family and device
_POD_LABELS = ("pod", "namespace", "container", "pod_uid")
_ABSTRACT_LABELS = {"file": "file", "addr": "pci_short", "pciid": "pci_device", "name": "product", "uuid": "uuid"}


class _FamilyV2(msgspec.Struct, rename="pascal"):
    name: str = ""
    type: Literal["gauge", "counter", "untyped"] = "gauge"
    help: str = ""
    scale: Number = 1.0
    offset: Number = 0.0
    format: Literal["%d", "%f", "shortest"] = "shortest"
    dims: tuple[dict[str, str], ...] | dict[str, list[str]] = ()


class _IdentityFile(msgspec.Struct, rename="pascal"):
    """An identity file of either version; v1 has the first three maps only."""

    device_label_map: dict[str, str] = {}
    metric_map: dict[str, str] = {}
    metric_labels: dict[str, dict[str, str]] = {}
    families: dict[str, _FamilyV2] = {}
    pod_labels: dict[str, str] = {}
    label_order: tuple[str, ...] = ()
    timestamps: bool = False
    port: int = 9999


def read(path: Path, *, own: Collection[str] = ()) -> Identity:
    """Read an identity file for use with our own devices; `own` are labels that these have in addition."""
    return from_json(files.read(path), where=str(path), own=own)


def from_json(
    document: Any, *, where: str, compatible: bool = False, own: Collection[str] = (), subdevices: bool = False
) -> Identity:
    """Return the identity that a document describes; errors name `where`.

    With `compatible`, the page has the original's layout, and labels come from the original's device files; those of
    `subdevices` have the label `subdevice` in addition. Otherwise `own` are labels that devices have of their own.
    """
    form = files.convert(document, _IdentityFile, where=where)
    for name in form.metric_labels:
        if name not in form.metric_map:
            raise errors.InputError(f"{where}: MetricLabels.{name}", "is not in MetricMap")
    known = {_SUBDEVICE: "part"} if compatible else {**_ABSTRACT_LABELS, **{name: f"@{name}" for name in own}}
    labels = {(out or name): known.get(name, f"@{name}") for name, out in form.device_label_map.items()}
    if subdevices and "part" not in labels.values():
        labels[_SUBDEVICE] = "part"
    if not compatible and (unknown := sorted(name for name in form.device_label_map if name not in known)):
        problem = f"no such label for {', '.join(unknown)}; there are: {', '.join(known)}"
        raise errors.InputError(f"{where}: DeviceLabelMap", problem)
    mapped = {**{name: item.name for name, item in form.families.items()}, **form.metric_map}
    outputs = sorted(((out or name, name) for name, out in mapped.items()), key=lambda item: item[0])
    families = tuple(_family(name, out, form, where) for out, name in outputs)
    pods = {(out or name): name for name, out in form.pod_labels.items()}
    for name in form.pod_labels:
        if name not in _POD_LABELS:
            raise errors.InputError(f"{where}: PodLabels.{name}", f"there are: {', '.join(_POD_LABELS)}")
    described = {**{name: labels[name] for name in sorted(labels)}, FAMILY: FAMILY, **pods}
    if form.label_order:
        listed = [name for name in form.label_order if name in described]
        described = {name: described[name] for name in (*listed, *(name for name in described if name not in listed))}
    layout = Layout(timestamps=form.timestamps)
    if compatible:
        layout = Layout(comments="none", order="device", separator=", ", header="# fakedev-exporter v0.1", numbers="go")
    identity = Identity(
        about="an identity of the user's", labels=described, families=families, port=form.port, layout=layout
    )
    return identity if compatible else checked(identity, where=where)


def _dimensions(dims: tuple[dict[str, str], ...] | dict[str, list[str]]) -> Iterable[dict[str, str]]:
    """Return the listed sets of labels, or every combination of the values of each label."""
    if not isinstance(dims, dict):
        return dims
    return (dict(zip(dims, values, strict=True)) for values in itertools.product(*dims.values()) if values)


def _family(name: str, out: str, form: _IdentityFile, where: str) -> Family:
    more = form.families.get(name, _FamilyV2())
    dimensions = list(itertools.islice(_dimensions(more.dims), _MAX_SERIES + 1))
    if len(dimensions) > _MAX_SERIES:
        raise errors.InputError(f"{where}: Families.{name}.Dims", f"more than {_MAX_SERIES} sets of labels")
    forms: dict[str, Literal["int", "fixed", "shortest"]] = {"%d": "int", "%f": "fixed", "shortest": "shortest"}
    return Family(
        name=more.name or out,
        value=name,
        help=more.help,
        type=more.type if form.families else "untyped",
        form=forms[more.format],
        scale=more.scale,
        offset=more.offset,
        labels=dict(sorted(form.metric_labels.get(name, {}).items())),
        dimensions=tuple(Dimension(labels) for labels in dimensions),
    )
