"""Label text: what is printed between a family's name and its value.

The text of a device is formatted once and cached, as bytes: joining these takes a third of the time of joining strings,
and lets other threads run. A family's own labels are inserted at the place that the identity has for them.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple, TypeVar

from simgpu.identities import identity as identities
from simgpu.machines.machine import DevicePart
from simgpu.machines.users import PodRef
from simgpu.topology.devices import Device
from simgpu.topology.links import Link

Own = tuple[tuple[str, str], ...]
"""A family's own labels; a value that begins with SOURCE comes from the device."""

T = TypeVar("T")

SOURCE = "\0"
BLOCK = 4096  # rows that are rendered at once
MAX_CACHED_ROWS = 8192  # with more, texts with a family's own labels are formatted for each page

# Line ends for some reader, or not encodable: names come from users, and must not break a page.
_UNPRINTABLE = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
_HELP_ESCAPES = {**dict.fromkeys(_UNPRINTABLE, "\ufffd"), ord("\\"): "\\\\", ord("\n"): "\\n"}
_ESCAPES = {**_HELP_ESCAPES, ord('"'): '\\"'}
_LANES = 4  # of each port


def escaped(value: str) -> str:
    """Return a label's value, escaped for use between quotes."""
    return value.translate(_ESCAPES)


def help_text(text: str, *, open_metrics: bool = False) -> str:
    """Return a family's help, escaped; OpenMetrics escapes quotes too."""
    return text.translate(_ESCAPES if open_metrics else _HELP_ESCAPES)


class Row(NamedTuple):
    """What a series is about: the sources of its labels."""

    device: Device
    part: DevicePart | None = None
    pod: PodRef | None = None
    vgpu: str = ""
    workload: str = ""
    link: Link | None = None
    peer: Device | None = None
    hostname: str = ""
    card: str = ""


