"""Renders the metrics page of a machine and an identity, as the real exporter prints it.

Text that does not change from step to step (names, labels) is cached; a page is that text with numbers inserted.

A large page is made beside what else the process does, so it is made of small pieces, and no call takes long: others
wait for the interpreter's lock meanwhile.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simgpu.identities import identity as identities
from simgpu.identities import labels
from simgpu.machines import quantities
from simgpu.machines.machine import Machine, Usage, Values
from simgpu.machines.users import PodRef

_WHOLE_DEVICES = ("device", "rest", "whole")
_KINDS: dict[str, tuple[str, ...]] = {
    "devices": ("device",),
    "parts": ("part",),
    "both": ("device", "part"),
    "cards": ("device", "part", "card"),
    "parts-or-devices": ("rest", "part"),
    "undivided": ("whole",),
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


class Piece(NamedTuple):
    """A part of a page, to be made. Two with one `key` and one `state` are the same; without a key, that is unknown."""

    make: Callable[[], bytes]
    key: Hashable = None
    state: Hashable = None


class _Moment:
    """Time, pods and texts of a step: a page that is sent slowly stays consistent."""

    def __init__(self, machine: Machine, *, usages: bool) -> None:
        self.version, self.time = machine.version, machine.time
        self.pods, self.part_pods = machine.pods, machine.part_pods
        self.usages: Sequence[Usage] = machine.usages if usages else ()
        self.texts: _Kept = {}
        self.workload_texts: _Kept = {}


class Renderer:
    """Renders one identity of one machine.

    Large pages are rendered from snapshots in one thread; the texts that they share are changed only there.
    """

    def __init__(
        self,
        machine: Machine,
        identity: identities.Identity,
        lookup: Callable[[Machine, str], Values] = quantities.of_devices,
        part_lookup: Callable[[Machine, str], Values] = quantities.of_parts,
    ) -> None:
        self.machine = machine
        self.identity = identity
        self._lookup = lookup
        self._part_lookup = part_lookup
        self._usages = any(family.of == "workloads" for family in identity.families)
        self._before: Renderer | None = None
        self._texts: _Kept = {}
        self._pods: Mapping[int, PodRef] = {}
        self._part_pods: Mapping[int, PodRef] = {}
        self._version = -1

    @functools.cached_property
    def _others(self) -> npt.NDArray[np.bool_] | None:
        """Which devices are of other vendors; None if all or none are."""
        vendors = self.identity.vendors
        others = np.array([bool(vendors) and item.model.vendor not in vendors for item in self.machine.devices], bool)
        return others if others.any() and not others.all() else None

    @functools.cached_property
    def _firsts(self) -> npt.NDArray[np.intp]:
        """The first device of each node."""
        shown = np.arange(len(self.machine.devices)) if self._others is None else np.flatnonzero(~self._others)
        return shown[np.unique(self.machine.node_of[shown], return_index=True)[1]]

    def on(self, machine: Machine) -> Renderer:
        """Return a renderer of another machine; texts of devices that both have are reused, at its first page."""
        new = Renderer(machine, self.identity, self._lookup, self._part_lookup)
        new._before = self._before or self
        return new

    def snapshot(self) -> Machine:
        """Return what a page of this step is made from, later or in another thread."""
        return self.machine.snapshot(usages=self._usages)

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
        return (piece.make() for piece in self.pieces(self.machine, open_metrics=open_metrics))

    def pieces(self, machine: Machine, *, open_metrics: bool = False) -> Iterator[Piece]:
        """Yield the page of the renderer's machine or a snapshot of it; all values are read before the first piece."""
        now = _Moment(machine, usages=self._usages)
        self._refresh(now)
        now.texts = self._texts
        prepared = list(self._prepared(machine, now))
        del machine  # of a snapshot, only the values of series are still needed
        layout = self.identity.layout
        if layout.header is not None:
            yield _text_piece(f"{layout.header}\n")
        if layout.order == "device":
            yield from self._by_device(prepared, now)
            return
        comments = _open_comments if open_metrics else _comments
        if layout.comments == "first":
            yield _text_piece("".join(comments(family) for family in self.identity.families))
        by_family = comments if layout.comments == "family" else None
        ordered = layout.order == "sorted"
        yield from self._sorted(prepared, now) if ordered else self._by_family(prepared, by_family, now)
        if open_metrics:
            yield _text_piece("# EOF\n")

    # Series.

    def _prepared(self, machine: Machine, now: _Moment) -> Iterator[_Series]:
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
                        values = _scaled(self._values(machine, kind, key[1], now), *key[2:])
                        known[key] = None if np.isnan(values).all() else values
                    if (found := known[key]) is not None:
                        yield _Series(
                            family, tuple({**family.labels, **dimension.labels, **looked_up}.items()), kind, found
                        )

    def _values(self, machine: Machine, kind: str, name: str, now: _Moment) -> Values:
        if kind == "workload":
            devices = np.array([item.device for item in now.usages], dtype=np.intp)
            return self._masked(quantities.of_workloads(machine, now.usages, name), devices)
        if kind == "part":
            return self._masked(self._part_lookup(machine, name), machine.parent) if machine.parts else np.empty(0)
        if kind in _LINKED:
            listed = getattr(machine, kind)
            ends = np.array([link.device for link in listed], dtype=np.intp)
            return self._masked(quantities.of_links(machine, listed, name), ends)
        values = self._masked(self._lookup(machine, name), slice(None))
        if kind in ("rest", "whole") and machine.parts:  # devices that have no parts
            values = values.copy()
            values[machine.parent] = np.nan
        if kind == "whole" and (divisible := quantities.of_devices(machine, "mig_mode") > 0).any():
            values = np.where(divisible, np.nan, values)
        return values[self._firsts] if kind == "node" else values

    def _masked(self, values: Values, devices: npt.NDArray[np.intp] | slice) -> Values:
        """Replace values of other vendors' devices by NaN."""
        if self._others is None:
            return values
        return np.where(self._others[devices], np.nan, values)

    def _lines(self, series: _Series, now: _Moment, comments: str = "") -> Iterator[Piece]:
        """Yield the lines of series, after `comments`."""
        texts = self._text(series, now)
        choose, layout = texts.choose(series.own), self.identity.layout
        end = f" {round(now.time * 1000)}\n" if layout.timestamps else "\n"
        lasting = not layout.timestamps and series.kind != "workload"
        for start in range(0, len(series.values), labels.BLOCK):
            values = _rounded(series.values[start : start + labels.BLOCK], series.family.form)
            make = functools.partial(self._block, series.family, values, start, choose, (comments, end))
            comments = ""
            if lasting:
                key = (series.family.name, series.own, series.kind, start)
                yield Piece(make, key, (texts.stamps[start // labels.BLOCK], hash(values.tobytes())))
            else:
                yield Piece(make)

    def _block(
        self,
        family: identities.Family,
        values: Values,
        start: int,
        choose: Callable[[Sequence[int]], list[bytes]],
        around: tuple[str, str],
    ) -> bytes:
        """Return the lines of some rows from `start` on, with what comes before them and ends each."""
        there = ~np.isnan(values)
        rows: Sequence[int] = range(start, start + len(values))
        if not there.all():
            values, rows = values[there], (np.flatnonzero(there) + start).tolist()
        if not len(values):
            return around[0].encode()
        same = bool((values == values[0]).all())
        numbers = _numbers(values[:1] if same else values, family.form, self.identity.layout.numbers)
        return _joined(f"{around[0]}{family.name}", choose(rows), numbers, f"{around[1]}{family.name}", same=same)

    def _families(self) -> Sequence[identities.Family]:
        """Return the families in the order in which they are printed."""
        families, in_order = self.identity.families, self.identity.layout.order == "sorted"
        return sorted(families, key=lambda item: f"{item.name}{{") if in_order else families

    def _sorted(self, prepared: list[_Series], now: _Moment) -> Iterator[Piece]:
        """Yield sorted lines, one family at a time."""
        for _, group in groupby(prepared, key=lambda series: series.family.name):
            pieces = (piece.make() for series in group for piece in self._lines(series, now))
            blocks = [sorted(piece.split(b"\n")[:-1]) for piece in pieces]  # each is short, and so is its sorting
            lines = heapq.merge(*blocks) if len(blocks) > 1 else iter(blocks[0])
            while some := list(islice(lines, labels.BLOCK)):
                yield Piece(functools.partial(b"\n".join, [*some, b""]))

    def _by_family(
        self, prepared: list[_Series], comments: Callable[[identities.Family], str] | None, now: _Moment
    ) -> Iterator[Piece]:
        before = None
        for series in prepared:
            about = comments(series.family) if comments is not None and series.family.name != before else ""
            before = series.family.name
            yield from self._lines(series, now, about)

    def _by_device(self, prepared: list[_Series], now: _Moment) -> Iterator[Piece]:
        """Yield the lines of each device, and after them those of its parts."""
        columns: dict[bool, list[tuple[bytes, list[bytes], list[str | None]]]] = {False: [], True: []}
        for series in prepared:
            form, style = series.family.form, self.identity.layout.numbers
            there = ~np.isnan(series.values)
            numbers = _numbers(_rounded(series.values[there], form), form, style)
            texts = self._text(series, now).choose(series.own)(range(len(series.values)))
            columns[series.kind == "part"].append(
                (series.family.name.encode(), texts, [next(numbers) if known else None for known in there])
            )
        parts: dict[int, list[int]] = {}
        for row, part in enumerate(self.machine.parts):
            parts.setdefault(part.device, []).append(row)

        def line(device: int) -> bytes:
            rows = [(False, device), *((True, row) for row in parts.get(device, ()))]
            return b"".join(
                b"%b%b%b\n" % (name, texts[row], number.encode())
                for of_parts, row in rows
                for name, texts, numbers in columns[of_parts]
                if (number := numbers[row]) is not None
            )

        yield from (Piece(functools.partial(line, device)) for device in range(len(self.machine.devices)))

    # Labels.

    def _refresh(self, now: _Moment) -> None:
        """Renew the texts of devices that changed or whose pod did. A page in progress keeps its texts."""
        if self._before is not None:
            self._take_over(self._before, now)
            self._before = None
        elif self._version != now.version:
            changed = _different(self._pods, now.pods)
            parts = {row for place in changed for row in self.machine.part_rows.get(place, {}).values()}
            if self._part_pods is not now.part_pods:
                rows = self.machine.rows_of_handles
                parts |= {rows[handle] for handle in _different(self._part_pods, now.part_pods) if handle in rows}
            self._texts = self._carried(self._texts, changed, parts, now)
        self._pods, self._part_pods, self._version = now.pods, now.part_pods, now.version

    def _take_over(self, before: Renderer, now: _Moment) -> None:
        """Take the texts of devices that another renderer has too."""
        old, devices = before.machine.devices, self.machine.devices
        if not old:
            return
        known = {device.uuid: place for place, device in enumerate(old)}
        places = [known.get(device.uuid, 0) for device in devices]
        changed = [
            place
            for place, (there, device) in enumerate(zip(places, devices, strict=True))
            if old[there] is not device or before._pods.get(there) != now.pods.get(place)
        ]
        rows = before.machine.rows_of_handles
        listed = [rows.get(part.handle, 0) for part in self.machine.parts]
        fresh = set(changed)
        parts = [
            row
            for row, part in enumerate(self.machine.parts)
            if part.device in fresh
            or part.handle not in rows
            or before._part_pods.get(part.handle) != now.part_pods.get(part.handle)
        ]
        texts = before._texts if rows else {key: text for key, text in before._texts.items() if key[0] != "part"}
        self._texts = self._carried(texts, changed, parts, now, (places, listed))

    def _carried(
        self,
        texts: _Kept,
        changed: Iterable[int],
        parts: Iterable[int],
        now: _Moment,
        places: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
    ) -> _Kept:
        """Return texts of whole devices and of parts, with some of them renewed; `places` are those in `texts`."""
        rows = {place: self._row(place, now) for place in changed}
        part_rows = {row: self._part_row(row, now) for row in parts} if any(kind == "part" for kind, _ in texts) else {}
        return {
            (kind, hidden): known.changed(
                part_rows if kind == "part" else rows,
                functools.partial(self._rows, kind, now),
                places=places[kind == "part"],
            )
            for (kind, hidden), known in list(texts.items())
            if kind in _WHOLE_DEVICES or kind == "part"
        }

    def _text(self, series: _Series, now: _Moment) -> labels.Texts:
        """Return the label texts of series. A family's own label hides the identity's."""
        kind, hidden = series.kind, frozenset(name for name, _ in series.own if name in self.identity.labels)
        kept = now.workload_texts if kind == "workload" else now.texts
        if (kind, hidden) not in kept:
            kept[kind, hidden] = labels.Texts(
                self.identity, functools.partial(self._rows, kind, now), hidden=hidden, only=_SOURCES.get(kind)
            )
        return kept[kind, hidden]

    def _row(self, place: int, now: _Moment, **more: Any) -> labels.Row:
        machine = self.machine
        row = labels.Row(machine.devices[place], pod=now.pods.get(place), hostname=machine.hostnames[place])
        return row._replace(**more) if more else row

    def _part_row(self, row: int, now: _Moment) -> labels.Row:
        part = self.machine.parts[row]
        pod = now.part_pods.get(part.handle) or now.pods.get(part.device)
        return self._row(part.device, now, part=part, pod=pod)

    def _rows(self, kind: str, now: _Moment) -> Iterator[labels.Row]:
        machine = self.machine
        if kind == "part":
            yield from (self._part_row(row, now) for row in range(len(machine.parts)))
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


def _different(one: Mapping[int, PodRef], other: Mapping[int, PodRef]) -> list[int]:
    return [place for place in one.keys() | other.keys() if one.get(place) != other.get(place)]


def _scaled(values: Values, scale: float, offset: float, digits: int | None) -> Values:
    """Convert to the family's unit. 83 / 100 is 0.83; 83 * 0.01 is a little more."""
    scaled = (values / (1 / scale) if 0 < scale < 1 else values * scale) + offset
    return np.asarray(scaled if digits is None else np.round(scaled, digits))


def _text_piece(text: str) -> Piece:
    return Piece(text.encode)


def _joined(first: str, texts: list[bytes], numbers: Iterator[str], between: str, *, same: bool) -> bytes:
    """Return lines: each a text and a number, the first after `first`, the others after `between`.

    The end of a line and the name after it are joined to the numbers, which is faster than joining each to the page.
    """
    end = between[: between.index("\n") + 1]
    if same:
        number = next(numbers)
        lines = f"{number}{between}".encode().join(texts)
        return b"".join((first.encode(), lines, f"{number}{end}".encode()))
    pieces = [b""] * (2 * len(texts) + 2)
    pieces[0], pieces[-1] = first.encode(), end.encode()
    pieces[1:-1:2] = texts
    pieces[2:-1:2] = f"{between}\0".join(numbers).encode().split(b"\0")
    return b"".join(pieces)


def _comments(family: identities.Family) -> str:
    if family.type == "untyped" and not family.help:
        return ""
    return f"# HELP {family.name} {labels.help_text(family.help)}\n# TYPE {family.name} {family.type}\n"


def _open_comments(family: identities.Family) -> str:
    name = family.name.removesuffix("_total") if family.type == "counter" else family.name
    kind = "unknown" if family.type == "untyped" else family.type
    text = labels.help_text(family.help, open_metrics=True)
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _rounded(values: Values, form: str) -> Values:
    return np.floor(values + 0.5) if form == "int" else values


def _numbers(values: Values, form: str, style: str) -> Iterator[str]:
    """Format numbers; those of the form `int` are whole."""
    if form == "int" and style == "plain":
        return map("%d".__mod__, values.tolist())
    return map("%.6f".__mod__ if form == "fixed" else _STYLES[style], values.tolist())


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
