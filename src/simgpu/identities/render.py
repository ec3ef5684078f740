"""Renders the metrics page of a machine and an identity, as the real exporter prints it.

Text that does not change from step to step (names, labels) is cached; a page is that text with numbers inserted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simgpu.identities import identity as identities
from simgpu.identities import labels
from simgpu.machines import quantities
from simgpu.machines.machine import Machine, Usage, Values
from simgpu.machines.users import PodRef

_CHUNK = 8192
_WHOLE_DEVICES = ("device", "rest")
_KINDS: dict[str, tuple[str, ...]] = {
    "devices": ("device",),
    "parts": ("part",),
    "both": ("device", "part"),
    "cards": ("device", "part", "card"),
    "parts-or-devices": ("rest", "part"),
    "undivided": ("rest",),
    "links": ("links",),
    "topology": ("topology",),
    "ports": ("ports",),
    "node": ("node",),
    "workloads": ("workload",),
}
_SOURCES = {"node": ("hostname",), "card": ("hostname", "card")}  # label sources of series that are not about a device
_LINKED = ("links", "topology", "ports")  # kinds that are attributes of a machine
_FIRST_CARD = 0x80000001  # how XPU Manager numbers its own groups


class _Series(NamedTuple):
    """Series of a family that differ by row only."""

    family: identities.Family
    own: labels.Own
    kind: str
    values: Values


_Kept = dict[tuple[str, frozenset[str]], labels.Texts]  # by kind of row and hidden labels


class _Moment:
    """A snapshot of time, pods and texts: a page that is sent slowly stays consistent."""

    def __init__(self, machine: Machine) -> None:
        self.version, self.time = machine.version, machine.time
        self.pods, self.part_pods = machine.pods, machine.part_pods
        self.texts: _Kept = {}
        self.workload_texts: _Kept = {}
        self._machine = machine

    @functools.cached_property
    def usages(self) -> Sequence[Usage]:
        """Usage by workload; read before the first chunk, by the few identities that print it."""
        return self._machine.usages


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
        shown = np.arange(len(others)) if self._others is None else np.flatnonzero(~others)
        self._firsts = shown[np.unique(machine.node_of[shown], return_index=True)[1]]  # of each node
        self._texts: _Kept = {}
        self._pods: Mapping[int, PodRef] = {}
        self._version = -1

    def on(self, machine: Machine) -> Renderer:
        """Return a renderer of another machine; texts of devices that both have are reused."""
        new, now, old = Renderer(machine, self.identity, self._lookup), _Moment(machine), self.machine.devices
        if not old:
            return new
        known = {device.uuid: place for place, device in enumerate(old)}
        places = [known.get(device.uuid, 0) for device in machine.devices]
        changed = [
            place
            for place, (there, device) in enumerate(zip(places, machine.devices, strict=True))
            if old[there] is not device or self._pods.get(there) != now.pods.get(place)
        ]
        new._texts = new._carried(self._texts, changed, now, places)
        new._pods, new._version = now.pods, now.version
        return new

    def page(self) -> bytes:
        """Return the whole page."""
        return b"".join(self.chunks())

    @functools.cached_property
    def size(self) -> int:
        """The approximate number of series, which decides whether the page is cached or streamed."""
        machine, rows = self.machine, len(self.machine.devices) + len(self.machine.parts)
        return sum(
            max(1, len(family.dimensions)) * (len(getattr(machine, family.of)) if family.of in _LINKED else rows)
            for family in self.identity.families
        )

    def chunks(self, *, open_metrics: bool = False) -> Iterator[bytes]:
        """Yield the page in chunks. All values are read before the first chunk, so that all chunks are of one step.

        `open_metrics` is for identities whose exporter supports that format.
        """
        now = _Moment(self.machine)
        if self._version != now.version:
            self._refresh(now)
        now.texts = self._texts
        prepared = list(self._prepared(now))
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

    def _prepared(self, now: _Moment) -> Iterator[_Series]:
        """Yield all series of this step; equal values are shared."""
        known: dict[tuple[str, str, float, float, int | None], Values | None] = {}
        for family in self._families():
            looked_up = {
                name: source[1:] if source.startswith("=") else f"{labels.SOURCE}{source}"
                for name, source in family.information.items()
            }
            for dimension in family.dimensions or (identities.Dimension({}),):
                scale = family.scale if dimension.scale is None else dimension.scale
                for kind in _KINDS[family.of]:
                    key = (kind, dimension.value or family.value, scale, family.offset, family.digits)
                    if key not in known:
                        values = _scaled(self._values(kind, key[1], now), *key[2:])
                        known[key] = None if np.isnan(values).all() else values
                    if (found := known[key]) is not None:
                        yield _Series(
                            family, tuple({**family.labels, **dimension.labels, **looked_up}.items()), kind, found
                        )

    def _values(self, kind: str, name: str, now: _Moment) -> Values:
        machine = self.machine
        if kind == "workload":
            devices = np.array([item.device for item in now.usages], dtype=np.intp)
            return self._masked(quantities.of_workloads(machine, now.usages, name), devices)
        if kind == "part":
            return self._masked(quantities.of_parts(machine, name), machine.parent) if machine.parts else np.empty(0)
        if kind in _LINKED:
            listed = getattr(machine, kind)
            ends = np.array([link.device for link in listed], dtype=np.intp)
            return self._masked(quantities.of_links(machine, listed, name), ends)
        values = self._masked(self._lookup(machine, name), slice(None))
        if kind == "rest" and machine.parts:  # devices that have no parts
            values = values.copy()
            values[machine.parent] = np.nan
        return values[self._firsts] if kind == "node" else values

    def _masked(self, values: Values, devices: npt.NDArray[np.intp] | slice) -> Values:
        """Replace values of other vendors' devices by NaN."""
        if self._others is None:
            return values
        return np.where(self._others[devices], np.nan, values)

    def _lines(self, series: _Series, now: _Moment) -> Iterator[str]:
        choose = self._text(series, now)
        there = ~np.isnan(series.values)
        rows: Sequence[int] = range(len(there)) if there.all() else np.flatnonzero(there).tolist()
        values = series.values[there]
        same = len(values) > _CHUNK and bool((values == values[0]).all())
        name = repeat(series.family.name)
        end = f" {round(now.time * 1000)}\n" if self.identity.layout.timestamps else "\n"
        for start in range(0, len(rows), _CHUNK):
            some = values[start : start + 1] if same else values[start : start + _CHUNK]
            numbers = _numbers(some, series.family.form, self.identity.layout.numbers)
            texts = choose(rows[start : start + _CHUNK])
            yield "".join(
                chain.from_iterable(zip(name, texts, repeat(next(numbers)) if same else numbers, repeat(end)))
            )

    def _families(self) -> Sequence[identities.Family]:
        """Return the families in the order in which they are printed."""
        families, in_order = self.identity.families, self.identity.layout.order == "sorted"
        return sorted(families, key=lambda item: f"{item.name}{{") if in_order else families

    def _sorted(self, prepared: list[_Series], now: _Moment) -> Iterator[str]:
        """Yield sorted lines, one family at a time."""
        for _, group in groupby(prepared, key=lambda series: series.family.name):
            text = "".join(piece for series in group for piece in self._lines(series, now))
            yield "".join(f"{line}\n" for line in sorted(text.split("\n")[:-1]))

    def _by_family(
        self, prepared: list[_Series], comments: Callable[[identities.Family], str] | None, now: _Moment
    ) -> Iterator[str]:
        before = None
        for series in prepared:
            if comments is not None and series.family.name != before:
                yield comments(series.family)
                before = series.family.name
            yield from self._lines(series, now)

    def _by_device(self, prepared: list[_Series], now: _Moment) -> Iterator[bytes]:
        rows = range(len(self.machine.devices))
        columns = [
            (
                series.family.name,
                self._text(series, now)(rows),
                list(_numbers(series.values, series.family.form, self.identity.layout.numbers)),
            )
            for series in prepared
        ]
        for row in rows:
            yield "".join(f"{name}{texts[row]}{numbers[row]}\n" for name, texts, numbers in columns).encode()

    # Labels.

    def _refresh(self, now: _Moment) -> None:
        """Renew the texts of devices whose pod changed. A page in progress keeps its texts."""
        before, self._pods, self._version = self._pods, now.pods, now.version
        changed = [place for place in before.keys() | now.pods.keys() if before.get(place) != now.pods.get(place)]
        self._texts = self._carried(self._texts, changed, now)

    def _carried(
        self, texts: _Kept, changed: Iterable[int], now: _Moment, places: Sequence[int] | None = None
    ) -> _Kept:
        """Return texts of whole devices, with some of them renewed."""
        rows = {place: self._row(place, now) for place in changed}
        return {
            (kind, hidden): known.changed(rows, functools.partial(self._rows, kind, now), places=places)
            for (kind, hidden), known in texts.items()
            if kind in _WHOLE_DEVICES
        }

    def _text(self, series: _Series, now: _Moment) -> Callable[[Sequence[int]], list[str]]:
        """Return a function from rows to label texts. A family's own label hides the identity's."""
        kind, hidden = series.kind, frozenset(name for name, _ in series.own if name in self.identity.labels)
        kept = now.workload_texts if kind == "workload" else now.texts
        if (kind, hidden) not in kept:
            kept[kind, hidden] = labels.Texts(
                self.identity, functools.partial(self._rows, kind, now), hidden=hidden, only=_SOURCES.get(kind)
            )
        return kept[kind, hidden].choose(series.own)

    def _row(self, place: int, now: _Moment, **more: Any) -> labels.Row:
        machine = self.machine
        row = labels.Row(machine.devices[place], pod=now.pods.get(place), hostname=machine.hostnames[place])
        return row._replace(**more) if more else row

    def _rows(self, kind: str, now: _Moment) -> Iterator[labels.Row]:
        machine = self.machine
        if kind == "part":
            for part in machine.parts:
                pod = now.part_pods.get(part.handle) or now.pods.get(part.device)
                yield self._row(part.device, now, part=part, pod=pod)
        elif kind in _LINKED:
            for link in getattr(machine, kind):
                yield self._row(link.device, now, link=link, peer=machine.devices[link.peer])
        elif kind == "workload":
            yield from self._workload_rows(now)
        elif kind == "node":
            yield from (self._row(place, now, pod=None) for place in self._firsts.tolist())
        elif kind == "card":
            for place, device in enumerate(machine.devices):
                yield self._row(place, now, card=str(_FIRST_CARD + device.index))
        else:
            yield from (self._row(place, now) for place in range(len(machine.devices)))

    def _workload_rows(self, now: _Moment) -> Iterator[labels.Row]:
        sharing: dict[int, int] = {}
        for item in now.usages:
            sharing[item.device] = sharing.get(item.device, -1) + 1
            yield self._row(item.device, now, pod=item.pod, vgpu=str(sharing[item.device]), workload=str(item.workload))


