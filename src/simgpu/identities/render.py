"""Pages from a machine and an identity: text as the real exporter prints it.

What does not change from step to step (names, labels) is kept as text; a page is that text with numbers between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat

import numpy as np
import numpy.typing as npt

from simgpu.identities import identity as identities
from simgpu.identities import quantities
from simgpu.identities.view import Machine, Part, Pod, Values
from simgpu.topology.devices import Device

Labels = tuple[tuple[str, str], ...]
Row = tuple[Device, Part | None, Pod | None, str]
Prepared = list[tuple[identities.Family, Labels, str, Values]]

_CHUNK = 8192
_WHOLE_DEVICES = ("device", "rest")
_SOURCE = "\0"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class _Moment:
    """Who had what when a page was begun; a page that is sent slowly stays of that moment."""

    def __init__(self, machine: Machine) -> None:
        self.version = machine.version
        self.pods, self.part_pods, self.usages = machine.pods, machine.part_pods, machine.usages


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
        vendors = identity.vendors
        others = np.array([bool(vendors) and device.model.vendor not in vendors for device in machine.devices], bool)
        self._others = others if others.any() and not others.all() else None
        self._labels: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
        self._pods: Mapping[int, Pod] = {}
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
        now = _Moment(self.machine)
        if self._version != now.version:
            self._refresh(now)
        prepared = [
            (family, labels, kind, values)
            for family in self._families()
            for labels, kind, values in self._series(family, now)
        ]
        layout = self.identity.layout
        if layout.header is not None:
            yield f"{layout.header}\n".encode()
        if layout.order == "device":
            yield from self._by_device(prepared, now)
            return
        comments = _open_comments if open_metrics else _comments
        if layout.comments == "first":
            yield "".join(comments(family) for family in self.identity.families).encode()
        by_family = comments if layout.comments == "family" else None
        pieces = self._sorted(prepared, now) if layout.order == "sorted" else self._by_family(prepared, by_family, now)
        yield from (piece.encode() for piece in pieces)
        if open_metrics:
            yield b"# EOF\n"

    # Series.

    def _series(
        self, family: identities.Family, now: _Moment
    ) -> Iterator[tuple[tuple[tuple[str, str], ...], str, Values]]:
        """The series of a family: their labels, whether they are of devices or parts, and the values."""
        parted = bool(self.machine.parts)
        kinds = {
            "devices": ("device",),
            "parts": ("part",) if parted else (),
            "both": ("device", "part") if parted else ("device",),
            "parts-or-devices": ("rest", "part") if parted else ("device",),
            "undivided": ("rest",) if parted else ("device",),
            "node": ("node",),
            "workloads": ("workload",),
        }[family.of]
        for dimension in family.dimensions or (identities.Dimension({}),):
            told = {name: f"{_SOURCE}{source}" for name, source in family.information.items()}
            labels = tuple({**family.labels, **dimension.labels, **told}.items())
            scale = family.scale if dimension.scale is None else dimension.scale
            for kind in kinds:
                values = self._values(kind, dimension.value or family.value, now) * scale + family.offset
                if len(values) and not np.isnan(values).all():
                    yield labels, kind, values

    def _values(self, kind: str, name: str, now: _Moment) -> Values:
        if kind == "workload":
            return np.array([100 * item.usage if name == "usage" else item.memory_mib for item in now.usages])
        if kind == "part":
            return self._masked(quantities.of_parts(self.machine, name), self.machine.parent)
        values = self._masked(self._lookup(self.machine, name), slice(None))
        if kind == "rest":  # devices that have no parts
            values = values.copy()
            values[np.unique(self.machine.parent)] = np.nan
        return values[:1] if kind == "node" else values

    def _masked(self, values: Values, devices: npt.NDArray[np.intp] | slice) -> Values:
        """An exporter shows its own vendor's devices only."""
        if self._others is None:
            return values
        return np.where(self._others[devices], np.nan, values)

    def _lines(
        self, family: identities.Family, labels: Labels, kind: str, values: Values, now: _Moment
    ) -> Iterator[str]:
        texts = self._texts(kind, labels, now)
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

    def _families(self) -> Sequence[identities.Family]:
        """In the order in which they are printed."""
        families = self.identity.families
        return (
            sorted(families, key=lambda item: f"{item.name}{{") if self.identity.layout.order == "sorted" else families
        )

    def _sorted(self, prepared: Prepared, now: _Moment) -> Iterator[str]:
        """Lines in their order, one family at a time."""
        for _, group in groupby(prepared, key=lambda item: item[0].name):
            text = "".join(piece for item in group for piece in self._lines(*item, now))
            yield "".join(sorted(text.splitlines(keepends=True)))

    def _by_family(
        self, prepared: Prepared, comments: Callable[[identities.Family], str] | None, now: _Moment
    ) -> Iterator[str]:
        before = None
        for family, labels, kind, values in prepared:
            if comments is not None and family.name != before:
                yield comments(family)
                before = family.name
            yield from self._lines(family, labels, kind, values, now)

    def _by_device(self, prepared: Prepared, now: _Moment) -> Iterator[bytes]:
        columns = [
            (
                family.name,
                self._texts(kind, labels, now),
                list(_numbers(values, family.form, self.identity.layout.numbers)),
            )
            for family, labels, kind, values in prepared
        ]
        for row in range(len(self.machine.devices)):
            yield "".join(f"{name}{texts[row]}{numbers[row]}\n" for name, texts, numbers in columns).encode()

    # Labels.

    def _refresh(self, now: _Moment) -> None:
        """Only devices whose pod is another have other labels now. A page under way keeps the lists that it has."""
        before, self._pods, self._version = self._pods, now.pods, now.version
        changed = [place for place in before.keys() | now.pods.keys() if before.get(place) != now.pods.get(place)]
        for kind, labels in list(self._labels):
            texts = self._labels.pop((kind, labels)).copy()
            if kind in _WHOLE_DEVICES:
                for place in changed:
                    row = (self.machine.devices[place], None, now.pods.get(place), "")
                    texts[place] = self._text(row, labels, whole=True)
                self._labels[kind, labels] = texts

    def _texts(self, kind: str, labels: Labels, now: _Moment) -> list[str]:
        """The text between a family's name and the number, for each device or part."""
        known = self._labels.get((kind, labels)) if now.version == self._version else None
        if known is None or kind == "workload":
            known = [self._text(row, labels, whole=kind != "node") for row in self._rows(kind, now)]
            room = len(known) <= _CHUNK or len(self._labels) < 4
            if room and kind != "workload" and now.version == self._version:
                self._labels[kind, labels] = known
        return known

    def _rows(self, kind: str, now: _Moment) -> Iterator[Row]:
        machine = self.machine
        if kind == "part":
            for part in machine.parts:
                pod = now.part_pods.get(part.handle) or now.pods.get(part.device)
                yield machine.devices[part.device], part, pod, ""
        elif kind == "workload":
            sharing: dict[int, int] = {}
            for item in now.usages:
                sharing[item.device] = sharing.get(item.device, -1) + 1
                yield machine.devices[item.device], None, item.pod, str(sharing[item.device])
        elif kind == "node":
            yield machine.devices[0], None, None, ""
        else:
            for position, device in enumerate(machine.devices):
                yield device, None, now.pods.get(position), ""

    def _text(self, row: Row, labels: Labels, *, whole: bool) -> str:
        found: dict[str, str] = {}
        own = self._own(row, labels)
        for name, source in self.identity.labels.items():
            if name == identities.FAMILY:
                found.update(own)
                continue
            if name in own or (not whole and source != "hostname"):  # what is told of the node has no device's labels
                continue
            value = source[1:] if source.startswith("=") else self._label(source, *row)
            if value or name in self.identity.keep_empty:
                found[name] = value
        if identities.FAMILY not in self.identity.labels:
            found.update(own)
        items = sorted(found.items()) if self.identity.sort_labels else found.items()
        text = self.identity.layout.separator.join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in items)
        return f"{{{text}}} " if text else " "

    def _own(self, row: Row, labels: Labels) -> dict[str, str]:
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
        whole = np.floor(values + 0.5)
        return map(str, whole.astype(np.int64).tolist()) if style == "plain" else map(_STYLES[style], whole.tolist())
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