class Texts:
    """The texts of some rows. `hidden` labels are left out; `only` limits labels to those of some sources."""

    def __init__(
        self,
        identity: identities.Identity,
        rows: Callable[[], Iterable[Row]],
        *,
        hidden: Collection[str] = (),
        only: Collection[str] | None = None,
    ) -> None:
        self._identity = identity
        self._rows = rows
        self._separator = identity.layout.separator.encode()
        names = [name for name in identity.labels if name != identities.FAMILY]
        self._order = sorted(names, key=self._rank) if identity.sort_labels else names
        placed = ((place, name, identity.labels[name]) for place, name in enumerate(self._order, 1))
        self._shown = [
            (place, name, source)
            for place, name, source in placed
            if name not in hidden and (only is None or source in only or name in identity.target_labels)
        ]
        self._ends: dict[int, array[int]] = {place: array("I") for place in self._places()}
        self._texts: list[bytes] = []
        for row in rows():
            text, ends = self._text(row)
            self._texts.append(text)
            for gap, end in ends.items():
                self._ends[gap].append(end)
        self._complete: dict[Own, list[bytes]] = {}
        self.stamps = [object() for _ in range(0, len(self._texts), BLOCK)]  # of each block, others if a row changed

    def __len__(self) -> int:
        return len(self._texts)

    def changed(
        self, changed: Mapping[int, Row], rows: Callable[[], Iterable[Row]], *, places: Sequence[int] | None = None
    ) -> Texts:
        """Return a copy with some rows replaced. `places` are the places of its rows in this object."""
        new = copy.copy(self)
        new.change(changed, rows, range(len(self)) if places is None else places)
        return new

    def change(self, changed: Mapping[int, Row], rows: Callable[[], Iterable[Row]], places: Sequence[int]) -> None:
        """Replace some rows, in lists of its own."""
        self._rows, self._complete = rows, {}
        kept = self.stamps if places == range(len(self)) else ()
        self.stamps = [*kept, *(object() for _ in range(len(kept) * BLOCK, len(places), BLOCK))]
        for block in {place // BLOCK for place in changed}:
            self.stamps[block] = object()
        self._texts = _chosen(self._texts, places)
        self._ends = {gap: array("I", _chosen(ends, places)) for gap, ends in self._ends.items()}
        for place, row in changed.items():
            self._texts[place], ends = self._text(row)
            for gap, end in ends.items():
                self._ends[gap][place] = end

    def choose(self, own: Own) -> Callable[[Sequence[int]], list[bytes]]:
        """Return a function from rows to their texts with a family's own labels."""
        if len(self) > MAX_CACHED_ROWS:
            inserts = self._inserts(own)
            return lambda rows: self._with(rows, inserts)
        if own not in self._complete:
            self._complete[own] = self._with(range(len(self)), self._inserts(own))
        complete = self._complete[own]
        return lambda rows: complete if len(rows) == len(complete) else _chosen(complete, rows)

    def _text(self, row: Row) -> tuple[bytes, dict[int, int]]:
        """Return a row's text, and where in it each place ends."""
        pieces: list[bytes] = []
        ends = dict.fromkeys(self._ends, 1)
        length = 1
        for place, name, source in self._shown:
            value = look_up(source, row)
            if value or name in self._identity.keep_empty:
                pieces.append(f'{name}="{escaped(value)}"'.encode())
                length += len(pieces[-1]) + (len(self._separator) if len(pieces) > 1 else 0)
                for gap in ends:
                    if gap >= place:
                        ends[gap] = length
        return (b"{%b} " % self._separator.join(pieces) if pieces else b" "), ends

    # A family's own labels.

    def _places(self) -> set[int]:
        """Return the places of families' own labels: after how many of the identity's."""
        named = (
            (*family.labels, *family.information, *(name for item in family.dimensions for name in item.labels))
            for family in self._identity.families
        )
        return {self._place(name) for names in named for name in names}

    def _place(self, name: str) -> int:
        if self._identity.sort_labels:
            return sum(self._rank(other) < self._rank(name) for other in self._order)
        names = list(self._identity.labels)
        return names.index(identities.FAMILY) if identities.FAMILY in names else len(names)

    def _rank(self, name: str) -> tuple[int, str]:
        first = self._identity.first_labels
        return (first.index(name) if name in first else len(first), name)

    def _inserts(self, own: Own) -> list[tuple[int, bytes | list[bytes]]]:
        """Return what is inserted where, from right to left, so that places stay valid."""
        placed: dict[int, list[tuple[str, str]]] = {}
        for item in sorted(own) if self._identity.sort_labels else own:
            placed.setdefault(self._place(item[0]), []).append(item)
        return [(place, self._own_text(items)) for place, items in sorted(placed.items(), reverse=True)]

    def _own_text(self, items: list[tuple[str, str]]) -> bytes | list[bytes]:
        if not any(value.startswith(SOURCE) for _, value in items):
            return self._joined(items)
        return [
            self._joined(
                (name, look_up(value[1:], row) if value.startswith(SOURCE) else value) for name, value in items
            )
            for row in self._rows()
        ]

    def _joined(self, items: Iterable[tuple[str, str]]) -> bytes:
        return self._separator.join(f'{name}="{escaped(value)}"'.encode() for name, value in items)

    def _with(self, rows: Sequence[int], inserts: list[tuple[int, bytes | list[bytes]]]) -> list[bytes]:
        texts = _chosen(self._texts, rows)
        for place, own in inserts:
            ends = _chosen(self._ends[place], rows)
            owns = repeat(own) if isinstance(own, bytes) else _chosen(own, rows)
            texts = [self._put(text, end, mine) for text, end, mine in zip(texts, ends, owns, strict=False)]
        return texts

    def _put(self, text: bytes, end: int, own: bytes) -> bytes:
        if end > 1:
            return b"%b%b%b%b" % (text[:end], self._separator, own, text[end:])
        return b"{%b} " % own if text == b" " else b"{%b%b%b" % (own, self._separator, text[1:])


def _chosen(items: Sequence[T], rows: Sequence[int]) -> list[T]:
    return list(items[rows.start : rows.stop]) if isinstance(rows, range) else [items[row] for row in rows]


def look_up(source: str, row: Row) -> str:
    """Return a label's value; empty if there is none."""
    if source.startswith("="):
        return source[1:]
    if source.startswith("@"):
        return row.device.labels.get(source[1:], "")
    return _SOURCES[source](row)


def _of(look: Callable[[Device], str]) -> Callable[[Row], str]:
    return lambda row: look(row.device)


def _of_part(look: Callable[[Device, DevicePart], str]) -> Callable[[Row], str]:
    return lambda row: look(row.device, row.part) if row.part else ""


def _of_pod(look: Callable[[PodRef], str]) -> Callable[[Row], str]:
    return lambda row: look(row.pod) if row.pod else ""


def _of_link(look: Callable[[Link], str]) -> Callable[[Row], str]:
    return lambda row: look(row.link) if row.link else ""


def _of_peer(look: Callable[[Device], str]) -> Callable[[Row], str]:
    return lambda row: look(row.peer) if row.peer else ""


def _aggregation(how: str) -> Callable[[Row], str]:
    """How a value is aggregated: that of a card, or of a device with tiles, from its tiles."""

    def look(row: Row) -> str:
        whole = row.part is None and row.link is None and row.device.model.tiles > 1
        return how if row.card or whole else "direct"

    return look


def _port(device: Device | None, link: Link, number: int) -> str:
    return f"{device.index if device else 0:08x}.{link.tile:08x}.{number:02x}"


_SOURCES: dict[str, Callable[[Row], str]] = {
    "index": _of(lambda device: str(device.index)),
    "uuid": _of(lambda device: device.uuid),
    "short_uuid": _of(lambda device: device.uuid.removeprefix("GPU-")),
    "serial": _of(lambda device: device.serial),
    "file": _of(lambda device: device.file),
    "pci_bus_id": _of(lambda device: device.pci_bus_id),
    "pci_short": _of(lambda device: device.pci_short),
    "product": _of(lambda device: device.model.product),
    "driver": _of(lambda device: device.model.driver or ""),
    "cuda": _of(lambda device: device.model.cuda),
    "vendor": _of(lambda device: device.model.vendor),
    "pci_device": _of(lambda device: f"0x{device.model.pci.device[2:6].lower()}"),
    "device_id": _of(lambda device: device.model.pci.device),
    "subsystem_id": _of(lambda device: device.model.pci.subsystem or ""),
    "architecture": _of(lambda device: device.model.architecture),
    "compute_capability": _of(lambda device: device.model.compute_capability or ""),
    "vbios": _of(lambda device: device.model.board.vbios if device.model.board else ""),
    "memory_type": _of(lambda device: device.model.memory_type),
    "numa": _of(lambda device: str(device.numa)),
    "cpus": _of(lambda device: device.cpus),
    "hostname": lambda row: row.hostname,
    "vgpu": lambda row: row.vgpu,
    "workload": lambda row: row.workload,
    "card": lambda row: row.card,
    "summed": _aggregation("sum"),
    "averaged": _aggregation("avg"),
    "part": _of_part(lambda _, part: str(part.id)),
    "part_profile": _of_part(lambda _, part: part.profile),
    "part_uuid": _of_part(lambda device, part: device.part_uuid(part.id)),
    "pod": _of_pod(lambda pod: pod.name),
    "namespace": _of_pod(lambda pod: pod.namespace),
    "container": _of_pod(lambda pod: pod.container),
    "pod_uid": _of_pod(lambda pod: pod.uid),
    "tile": _of_link(lambda link: str(link.tile)),
    "on_tile": lambda row: str(row.device.model.tiles > 1).lower(),
    "lanes": _of_link(lambda link: str(_LANES * link.ports) if link.ports else "n/a"),
    "port": lambda row: _port(row.device, row.link, row.link.port) if row.link else "",
    "remote_port": lambda row: _port(row.peer, row.link, row.link.remote) if row.link else "",
    "peer": _of_peer(lambda device: str(device.index)),
    "peer_file": _of_peer(lambda device: device.file),
    "peer_pci_short": _of_peer(lambda device: device.pci_short),
}
