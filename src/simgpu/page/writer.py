"""Writes pages: one directory per GPU, with its page in it.

A restarted writer reuses the files, so that programs which have them open, and containers that mount their directory,
see the card again.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import boot, errors, vocabulary
from simgpu.catalog import models, placing
from simgpu.page import apps, layout
from simgpu.sim.parts import PartState
from simgpu.topology.devices import MIG_PREFIX, ComputeInstance, Device, part_id

MAX_SOCKET_BYTES: Final = layout.DTYPE["control"].itemsize - 1
FILE: Final = "page"
BRANCH: Final = "r582_49"

MODES: Final = {"persistence": 1, "compute_mode": 3}  # settings besides clocks and power, and their highest values

_LOCK: Final = ".lock"
_ROOM: Final = (layout.DTYPE.itemsize + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
_STATE: Final = [field for field in layout.PAGE if field.state]
_SETTINGS: Final = [field for field in _STATE if field.state in ("power_limit", "sm_clock_highest")]
_RESERVED_BAR1: Final = 535_953_408  # bytes that the driver takes when there are instances
_NIL: Final = uuid.UUID(int=0)
_ECC: Final = {"none": layout.ECC_NONE, "disabled": layout.ECC_OFF, "enabled": layout.ECC_ON}

Read = Callable[[str], npt.NDArray[np.float64]]


class Pages:
    """The pages of a machine's cards, below one directory, which is locked until they are removed or closed.

    A reader takes a page as lost `stale` seconds after its last write. It sees these `processes` (see layout), and
    sends settings to the socket `control`. Pages of other cards, left by an earlier writer, are removed once the pages
    of all cards exist. With `parts`, each MIG instance has a page too: that of its card with this instance alone.
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
    ) -> None:
        _check(devices)
        self.root = root
        self._devices = devices
        self._rows: npt.NDArray[Any] = np.zeros(len(devices), layout.DTYPE)
        self._fence = threading.Lock()
        self._stale = np.uint64(stale * 1e9)
        self._places: list[list[list[int]]] = [
            [] for _ in devices
        ]  # on its page, of each card's instances' MIG devices
        self._mapped = np.zeros(len(devices), np.uint64)  # bytes of BAR1 that instances take
        for index, (row, device) in enumerate(zip(self._rows, devices, strict=True)):
            _describe(row, device, devices)
            self._describe_parts(index, device)
        named = (
            (index, place) for index, places in enumerate(self._places) for there in places for place in there if parts
        )
        self._parts = {(index, place): _part_name(self._rows[index], place) for index, place in named}
        self._rows["stale_ns"] = self._stale
        self._rows["boot"] = boot.current().encode()
        self._rows["processes"], self._rows["control"] = processes, control.encode()
        try:
            self._lock = _lock(root)
            with contextlib.ExitStack() as undone:
                undone.callback(os.close, self._lock)
                self._maps = [_map(root / device.uuid) for device in devices]
                self._part_maps = {key: _map(folder(root, name)) for key, name in self._parts.items()}
                _remove_others(root, {device.uuid for device in devices})
                _remove_others(folder(root, MIG_PREFIX).parent, set(self._parts.values()))
                undone.pop_all()
        except OSError as error:
            raise errors.InputError("pages", errors.explain(error)) from None
        for row, mapped in zip(self._rows, self._maps, strict=True):
            _resume(row, mapped[0])

    def _describe_parts(self, index: int, device: Device) -> None:
        self._places[index] = _describe_instances(self._rows[index], device)
        self._mapped[index] = _describe_bar1(self._rows[index], device)

    def divide(self, index: int, device: Device) -> None:
        """Give a card other MIG instances, for pages without `parts`; shown with the next write."""
        self._devices = [device if at == index else item for at, item in enumerate(self._devices)]
        self._describe_parts(index, device)

    @property
    def lists_processes(self) -> bool:
        """Whether pages list the processes that use the cards."""
        return bool((self._rows["processes"] == layout.LISTED_PROCESSES).any())

    def set_mode(self, index: int, name: str, value: int) -> None:
        """Set a mode of a card; the page shows it with the next write."""
        if not 0 <= value <= MODES[name]:
            raise errors.InputError(name, f"must be from 0 to {MODES[name]}")
        self._rows[index][name] = value

    def write(
        self,
        read: Read,
        *,
        clock: float,
        monotonic_ns: int,
        instances: Mapping[int, Sequence[PartState]] = {},
        processes: Mapping[int, Sequence[apps.App]] = {},
        lost: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Write the state of all cards; `read` returns a quantity of each. `clock` is in seconds since 1970.

        Readers find cards that are `lost` as they find those of a writer that is gone.

        `processes` have the card open. They name instances by their order on the device, which is that of `instances`,
        and compute instances by number.
        """
        rows = self._rows
        for field in _STATE:
            limits = np.iinfo(layout.DTYPE[field.name])
            values = np.rint(np.nan_to_num(read(field.state)) * field.scale)
            rows[field.name] = np.clip(values, limits.min, min(limits.max, 2**62))  # a double cannot hold 2**64 - 1
        rows["bar1_used"] = np.maximum(rows["bar1_used"], self._mapped)
        for index, states in instances.items():
            for places, state in zip(self._places[index], states, strict=True):
                for place in places:
                    mine = rows[index]["instances"][place]
                    mine["usage"], mine["memory_used"] = round(state.usage), int(state.memory_mib * 2**20)
                    mine["open"] = state.memory_mib > 0
        if self.lists_processes:
            for index, row in enumerate(rows):
                apps.fill(row, [item for app in processes.get(index, ()) for item in self._placed(index, app)])
        self._sample(clock)
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
            for place in self._places[index][item.instance]
            if listed[place]["compute_instance"] == item.compute
        ]

    def show_settings(self, index: int, read: Read) -> None:
        """Publish the settings of one card at once; everything else follows with the next write."""
        for field in _SETTINGS:
            self._rows[index][field.name] = round(float(read(field.state)[index]) * field.scale)
        self._publish_card(index)

    def _publish_card(self, index: int) -> None:
        """Write the page of a card, and those of its instances."""
        self._publish(self._rows[index], self._maps[index])
        for (card, place), mapped in self._part_maps.items():
            if card == index:
                self._publish(_alone(self._rows[index : index + 1], place), mapped)

    def _sample(self, clock: float) -> None:
        rows = self._rows
        place = rows["sample_count"].astype(np.intp) % layout.SAMPLES
        sample = np.zeros(len(rows), layout.DTYPE["samples"].base)
        sample["time_us"] = int(clock * 1e6)
        for name in ("power_mw", "usage", "memory_usage", "sm_clock", "memory_clock"):
            sample[name] = rows[name]
        rows["samples"][np.arange(len(rows)), place] = sample
        rows["sample_count"] += 1

    def _publish(self, row: Any, mapped: npt.NDArray[Any]) -> None:
        """Write under a seqlock: the sequence is odd meanwhile; the lock is a memory barrier."""
        page = mapped[0]
        before = int(page["sequence"]) | 1
        with self._fence:
            page["sequence"] = before
        with self._fence:
            row["sequence"] = before
            mapped[0] = row
        with self._fence:
            page["sequence"] = before + 1

    def remove(self) -> None:
        """Remove the pages: readers find no card, and those that have one open see it as lost."""
        self._rows["written_ns"] = self._rows["stale_ns"] = 0
        for index in range(len(self._rows)):
            self._publish_card(index)
        for name in (*(device.uuid for device in self._devices), *self._parts.values()):
            (folder(self.root, name) / FILE).unlink(missing_ok=True)
        for empty in (*self.root.glob("*/"), *folder(self.root, MIG_PREFIX).parent.glob("*/")):
            with contextlib.suppress(OSError):
                empty.rmdir()
        (self.root / _LOCK).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Stop writing; the pages stay for the next writer."""
        self._maps.clear()
        self._part_maps.clear()
        os.close(self._lock)


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


def _check(devices: Sequence[Device]) -> None:
    if len(devices) > vocabulary.MAX_PAGES:
        raise errors.InputError("pages", f"at most {vocabulary.MAX_PAGES} cards can have one, not {len(devices)}")
    foreign = next((device for device in devices if device.model.vendor != "nvidia"), None)
    if foreign is not None:
        raise errors.InputError("pages", f"NVML supports NVIDIA's cards only, not {foreign.model.product}")


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


def _usable(path: Path) -> bool:
    """Whether there is a page to reuse, interrupted write or not: readers that have it open see the card again."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    known = np.array([layout.MAGIC, layout.MAJOR], "<u4").tobytes()
    return len(content) >= _ROOM and content.startswith(known)


def _map(folder: Path) -> npt.NDArray[Any]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    if not _usable(path):
        _make(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, _ROOM)
        return np.frombuffer(mmap.mmap(descriptor, _ROOM), layout.DTYPE, count=1)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Create an empty page atomically."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".page-")
    made = Path(name)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(bytes(_ROOM))
        made.chmod(0o644)
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)


def _resume(row: Any, page: Any) -> None:
    """Take over what only the card's page holds: modes and past samples."""
    if page["product"] == row["product"]:
        for name, highest in MODES.items():
            row[name] = min(page[name], highest)
        row["sample_count"], row["samples"] = page["sample_count"], page["samples"]


def _describe(row: Any, device: Device, all_devices: Sequence[Device]) -> None:
    """Fill in the fields that never change."""
    model = device.model
    row["magic"], row["major"], row["minor"] = layout.MAGIC, layout.MAJOR, layout.MINOR
    row["size"] = layout.DTYPE.itemsize
    for field in layout.PAGE:
        if field.fact:
            value: Any = model
            for part in field.fact.split("."):
                value = getattr(value, part, None)
            row[field.name] = round((value or 0) * field.scale)
    row["index"] = row["minor_number"] = device.index
    row["product"], row["architecture"] = model.product.encode(), model.architecture.encode()
    row["uuid"], row["serial"] = device.uuid.encode(), device.serial.encode()
    first = all_devices[0].model  # a machine has one driver
    driver = first.driver or vocabulary.DEFAULT_DRIVER
    major, minor = (first.cuda or vocabulary.DEFAULT_CUDA).split(".")
    row["driver"], row["cuda"] = driver.encode(), 1000 * int(major) + 10 * int(minor)
    row["branch"] = (BRANCH if driver == vocabulary.DEFAULT_DRIVER else f"r{driver.partition('.')[0]}_00").encode()
    row["capability"] = round(float(model.compute_capability or "0") * 100)
    domain, bus, slot = device.pci_bus_id.split(":")
    row["pci_domain"], row["pci_bus"], row["pci_device"] = int(domain, 16), int(bus, 16), int(slot.split(".")[0], 16)
    row["pci_id"], row["pci_subsystem"] = int(model.pci.device, 16), int(model.pci.subsystem or "0", 16)
    row["board_id"] = int(row["pci_bus"]) << 8 | int(row["pci_device"])
    row["module_id"] = device.index % 8 + 1
    row["pdi"] = uuid.uuid5(_NIL, device.uuid).int >> 64
    row["memory_reserved"] = model.memory_mib.reserved * 2**20
    row["addressing"], row["c2c"] = (model.addressing_mode or "N/A").encode(), (model.c2c_mode or "N/A").encode()
    row["persistence"], row["virtualization"] = 1, 0
    row["margins"] = model.temperature_c.shown == "margin"
    if model.board is not None:
        board = model.board
        row["part_number"], row["gpu_part_number"] = board.part_number.encode(), board.gpu_part_number.encode()
        row["vbios"], row["inforom_image"] = board.vbios.encode(), board.inforom_image.encode()
        row["inforom_oem"], row["inforom_ecc"] = board.inforom_oem.encode(), board.inforom_ecc.encode()
    row["brand"], row["pci_class"] = (model.brand or "").encode(), int(model.pci.class_code, 16)
    row["ecc"] = _ECC.get(model.ecc or "", 0)
    first_clocks = row["memory_clocks"].size
    clocks = model.clocks_mhz.memory or (model.clocks_mhz.memory_max,)
    row["memory_clocks"][: len(clocks)] = clocks[:first_clocks]
    row["more_memory_clocks"][: max(0, len(clocks) - first_clocks)] = clocks[first_clocks:]
    _describe_cpus(row, device, all_devices)
    if model.links is not None and sum(other.model is model for other in all_devices) > 1:
        row["links"], row["fabric"] = model.links.count, model.links.switched


def _describe_cpus(row: Any, device: Device, all_devices: Sequence[Device]) -> None:
    nodes = max(other.numa for other in all_devices) + 1
    cpus = os.cpu_count() or 1
    each = max(1, cpus // nodes)
    row["numa"] = device.numa
    row["first_cpu"], row["cpus"] = min(device.numa * each, cpus - 1), each


def _describe_instances(row: Any, device: Device) -> list[list[int]]:
    """Fill in the card's profiles and instances; return, for each usable instance, the places of its MIG devices.

    MIG devices come first, by number; then the instances that have no compute instance.
    """
    model = device.model
    row["mig_capable"], row["mig_mode"] = bool(model.mig), device.mig_mode
    row["instances"], row["portions"] = np.zeros((), row["instances"].dtype), np.zeros((), row["portions"].dtype)
    for place, profile in enumerate(model.mig[: layout.PROFILES]):
        row["profiles"][place] = _profile(profile, model)
    pairs = list(zip(device.placements(), device.instances, strict=True))
    usable = [place.number for place, _ in device.usable_instances()]
    order = sorted(pairs, key=lambda pair: (pair[0].number not in usable, pair[0].number))
    names = [profile.name for profile in model.mig]
    listed = [(pair, item) for pair in order for item in _compute_instances(device, pair[0].number)]
    row["bare_count"] = len(pairs) - len(usable)
    row["instance_count"] = len(listed) - (len(pairs) - len(usable))
    for at, ((placement, instance), compute) in enumerate(listed):
        mine, number = row["instances"][at], 0 if compute is None else compute.number
        mine["uuid"] = part_id(device.uuid, placement.number, number).encode()
        mine["gpu_instance"], mine["compute_instance"] = placement.number, number
        mine["profile"], mine["start"], mine["slices"] = names.index(instance.name), placement.start, placement.size
        memory = placing.memory_mib(instance, model) * 2**20
        mine["memory_total"] = min(memory, int(row["memory_total"] - row["memory_reserved"]))
        if compute is not None:
            row["portions"][at] = (1, compute.kind, compute.start)
    numbers = [placement.number for (placement, _), _ in listed]
    return [[at for at, number in enumerate(numbers) if number == wanted] for wanted in usable]


def _compute_instances(device: Device, number: int) -> Sequence[ComputeInstance | None]:
    """Return the compute instances of an instance; None for the one that fills it, or if it has none."""
    return [item for item in device.compute if item.within == number] or [None]


def _part_name(row: Any, place: int) -> str:
    """Return the name of an instance's page."""
    name: str = row["instances"][place]["uuid"].decode()
    return name


def _alone(card: npt.NDArray[Any], place: int) -> Any:
    """Return the page of a card with one of its instances, as a container sees it; it lists no processes."""
    row = card.copy()[0]
    row["instances"] = np.zeros((), row["instances"].dtype)
    row["instances"][0], row["portions"][0] = card[0]["instances"][place], card[0]["portions"][place]
    row["instance_count"], row["bare_count"] = 1, 0
    row["app_count"], row["apps"] = 0, np.zeros((), row["apps"].dtype)
    return row


def _describe_bar1(row: Any, device: Device) -> int:
    """Fill in each instance's BAR1 size, and return the bytes of the card's BAR1 that they take.

    If instances are parts of a card, the driver maps all of its memory, and they share the rest of BAR1.
    """
    if not device.instances:
        return 0
    model, instances = device.model, row["instances"]
    slices = max(placing.memory_slices(profile, model) for profile in model.mig)
    window = int(row["bar1_total"])
    if instances["slices"][0] == slices:
        instances["bar1_kib"] = window // 1024
        return 0
    mapped = int(row["memory_total"] - row["memory_reserved"])
    each = max(window - mapped - _RESERVED_BAR1, 0) // 1024 // slices
    instances["bar1_kib"] = instances["slices"] * each
    return mapped


def _profile(profile: models.MigProfile, model: models.Model) -> tuple[Any, ...]:
    engines = placing.engines(profile, model)
    return (
        profile.name.encode(), profile.id, placing.compute_slices(profile), profile.count,
        placing.multiprocessors(profile, model), placing.memory_mib(profile, model),
        engines.copy, engines.decoders, engines.jpeg, engines.ofa,
    )  # fmt: skip