def _scaled(values: Values, scale: float, offset: float, digits: int | None) -> Values:
    """Convert to the family's unit. 83 / 100 is 0.83; 83 * 0.01 is a little more."""
    scaled = (values / (1 / scale) if 0 < scale < 1 else values * scale) + offset
    return np.asarray(scaled if digits is None else np.round(scaled, digits))


def _comments(family: identities.Family) -> str:
    if family.type == "untyped" and not family.help:
        return ""
    return f"# HELP {family.name} {labels.help_text(family.help)}\n# TYPE {family.name} {family.type}\n"


def _open_comments(family: identities.Family) -> str:
    name = family.name.removesuffix("_total") if family.type == "counter" else family.name
    kind = "unknown" if family.type == "untyped" else family.type
    text = labels.help_text(family.help, open_metrics=True)
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _numbers(values: Values, form: str, style: str) -> Iterator[str]:
    if form == "int":
        whole = np.floor(values + 0.5)
        return map(str, whole.astype(np.int64).tolist()) if style == "plain" else map(_STYLES[style], whole.tolist())
    if form == "fixed":
        return map("%.6f".__mod__, values.tolist())
    return map(_STYLES[style], values.tolist())


def shortest(value: float) -> str:
    """Format a number as most Prometheus libraries do: whole ones without a point."""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def go_number(value: float) -> str:
    """Format a number as Go's shortest form: with an exponent from 1e+06 on and below 1e-04."""
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
    """Format a number as Prometheus' Python library does: always with a point or an exponent."""
    return repr(value) if abs(value) < 1e6 else go_number(value)


_STYLES: dict[str, Callable[[float], str]] = {"plain": shortest, "go": go_number, "python": python_number}
