"""Rows of pages: what a card is, from its device, and what it does now, from the simulation. Files are the writer's."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simgpu import errors, vocabulary
from simgpu.catalog import models, placing
from simgpu.page import accounting, layout
from simgpu.sim.parts import PartState
from simgpu.topology.devices import ComputeInstance, Device, part_id

BRANCH: Final = "r582_49"

_STATE: Final = [field for field in layout.PAGE if field.state]
_SETTINGS: Final = [field for field in _STATE if field.state in ("power_limit", "sm_clock_highest")]
_RESERVED_BAR1: Final = 535_953_408  # bytes that the driver takes when there are instances
_NIL: Final = uuid.UUID(int=0)
_ECC: Final = {"none": layout.ECC_NONE, "disabled": layout.ECC_OFF, "enabled": layout.ECC_ON}

Read = Callable[[str], npt.NDArray[np.float64]]


class CardRows:
    """A row for each of some cards, in their order, which are `among` the cards of a machine: by default all of them.

    `places` are those on each card's page of the MIG devices of each of its instances.
    """

    def __init__(self, devices: Sequence[Device], among: Sequence[Device] | None = None) -> None:
        _check(devices)
        self.values: npt.NDArray[Any] = np.zeros(len(devices), layout.DTYPE)
        self.places: list[list[list[int]]] = [[] for _ in devices]
        self._mapped = np.zeros(len(devices), np.uint64)  # bytes of BAR1 that instances take
        for index, device in enumerate(devices):
            describe(self.values[index], device, among or devices)
            self.divide(index, device)

    def divide(self, index: int, device: Device) -> None:
        """Give a card the MIG instances of a device."""
        self.places[index] = describe_instances(self.values[index], device)
        self._mapped[index] = describe_bar1(self.values[index], device)

    def fill(self, read: Read, instances: Mapping[int, Sequence[PartState]]) -> None:
        """Set the state of all cards; `read` returns a quantity of each, `instances` has states of MIG devices."""
        rows = self.values
        for field in _STATE:
            limits = np.iinfo(layout.DTYPE[field.name])
            values = np.rint(np.nan_to_num(read(field.state)) * field.scale)
            rows[field.name] = np.clip(values, limits.min, min(limits.max, 2**62))  # a double cannot hold 2**64 - 1
        rows["bar1_used"] = np.maximum(rows["bar1_used"], self._mapped)
        for index, states in instances.items():
            for places, state in zip(self.places[index], states, strict=True):
                for place in places:
                    mine = rows[index]["instances"][place]
                    mine["usage"], mine["memory_used"] = round(state.usage), int(state.memory_mib * 2**20)
                    mine["open"] = state.memory_mib > 0

    def fill_settings(self, index: int, read: Read) -> None:
        """Set the settings of one card."""
        for field in _SETTINGS:
            self.values[index][field.name] = round(float(read(field.state)[index]) * field.scale)

    def part_name(self, index: int, place: int) -> str:
        """Return the id of a card's MIG device, by its place on the page."""
        name: str = self.values[index]["instances"][place]["uuid"].decode()
        return name

    def alone(self, index: int, place: int) -> Any:
        """Return the row of a card with one of its MIG devices, as a container sees it."""
        return alone(self.values[index : index + 1], place)


def _check(devices: Sequence[Device]) -> None:
    if len(devices) > vocabulary.MAX_PAGES:
        raise errors.InputError("pages", f"at most {vocabulary.MAX_PAGES} cards can have one, not {len(devices)}")
    foreign = next((device for device in devices if device.model.vendor != "nvidia"), None)
    if foreign is not None:
        raise errors.InputError("pages", f"NVML supports NVIDIA's cards only, not {foreign.model.product}")


def describe(row: Any, device: Device, all_devices: Sequence[Device]) -> None:
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


def describe_instances(row: Any, device: Device) -> list[list[int]]:
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


def alone(card: npt.NDArray[Any], place: int) -> Any:
    """Return the page of a card with one of its instances and its processes, as a container sees it."""
    row = card.copy()[0]
    row["instances"] = np.zeros((), row["instances"].dtype)
    row["instances"][0], row["portions"][0] = card[0]["instances"][place], card[0]["portions"][place]
    row["instance_count"], row["bare_count"] = 1, 0
    listed = card[0]["apps"][: int(card[0]["app_count"])]
    own = listed[listed["instance"] == place]
    row["app_count"], row["apps"] = len(own), np.zeros((), row["apps"].dtype)
    row["apps"][: len(own)] = own
    row["apps"]["instance"][: len(own)] = 0
    accounting.clear(row)  # which instance a process had is not recorded
    return row


def describe_bar1(row: Any, device: Device) -> int:
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
