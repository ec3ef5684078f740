"""Writes pages: one directory per GPU, with its page in it.

A restarted writer reuses the files, so that programs which have them open, and containers that mount their directory,
see the card again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import boot, errors
from simgpu.page import accounting, apps, events, layout, mapping
from simgpu.page.rows import CardRows, Read
from simgpu.sim.parts import PartState
from simgpu.topology.devices import MIG_PREFIX, Device

MAX_SOCKET_BYTES: Final = layout.DTYPE["control"].itemsize - 1
FILE: Final = mapping.FILE

MODES: Final = {
    "persistence": 1,
    "compute_mode": 3,
    "accounting": 1,
}  # settings besides clocks and power, and their highest values

_LOCK: Final = ".lock"
_WITH_EVENTS: Final = 3  # the first minor version of pages that have errors
_MAX_EVENTS: Final = 1 << 63  # a multiple of the ring's length; a page with more of them is damaged


class Pages:
    """The pages of a machine's cards, below one directory, which is locked until they are removed or closed.

    A reader takes a page as lost `stale` seconds after its last write. It sees these `processes` (see layout), and
    sends settings to the socket `control`. Pages of other cards, left by an earlier writer, are removed once the pages
    of all cards exist. With `parts`, each MIG instance has a page too: that of its card with this instance alone. With
    `named_pids`, readers in the PID namespace of this process see the processes that `write` is given, whatever
    `processes` is for others. `copies` are further directories with the same pages, but a socket of their own.
    """

    def __init__(
        self,
        root: Path,
        devices: Sequence[Device],
        *,
        stale: float,
        processes: int = layout.NO_PROCESSES,
        control: str = "",
        parts: bool = False,
        named_pids: bool = False,
        copies: Mapping[Path, str] = {},
    ) -> None:
        self.root = root
        self._devices = devices
        self._cards = CardRows(devices)
        self._rows = self._cards.values
        self._publisher = mapping.Publisher()
        self._stale = np.uint64(stale * 1e9)
        named = (
            (index, place)
            for index, places in enumerate(self._cards.places)
            for there in places
            for place in there
            if parts
        )
        self._parts = {(index, place): self._cards.part_name(index, place) for index, place in named}
        self._rows["stale_ns"] = self._stale
        self._rows["boot"] = boot.current().encode()
        self._rows["processes"] = processes
        self._rows["pid_namespace"] = pid_namespace() if named_pids else 0
        names = [device.uuid for device in devices]
        try:
            with contextlib.ExitStack() as undone:
                self._places = []
                for place, socket in {root: control, **copies}.items():
                    self._places.append(_Place(place, names, self._parts, control=socket))
                    undone.callback(self._places[-1].close)
                undone.pop_all()
        except OSError as error:
            raise errors.InputError("pages", errors.explain(error)) from None
        mapped = (self._places[0].maps[name] for name in names)
        resumed = [_resume(row, page[0]) for row, page in zip(self._rows, mapped, strict=True)]
        self._counted = np.array(resumed, bool)  # cards whose errors so far are on their pages

    def divide(self, index: int, device: Device) -> None:
        """Give a card other MIG instances, for pages without `parts`; shown with the next write."""
        self._devices = [device if at == index else item for at, item in enumerate(self._devices)]
        self._cards.divide(index, device)

    @property
    def lists_processes(self) -> bool:
        """Whether pages list the processes that use the cards."""
        return bool(((self._rows["processes"] == layout.LISTED_PROCESSES) | (self._rows["pid_namespace"] > 0)).any())

    def set_mode(self, index: int, name: str, value: int) -> None:
        """Set a mode of a card; the page shows it with the next write."""
        if not 0 <= value <= MODES[name]:
            raise errors.InputError(name, f"must be from 0 to {MODES[name]}")
        self._rows[index][name] = value
        if name == "accounting" and not value:
            self.clear_accounts(index)

    def clear_accounts(self, index: int) -> None:
        """Forget the processes that were recorded of a card."""
        accounting.clear(self._rows[index])

    def write(
        self,
        read: Read,
        *,
        clock: float,
        monotonic_ns: int,
        instances: Mapping[int, Sequence[PartState]] = {},
        processes: Mapping[int, Sequence[apps.App]] = {},
        lost: npt.NDArray[np.bool_] | None = None,
        erring: Callable[[int, str], int | None] = lambda _index, _counter: None,
    ) -> None:
        """Write the state of all cards; `read` returns a quantity of each. `clock` is in seconds since 1970.

        Readers find cards that are `lost` as they find those of a writer that is gone.

        `processes` have the card open. They name instances by their order on the device, which is that of `instances`,
        and compute instances by number. `erring` returns the instance that the last error of a card was on, by the
        card's index and the counter, in the same order.
        """
        rows = self._rows
        before = events.counts(rows)
        self._cards.fill(read, instances)
        if self.lists_processes:
            for index, row in enumerate(rows):
                apps.fill(row, [item for app in processes.get(index, ()) for item in self._placed(index, app)])
        before[~self._counted] = events.counts(rows)[~self._counted]
        self._counted[:] = True
        events.record(rows, before, read, clock=clock, origin=lambda at, name: self._origin(at, erring(at, name)))
        accounting.update(rows, clock)
        sample(rows, clock)
        alive = np.ones(len(rows), bool) if lost is None else ~lost
        rows["written_ns"], rows["stale_ns"] = monotonic_ns * alive, self._stale * alive
        for index in range(len(rows)):
            self._publish_card(index)

    def _placed(self, index: int, item: apps.App) -> list[apps.App]:
        """Return a process with its instance's place on the page; none if its compute instance is gone."""
        if item.instance < 0:
            return [item]
        listed = self._rows[index]["instances"]
        return [
            msgspec.structs.replace(item, instance=place)
            for place in self._cards.places[index][item.instance]
            if listed[place]["compute_instance"] == item.compute
        ]

    def _origin(self, index: int, instance: int | None) -> events.ErrorOrigin:
        """Return the numbers of an instance of a card; of several compute instances, which one is not known."""
        places = self._cards.places[index][instance] if instance is not None else ()
        if not places:
            return events.NOWHERE
        listed = self._rows[index]["instances"]
        compute = int(listed[places[0]]["compute_instance"]) if len(places) == 1 else -1
        return events.ErrorOrigin(int(listed[places[0]]["gpu_instance"]), compute)

    def show_settings(self, index: int, read: Read) -> None:
        """Publish the settings of one card at once; everything else follows with the next write."""
        self._cards.fill_settings(index, read)
        self._publish_card(index)

    def _publish_card(self, index: int) -> None:
        """Write the page of a card, and those of its instances."""
        pages = [(self._devices[index].uuid, self._rows[index])]
        pages += [(name, self._cards.alone(index, at)) for (card, at), name in self._parts.items() if card == index]
        for place in self._places:
            for name, row in pages:
                row["control"] = place.control
                self._publisher.publish(row, place.maps[name])

    def unlogged(self) -> list[events.CardErrors]:
        """Return the events of each card that the kernel log does not have yet."""
        waiting = np.flatnonzero(self._rows["event_count"] > self._rows["logged_count"]).tolist()
        found = ((self._devices[at], self._rows[at]) for at in waiting)
        return [
            events.CardErrors(device, list(events.since(row, int(row["logged_count"]))), events.main_process(row))
            for device, row in found
        ]

    def set_logged(self) -> None:
        """Note on the pages that the kernel log has all events: at once, so that the next writer knows it."""
        self._rows["logged_count"] = self._rows["event_count"]
        for place in self._places:
            for device, row in zip(self._devices, self._rows, strict=True):
                place.maps[device.uuid][0]["logged_count"] = row["logged_count"]

    def remove(self) -> None:
        """Remove the pages: readers find no card, and those that have one open see it as lost."""
        self._rows["written_ns"] = self._rows["stale_ns"] = 0
        for index in range(len(self._rows)):
            self._publish_card(index)
        for place in self._places:
            place.remove()
        self.close()

    def drop_copies(self) -> None:
        """Stop writing to all directories but the first."""
        for place in self._places[1:]:
            place.close()
        del self._places[1:]

    def close(self) -> None:
        """Stop writing; the pages stay for the next writer."""
        for place in self._places:
            place.close()


