"""fakedev-exporter's identity files: JSON maps of names (v1), or with a type, unit and format per family (v2)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from simgpu import errors
from simgpu.fakedev import files
from simgpu.identities.identity import FAMILY, Dimension, Family, Identity, Layout, checked

_POD_LABELS = ("pod", "namespace", "container", "pod_uid")
_ABSTRACT_LABELS = {"file": "file", "addr": "pci_short", "pciid": "pci_device", "name": "product", "uuid": "uuid"}


class _FamilyV2(msgspec.Struct, rename="pascal"):
    name: str = ""
    type: Literal["gauge", "counter", "untyped"] = "gauge"
    help: str = ""
    scale: float = 1.0
    offset: float = 0.0
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


def read(path: Path) -> Identity:
    """Read an identity file for use with our own devices."""
    try:
        document = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise errors.InputError(str(path), f"not JSON: {error}") from None
    return from_json(document, where=str(path))


def from_json(document: Any, *, where: str, compatible: bool = False) -> Identity:
    """Return the identity that a document describes; errors name `where`.

    With `compatible`, the page has the original's layout, and labels come from the original's device files.
    """
    try:
        form = msgspec.convert(_members(document), _IdentityFile)
    except msgspec.ValidationError as error:
        raise errors.InputError(where, str(error).replace("`$.", "`")) from None
    for name in form.metric_labels:
        if name not in form.metric_map:
            raise errors.InputError(f"{where}: MetricLabels.{name}", "is not in MetricMap")
    known = {} if compatible else _ABSTRACT_LABELS  # its labels come from its device files
    labels = {(out or name): known.get(name, f"@{name}") for name, out in form.device_label_map.items()}
    mapped = {**{name: item.name for name, item in form.families.items()}, **form.metric_map}
    families = tuple(_family(name, out or name, form) for name, out in sorted(mapped.items(), key=_by_output))
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
    return identity if compatible else checked(_known(identity, where), where=where)


def _known(identity: Identity, where: str) -> Identity:
    unknown = [name for name, source in identity.labels.items() if source.startswith("@")]
    if unknown:
        known = ", ".join(_ABSTRACT_LABELS)
        raise errors.InputError(
            f"{where}: DeviceLabelMap", f"no such label for {', '.join(unknown)}; there are: {known}"
        )
    return identity


def _dimensions(dims: tuple[dict[str, str], ...] | dict[str, list[str]]) -> Iterator[dict[str, str]]:
    """Label sets as they are listed, or every combination of the values of each label."""
    if not isinstance(dims, dict):
        yield from dims
    elif dims:
        for values in itertools.product(*dims.values()):
            yield dict(zip(dims, values, strict=True))


def _by_output(item: tuple[str, str]) -> str:
    return item[1] or item[0]


def _family(name: str, out: str, form: _IdentityFile) -> Family:
    more = form.families.get(name, _FamilyV2())
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
        dimensions=tuple(Dimension(labels) for labels in _dimensions(more.dims)),
    )


def _members(document: Any) -> Any:
    if not isinstance(document, dict):
        return document
    return files.renamed(document, _IdentityFile.__struct_encode_fields__)
