"""Pages from a machine and an identity: text as the real exporter prints it.

What does not change from step to step (names, labels) is kept as text; a page is that text with numbers between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

import numpy as np

from simgpu.identities import identity as identities
from simgpu.identities import quantities
from simgpu.identities.view import Machine, Part, Pod, Values
from simgpu.topology.devices import Device

Prepared = list[tuple[identities.Family, tuple[tuple[str, str], ...], str, Values]]

_CHUNK = 8192
_SOURCE = "\0"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Renderer:
    """Renders one identity of one machine."""

    def __init__(
        self,
        machine: Machine,
        identity: identities.Identity,
        lookup: Callable[[Machine, str], Values] = quantities.of_devices,
    ) -> None:
        self.machine = machine
        self.identity = identity
        self._lookup = lookup
        self._labels: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
        self._version = -1

    def page(self) -> bytes:
        """The whole page."""
        return b"".join(self.chunks())

    def size(self) -> int:
        """Series on the page, roughly: what decides whether it is kept or streamed."""
        each = sum(max(1, len(family.dimensions)) for family in self.identity.families)
        return each * (len(self.machine.devices) + len(self.machine.parts))

    def chunks(self, *, open_metrics: bool = False) -> Iterator[bytes]:
        """The page in pieces. All values are taken before the first piece, so that all pieces are of one step.

        `open_metrics` is the newer text format; only for identities whose exporter speaks it.
        """
        if self._version != self.machine.version:
            self._labels.clear()
            self._version = self.machine.version
        prepared = [
            (family, labels, kind, values)
            for family in self.identity.families
            for labels, kind, values in self._series(family)
        ]
        layout = self.identity.layout
        if layout.header is not None:
            yield f"{layout.header}\n".encode()
        if layout.order == "device":
            yield from self._by_device(prepared)
            return
        comments = _open_comments if open_metrics else _comments
        if layout.comments == "first":
            yield "".join(comments(family) for family in self.identity.families).encode()
        by_family = comments if layout.comments == "family" else None
        pieces = self._by_family(prepared, by_family)
        if layout.order == "sorted":
            yield "".join(sorted("".join(pieces).splitlines(keepends=True))).encode()
        else:
            yield from (piece.encode() for piece in pieces)
        if open_metrics:
            yield b"# EOF\n"

    # Series.

    def _series(self, family: identities.Family) -> Iterator[tuple[tuple[tuple[str, str], ...], str, Values]]:
        """The series of a family: their labels, whether they are of devices or parts, and the values."""
        parted = bool(self.machine.parts)
        kinds = {
            "devices": ("device",),
            "parts": ("part",) if parted else (),
            "both": ("device", "part") if parted else ("device",),
            "parts-or-devices": ("rest", "part") if parted else ("device",),
            "node": ("node",),
            "workloads": ("workload",),
        }[family.of]
        for dimension in family.dimensions or (identities.Dimension({}),):
            told = {name: f"{_SOURCE}{source}" for name, source in family.information.items()}
            labels = tuple({**family.labels, **dimension.labels, **told}.items())
            scale = family.scale if dimension.scale is None else dimension.scale
            for kind in kinds:
                values = self._values(kind, dimension.value or family.value) * scale + family.offset
                if len(values):
                    yield labels, kind, values

    def _values(self, kind: str, name: str) -> Values:
        if kind == "part":
            return quantities.of_parts(self.machine, name)
        if kind == "workload":
            return np.array([100 * item.usage if name == "usage" else item.memory_mib for item in self.machine.usages])
        values = self._lookup(self.machine, name)
        if kind == "rest":  # devices that have no parts
            values = values.copy()
            values[np.unique(self.machine.parent)] = np.nan
        return values[:1] if kind == "node" else values

    def _lines(
        self, family: identities.Family, labels: tuple[tuple[str, str], ...], kind: str, values: Values
    ) -> Iterator[str]:
        texts = self._texts(kind, labels)
        absent = np.isnan(values)
        kept: Sequence[str] = texts
        if absent.any():
            rows = np.flatnonzero(~absent)
            kept, values = [texts[row] for row in rows], values[rows]
        end = f" {round(self.machine.time * 1000)}\n" if self.identity.layout.timestamps else "\n"
        for start in range(0, len(kept), _CHUNK):
            numbers = _numbers(values[start : start + _CHUNK], family.form, self.identity.layout.numbers)
            some = kept[start : start + _CHUNK]
            yield "".join(chain.from_iterable(zip(repeat(family.name), some, numbers, repeat(end))))

    def _by_family(self, prepared: Prepared, comments: Callable[[identities.Family], str] | None) -> Iterator[str]:
        before = None
        for family, labels, kind, values in prepared:
            if comments is not None and family.name != before:
                yield comments(family)
                before = family.name
            yield from self._lines(family, labels, kind, values)

    def _by_device(self, prepared: Prepared) -> Iterator[bytes]:
        columns = [
            (family.name, self._texts(kind, labels), list(_numbers(values, family.form, self.identity.layout.numbers)))
            for family, labels, kind, values in prepared
        ]
        for row in range(len(self.machine.devices)):
            yield "".join(f"{name}{texts[row]}{numbers[row]}\n" for name, texts, numbers in columns).encode()

    # Labels.

    def _texts(self, kind: str, labels: tuple[tuple[str, str], ...]) -> list[str]:
        """The text between a family's name and the number, for each device or part."""
        known = self._labels.get((kind, labels))
        if known is None or kind == "workload":
            known = [self._text(row, labels) for row in self._rows(kind)]
            if len(known) <= _CHUNK or len(self._labels) < 4:
                self._labels[kind, labels] = known
        return known

    def _rows(self, kind: str) -> Iterator[tuple[Device, Part | None, Pod | None, str]]:
        machine = self.machine
        if kind == "part":
            for part in machine.parts:
                yield machine.devices[part.device], part, machine.pods.get(part.device), ""
        elif kind == "workload":
            for number, item in enumerate(machine.usages):
                yield machine.devices[item.device], None, item.pod, str(number)
        elif kind == "node":
            yield machine.devices[0], None, None, ""
        else:
            for device in machine.devices:
                yield device, None, machine.pods.get(device.index), ""

    def _text(self, row: tuple[Device, Part | None, Pod | None, str], labels: tuple[tuple[str, str], ...]) -> str:
        found: dict[str, str] = {}
        own = self._own(row, labels)
        for name, source in self.identity.labels.items():
            if name == identities.FAMILY:
                found.update(own)
                continue
            if name in own:
                continue
            value = source[1:] if source.startswith("=") else self._label(source, *row)
            if value or name in self.identity.keep_empty:
                found[name] = value
        if identities.FAMILY not in self.identity.labels:
            found.update(own)
        items = sorted(found.items()) if self.identity.sort_labels else found.items()
        text = self.identity.layout.separator.join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in items)
        return f"{{{text}}} " if text else " "

    def _own(
        self, row: tuple[Device, Part | None, Pod | None, str], labels: tuple[tuple[str, str], ...]
    ) -> dict[str, str]:
        """A family's own labels; those that come from the device are looked up."""
        return {name: self._label(value[1:], *row) if value.startswith(_SOURCE) else value for name, value in labels}

    def _label(self, source: str, device: Device, part: Part | None, pod: Pod | None, vgpu: str) -> str:
        if source.startswith("@"):
            return device.labels.get(source[1:], "")
        if source in _OF_DEVICE:
            return _OF_DEVICE[source](device)
        if source in ("hostname", "vgpu"):
            return vgpu if source == "vgpu" else self.machine.hostname
        if source in ("part", "part_profile"):
            return "" if part is None else (str(part.id) if source == "part" else part.profile)
        if source in ("summed", "averaged"):
            whole = "sum" if source == "summed" else "avg"
            return "direct" if part is not None or device.model.tiles == 1 else whole
        return (
            {"pod": pod.name, "namespace": pod.namespace, "container": pod.container, "pod_uid": pod.uid}[source]
            if pod
            else ""
        )