class _Place:
    """A directory with the pages of these cards, and of their parts; readers there use the socket `control`."""

    def __init__(self, root: Path, cards: Sequence[str], parts: Mapping[Any, str], *, control: str) -> None:
        self.control = control.encode()
        self._root = root
        self._lock = _lock(root)
        try:
            self.maps = {name: mapping.open_page(folder(root, name)) for name in (*cards, *parts.values())}
            _remove_others(root, {*cards})
            _remove_others(folder(root, MIG_PREFIX).parent, {*parts.values()})
        except BaseException:
            os.close(self._lock)
            raise

    def remove(self) -> None:
        """Remove the files; folders that hold anything else stay."""
        for name in self.maps:
            (folder(self._root, name) / FILE).unlink(missing_ok=True)
        for empty in (*self._root.glob("*/"), *folder(self._root, MIG_PREFIX).parent.glob("*/")):
            with contextlib.suppress(OSError):
                empty.rmdir()
        (self._root / _LOCK).unlink(missing_ok=True)

    def close(self) -> None:
        """Stop writing here."""
        self.maps.clear()
        os.close(self._lock)


def pid_namespace() -> int:
    """Return the inode of this process's PID namespace; 0 if it is not known."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - of the namespace itself
    except OSError:
        return 0


def sample(rows: npt.NDArray[Any], clock: float) -> None:
    """Add the readings of pages to their samples; `clock` is in seconds since 1970."""
    place = rows["sample_count"].astype(np.intp) % layout.SAMPLES
    taken = np.zeros(len(rows), layout.DTYPE["samples"].base)
    taken["time_us"] = int(clock * 1e6)
    for name in ("power_mw", "usage", "memory_usage", "sm_clock", "memory_clock"):
        taken[name] = rows[name]
    rows["samples"][np.arange(len(rows)), place] = taken
    rows["sample_count"] += 1


def folder(root: Path, name: str) -> Path:
    """Return the folder of a page, by the id of its card or instance.

    Those of instances are beside the others: programs take each page in a folder for a card.
    """
    return (root.with_name(f"{root.name}-mig") if name.startswith(MIG_PREFIX) else root) / name


def control_path(socket: Path) -> str:
    """Return the absolute path of a control socket; one that does not fit on a page is an error."""
    path = str(socket.absolute())
    if len(path.encode()) > MAX_SOCKET_BYTES:
        raise errors.InputError("--socket", f"{path}: a socket's path has at most {MAX_SOCKET_BYTES} bytes")
    return path


def read(path: Path) -> npt.NDArray[Any] | None:
    """Return the page in a file; None if there is no valid one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if len(content) < layout.DTYPE.itemsize:
        return None
    page: npt.NDArray[Any] = np.frombuffer(content[: layout.DTYPE.itemsize], layout.DTYPE)
    whole = page["magic"][0] == layout.MAGIC and page["major"][0] == layout.MAJOR and page["sequence"][0] % 2 == 0
    return page if whole else None


def _lock(root: Path) -> int:
    """Lock the directory and return the lock's descriptor."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise errors.InputError("pages", f"{root} is locked by another process") from None
    return descriptor


def _remove_others(root: Path, ours: set[str]) -> None:
    """Remove pages of other cards; folders stay, so that containers which mount one see its card when it returns."""
    for page in root.glob(f"*/{FILE}"):
        if page.parent.name not in ours:
            page.unlink(missing_ok=True)


def _resume(row: Any, page: Any) -> bool:
    """Take over what only the card's page holds: modes, past samples and errors; return whether it has these."""
    if page["product"] != row["product"]:
        return False
    for name, highest in MODES.items():
        row[name] = min(page[name], highest)
    kept = (
        "sample_count",
        "samples",
        "event_count",
        "events",
        "event_origins",
        "logged_count",
        "accounts",
        *events.COUNTERS,
    )
    for name in kept:
        row[name] = page[name]
    row["event_count"] %= _MAX_EVENTS
    row["logged_count"] = min(row["logged_count"], row["event_count"])
    return bool(page["minor"] >= _WITH_EVENTS)