_OF_DEVICE: dict[str, Callable[[Device], str]] = {
    "index": lambda device: str(device.index),
    "uuid": lambda device: device.uuid,
    "short_uuid": lambda device: device.uuid.removeprefix("GPU-"),
    "serial": lambda device: device.serial,
    "file": lambda device: device.file,
    "pci_bus_id": lambda device: device.pci_bus_id,
    "pci_short": lambda device: device.pci_bus_id[4:].lower(),
    "product": lambda device: device.model.product,
    "driver": lambda device: device.model.driver or "",
    "vendor": lambda device: device.model.vendor,
    "pci_device": lambda device: f"0x{device.model.pci.device[2:6].lower()}",
    "device_id": lambda device: device.model.pci.device,
    "subsystem_id": lambda device: device.model.pci.subsystem or "",
    "architecture": lambda device: device.model.architecture,
    "compute_capability": lambda device: device.model.compute_capability or "",
    "vbios": lambda device: device.model.board.vbios if device.model.board else "",
    "numa": lambda device: str(device.numa),
}


def _comments(family: identities.Family) -> str:
    if family.type == "untyped" and not family.help:
        return ""
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {family.name} {text}\n# TYPE {family.name} {family.type}\n"


def _open_comments(family: identities.Family) -> str:
    name = family.name.removesuffix("_total") if family.type == "counter" else family.name
    kind = "unknown" if family.type == "untyped" else family.type
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _numbers(values: Values, form: str, style: str) -> Iterator[str]:
    if form == "int":
        return map(str, np.floor(values + 0.5).astype(np.int64).tolist())
    if form == "fixed":
        return map("%.6f".__mod__, values.tolist())
    return map(_STYLES[style], values.tolist())


def shortest(value: float) -> str:
    """As Prometheus libraries print numbers: whole ones without a point."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def go_number(value: float) -> str:
    """As Go prints the shortest form: with an exponent from 1e+06 on and below 1e-04."""
    size = abs(value)
    if size == 0 or 1e-4 <= size < 1e6:
        return repr(value).removesuffix(".0") if size else "0"
    digits, _, exponent = f"{float(value)!r}".partition("e")
    sign = "-" if value < 0 else ""
    plain = digits.lstrip("-").replace(".", "")
    stripped = plain.lstrip("0")
    power = (
        int(exponent or 0) + digits.lstrip("-").find(".") - 1 - (len(plain) - len(stripped))
        if "." in digits
        else int(exponent)
    )
    stripped = stripped.rstrip("0") or "0"
    mantissa = stripped[0] + (f".{stripped[1:]}" if len(stripped) > 1 else "")
    return f"{sign}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"


def python_number(value: float) -> str:
    """As Prometheus' Python library prints numbers: always with a point or an exponent."""
    return repr(value) if abs(value) < 1e6 else go_number(value)


_STYLES: dict[str, Callable[[float], str]] = {"plain": shortest, "go": go_number, "python": python_number}
