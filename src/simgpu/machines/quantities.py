"""Quantities that identities name: each a small function from a machine to one number for each device.

NaN means that the device has no such quantity; its series is left out. For parts of a device (tiles, MIG instances)
some have values of their own; the others are the device's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from simgpu.machines.health import HANG_XID, LOST_XID, MEMORY_XID
from simgpu.machines.machine import Machine, Usage, Values
from simgpu.sim import physics
from simgpu.topology import links
from simgpu.topology.devices import Device

MIB: Final = 2.0**20
_PCIE_OUT: Final = 0.09  # PCIe bytes sent per byte received: acknowledgements and results
_BAR1_AT_REST: Final = 1_703_936  # bytes, as recorded
_HOPPER: Final = 9.0
_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
Quantity = Callable[[Machine], Values]


def column(name: str) -> Quantity:
    """Return a quantity of the engine, unchanged."""
    return lambda machine: machine.column(name)


def fact(path: str) -> Quantity:
    """Return a figure of the model, by path."""
    return lambda machine: machine.fact(path)


def constant(value: float) -> Quantity:
    """Return the same value for all devices."""
    return lambda machine: np.full(len(machine.devices), value)


def whole(inner: Quantity) -> Quantity:
    """Return a quantity rounded to the nearest whole number, as sensors are."""
    return lambda machine: np.rint(inner(machine))


def seen(inner: Quantity) -> Quantity:
    """Return a count that has no series while it is zero."""
    return lambda machine: np.where(inner(machine) > 0, inner(machine), np.nan)


def last(name: str) -> Quantity:
    """Return the time of the last error of a kind, in seconds since 1970; no series before the first."""

    def time(machine: Machine) -> Values:
        at = machine.column(f"{name}_at")
        return np.where(at > 0, machine.epoch + at, np.nan)

    return time


def since_hopper(inner: Quantity) -> Quantity:
    """Return a quantity that NVIDIA cards before Hopper do not report."""
    return lambda machine: np.where(_capability(machine) >= _HOPPER, inner(machine), np.nan)


def number(look: Callable[[Device], str | None]) -> Quantity:
    """Return the first number in a text of each device, hexadecimal or decimal."""

    def read(device: Device) -> float:
        found = _NUMBER.search(look(device) or "")
        if found is None:
            return np.nan
        return float(int(found[0], 0) if found[0].startswith("0x") else found[0])

    return lambda machine: machine.static(read)


def reason(mask: int) -> Quantity:
    """Return 1 while a reason for a lower clock applies, else 0."""
    return lambda machine: ((machine.column("reasons").astype(np.int64) & mask) != 0).astype(float)


def held_back(inner: Quantity, *, power: bool, heat: bool) -> Quantity:
    """Return a clock while exactly these limits reduce it; no series otherwise."""

    def held(machine: Machine) -> Values:
        reasons = machine.column("reasons").astype(np.int64)
        hot = (reasons & (physics.SOFTWARE_THERMAL | physics.HARDWARE_THERMAL)) != 0
        capped = (reasons & physics.POWER_CAP) != 0
        return np.where((capped == power) & (hot == heat), inner(machine), np.nan)

    return held


def served(name: str) -> Quantity:
    """Return the part of a demand that is served, from 0 to 1."""
    return lambda machine: machine.column("busy") * machine.column("throughput") * machine.column(name)


def rate(name: str, kind: str) -> Quantity:
    """Return the traffic of a demand, in bytes per second."""
    return lambda machine: served(name)(machine) * machine.highest(kind)


def _sm_active(machine: Machine) -> Values:
    return machine.column("busy") * np.maximum(machine.column("sm"), machine.column("tensor"))


def _fabric_or_nothing(machine: Machine) -> Values:
    highest = machine.highest("fabric")
    return np.where(highest > 0, served("nvlink")(machine) * highest, np.nan)


def _capability(machine: Machine) -> Values:
    return np.nan_to_num(machine.fact("compute_capability"))


def _fabric_state(machine: Machine) -> Values:
    """3 for a card that has joined the fabric; no series for one without peers."""
    return np.where((machine.peers > 0) & (_capability(machine) >= _HOPPER), 3.0, np.nan)


def over_link(number: int, name: str) -> Quantity:
    """Return a traffic quantity for a device's link of that number; link 0 is to itself."""

    def share(machine: Machine) -> Values:
        peers = machine.peers
        each = machine.fact("links.count") // np.maximum(peers, 1) / machine.fact("links.count")
        return np.where(number > peers, np.nan, QUANTITIES[name](machine) * (each if number else 0.0))

    return share


def _free(machine: Machine) -> Values:
    return machine.fact("memory_mib.total") - machine.fact("memory_mib.reserved") - machine.column("memory_used")


def _margin(machine: Machine) -> Values:
    """Degrees Celsius to the limit; under load the hottest spot is a little above the sensor."""
    spot = machine.column("temperature") + 4 * machine.column("power") / machine.fact("power_w.default")
    return np.rint(machine.fact("temperature_c.gpu_max") - spot)


def _fan_speed(machine: Machine) -> Values:
    """Percent: idle up to a temperature, then linear up to the highest; no series for a card without a fan."""
    idle, highest, start = (machine.fact(f"fans.{name}") for name in ("idle", "highest", "start"))
    span = np.maximum(machine.fact("temperature_c.gpu_max") - start, 1.0)
    share = np.clip((machine.column("temperature") - start) / span, 0.0, 1.0)
    return np.rint(idle + (highest - idle) * share)


def _losses(machine: Machine) -> Values:
    """How many times each card fell off the bus."""
    return np.rint(machine.column("xids") - machine.column("hangs") - machine.column("uncorrected"))


def _xid(machine: Machine) -> Values:
    """The last error: 43 after a hang, 48 after an uncorrected memory error, 79 after a fall off the bus.

    It stays when the card is healed, as in DCGM. Of errors at one time, or at unknown times, the gravest is shown.
    """
    hangs, bad, lost = machine.column("hangs"), machine.column("uncorrected"), _losses(machine)
    found, latest = np.zeros(len(hangs)), np.full(len(hangs), -1.0)
    for xid, count, name in ((HANG_XID, hangs, "hangs"), (MEMORY_XID, bad, "uncorrected"), (LOST_XID, lost, "lost")):
        at = machine.column(f"{name}_at")
        newer = (count >= 1) & (at >= latest)
        np.copyto(found, float(xid), where=newer)
        np.copyto(latest, at, where=newer)
    return np.where(machine.lost, float(LOST_XID), found)


def _request(machine: Machine) -> Values:
    open_context = machine.column("context") > 0
    top = machine.fact("clocks_mhz.sm_max") * machine.column("highest")
    return np.where(open_context, top, machine.fact("clocks_mhz.sm_idle"))


def _video(machine: Machine) -> Values:
    share = machine.column("sm_clock") / machine.fact("clocks_mhz.sm_max")
    low, high = machine.fact("clocks_mhz.video_idle"), machine.fact("clocks_mhz.video_max")
    return np.rint(np.fmin(np.fmax(share * high, low), high))  # stays at the idle clock if that alone is known


def _pstate(machine: Machine) -> Values:
    """8 for an idle card that lowers its memory clock, else 0."""
    resting = (machine.column("context") <= 0) & (
        machine.column("memory_clock") < machine.fact("clocks_mhz.memory_max")
    )
    return np.where(resting, 8.0, 0.0)


def _memory_power(machine: Machine) -> Values:
    """Watts of the memory: linear between the values of a recorded H200 at rest and at full load."""
    idle = machine.fact("power_w.idle")
    return 0.5 * idle + 0.114 * np.maximum(machine.column("power_average") - idle, 0.0)


def _ecc_mode(device: Device) -> float:
    return {"disabled": 0.0, "none": np.nan}.get(device.model.ecc or "", 1.0)


def with_ecc(inner: Quantity) -> Quantity:
    """Return a quantity that only cards with ECC enabled have."""
    return lambda machine: np.where(machine.static(_ecc_mode) == 1, inner(machine), np.nan)


def _c2c_mode(device: Device) -> float:
    return {"Enabled": 1.0, "Disabled": 0.0}.get(device.model.c2c_mode or "", np.nan)


def _mig_mode(device: Device) -> float:
    return float(device.mig_mode)


def _module(device: Device) -> float:
    """The card's slot on its board, from 1."""
    return device.index % links.BOARD + 1.0


QUANTITIES: Final[dict[str, Quantity]] = {
    "zero": constant(0.0),
    "one": constant(1.0),
    "index": lambda machine: np.arange(len(machine.devices), dtype=float),
    "count": lambda machine: np.bincount(machine.node_of)[machine.node_of].astype(float),
    # Work.
    "usage": whole(column("usage")),
    "usage_exact": column("usage"),
    "idle_share": lambda machine: 100 - machine.column("usage"),
    "sm_active": _sm_active,
    "sm_stall": lambda machine: machine.column("busy") - _sm_active(machine),
    "sm_occupancy": served("sm"),
    "process_occupancy": served("sm"),
    "busy": column("busy"),
    "tensor_active": served("tensor"),
    "dram_active": served("memory"),
    "memory_usage": whole(column("memory_usage")),
    "memory_usage_exact": column("memory_usage"),
    # Clocks, in MHz.
    "sm_clock": column("sm_clock"),
    "sm_clock_max": fact("clocks_mhz.sm_max"),
    "sm_clock_min": fact("clocks_mhz.sm_min"),
    "sm_clock_request": _request,
    "sm_clock_highest": lambda machine: machine.fact("clocks_mhz.sm_max") * machine.column("highest"),
    "sm_clock_share": lambda machine: machine.column("sm_clock") / machine.fact("clocks_mhz.sm_max"),
    "sm_clock_request_share": lambda machine: _request(machine) / machine.fact("clocks_mhz.sm_max"),
    "memory_clock": column("memory_clock"),
    "memory_clock_share": lambda machine: machine.column("memory_clock") / machine.fact("clocks_mhz.memory_max"),
    "memory_clock_max": fact("clocks_mhz.memory_max"),
    "memory_clock_min": fact("clocks_mhz.memory_idle"),
    "video_clock": _video,
    "data_clock": fact("clocks_mhz.data_idle"),
    "video_clock_max": fact("clocks_mhz.video_max"),
    "video_clock_min": fact("clocks_mhz.video_idle"),
    # Power, in watts, and energy, in joules.
    "power": column("power_average"),
    "power_whole": column("power_average"),
    "power_share": lambda machine: machine.column("power_average") / machine.column("limit"),
    "power_burst_share": lambda machine: machine.column("power_average") / machine.fact("power_w.max"),
    "power_instant": column("power_instant"),
    "power_memory": since_hopper(_memory_power),
    "power_limit": column("limit"),
    "power_default": fact("power_w.default"),
    "power_min": fact("power_w.min"),
    "power_max": fact("power_w.max"),
    "energy": column("energy"),
    # Heat, in degrees.
    "temperature": whole(column("temperature")),
    "memory_temperature": whole(column("temperature_memory")),
    "hottest": lambda machine: np.rint(np.maximum(machine.column("temperature"), machine.column("temperature_memory"))),
    "coldest": lambda machine: np.rint(np.fmin(machine.column("temperature"), machine.column("temperature_memory"))),
    "temperature_share": lambda machine: machine.column("temperature") / machine.fact("temperature_c.gpu_max"),
    "memory_temperature_share": lambda machine: (
        machine.column("temperature_memory") / machine.fact("temperature_c.memory_max")
    ),
    "temperature_margin": _margin,
    "fan_speed": _fan_speed,
    "temperature_shutdown": fact("temperature_c.shutdown"),
    "temperature_slowdown": fact("temperature_c.slowdown"),
    "temperature_max": fact("temperature_c.gpu_max"),
    "temperature_memory_max": fact("temperature_c.memory_max"),
    # Memory, in MiB.
    "fb_total": fact("memory_mib.total"),
    "fb_reserved": fact("memory_mib.reserved"),
    "fb_used": whole(column("memory_used")),
    "fb_free": lambda machine: np.rint(_free(machine)),
    "fb_taken": lambda machine: np.rint(machine.column("memory_used")) + machine.fact("memory_mib.reserved"),
    "memory_filled": lambda machine: machine.column("memory_used") / machine.fact("memory_mib.total"),
    "bar1_used": lambda machine: np.minimum(
        machine.column("memory_used") * MIB + _BAR1_AT_REST, machine.fact("memory_mib.bar1") * MIB
    ),
    "open": lambda machine: (machine.column("context") > 0).astype(float),
    "pstate": _pstate,
    # Traffic.
    "memory_bytes": column("memory_bytes"),
    "memory_rate": rate("memory", "bandwidth"),
    "memory_rate_max": fact("memory_gb_per_second"),
    "pcie_bytes": column("pcie_bytes"),
    "pcie_rate": rate("pcie", "pcie"),
    "pcie_bytes_out": lambda machine: machine.column("pcie_bytes") * _PCIE_OUT,
    "pcie_rate_out": lambda machine: rate("pcie", "pcie")(machine) * _PCIE_OUT,
    "pcie_speed": lambda machine: np.exp2(machine.fact("pci.generation")),
    "pcie_generation": fact("pci.generation"),
    "pcie_width": fact("pci.width"),
    "fabric_bytes": column("fabric_bytes"),
    "fabric_rate": _fabric_or_nothing,
    "fabric_share": served("nvlink"),
    "has_links": lambda machine: np.where(machine.fact("links.count") > 0, 1.0, np.nan),
    "linked": lambda machine: np.where(machine.peers > 0, 1.0, np.nan),
    # Throttling and errors.
    "reasons": column("reasons"),
    "reason_idle": reason(physics.IDLE),
    "reason_power": reason(physics.POWER_CAP),
    "reason_hardware": reason(physics.HARDWARE_SLOWDOWN),
    "reason_thermal": reason(physics.SOFTWARE_THERMAL),
    "reason_hardware_thermal": reason(physics.HARDWARE_THERMAL),
    "reason_any": lambda machine: (machine.column("reasons") > physics.IDLE).astype(float),
    "reasons_supported": constant(0x1FF),
    "throttled": lambda machine: machine.column("power_throttle") + machine.column("thermal_throttle"),
    "power_throttle": column("power_throttle"),
    "thermal_throttle": column("thermal_throttle"),
    "hardware_throttle": column("hardware_throttle"),
    "hangs_seen": seen(lambda machine: np.floor(machine.column("hangs"))),
    "uncorrected_seen": seen(lambda machine: np.floor(machine.column("uncorrected"))),
    "losses_seen": seen(_losses),
    "hangs_last": last("hangs"),
    "uncorrected_last": last("uncorrected"),
    "losses_last": last("lost"),
    "hangs": lambda machine: np.floor(machine.column("hangs")),
    "losses": _losses,
    "corrected": lambda machine: np.floor(machine.column("corrected")),
    "uncorrected": lambda machine: np.floor(machine.column("uncorrected")),
    "remap_banks": fact("row_remap_banks"),
    "mig_mode": lambda machine: machine.static(_mig_mode),
    "compute_capability": lambda machine: machine.fact("compute_capability"),
    # Facts about a card.
    "name": number(lambda device: device.model.product),
    "serial": number(lambda device: device.serial),
    "module": since_hopper(lambda machine: machine.static(_module)),
    "pci_domain": number(lambda device: f"0x{device.pci_bus_id[:8]}"),
    "pci_bus": number(lambda device: f"0x{device.pci_bus_id[9:11]}"),
    "pci_slot": number(lambda device: f"0x{device.pci_bus_id[12:14]}"),
    "pci_device_id": number(lambda device: device.model.pci.device),
    "pci_subsystem_id": number(lambda device: device.model.pci.subsystem),
    "inforom_ecc": number(lambda device: device.model.board.inforom_ecc if device.model.board else None),
    "inforom_oem": number(lambda device: device.model.board.inforom_oem if device.model.board else None),
    "ecc_mode": lambda machine: machine.static(_ecc_mode),
    "c2c_mode": lambda machine: machine.static(_c2c_mode),
    "fabric_state": _fabric_state,
    "host_memory": constant(256 * 1024.0),
    "busy_time": column("busy_time"),
    "copy_time": lambda machine: machine.column("memory_bytes") / machine.highest("bandwidth"),
    "idle_time": lambda machine: np.maximum(0.0, machine.now - machine.column("busy_time")),
    "clock_ticks": lambda machine: np.full(len(machine.devices), np.floor(machine.time * 1000)),
    "healthy": lambda machine: ((machine.column("uncorrected") < 1) & ~machine.lost).astype(float),
    "xid": _xid,
    "xid_none": lambda machine: np.where(_xid(machine) == 0, 0.0, np.nan),
    "xid_hang": lambda machine: np.where(_xid(machine) == HANG_XID, float(HANG_XID), np.nan),
    "xid_memory": lambda machine: np.where(_xid(machine) == MEMORY_XID, float(MEMORY_XID), np.nan),
    "xid_lost": lambda machine: np.where(_xid(machine) == LOST_XID, float(LOST_XID), np.nan),
    "xids": lambda machine: np.floor(machine.column("xids")),
    "clock_seconds": lambda machine: np.full(len(machine.devices), machine.time),
    # Names without a vendor's terms: MHz and bytes.
    "frequency": column("sm_clock"),
    "memory": lambda machine: machine.column("memory_used") * MIB,
}

_OF_PARTS: Final = {
    "usage": ("usage", 1.0), "usage_exact": ("usage", 1.0), "busy": ("usage", 0.01), "fb_used": ("memory_mib", 1.0),
    "memory": ("memory_mib", MIB), "power": ("power_w", 1.0), "fb_total": ("memory_total_mib", 1.0),
}  # fmt: skip


_CLOCKS: Final = ("sm_clock", "sm_clock_request", "sm_clock_share", "sm_clock_request_share")
QUANTITIES.update(
    {
        f"{name}_{why}": held_back(QUANTITIES[name], power=why in ("power", "both"), heat=why in ("heat", "both"))
        for name in _CLOCKS
        for why in ("free", "power", "heat", "both")
    }
)
QUANTITIES.update({f"ecc_{name}": with_ecc(QUANTITIES[name]) for name in ("zero", "corrected", "uncorrected")})
_MEASURED: Final = ("busy", "sm_active", "sm_occupancy", "tensor_active", "pcie_rate")
QUANTITIES.update({f"gpm_{name}": since_hopper(QUANTITIES[name]) for name in _MEASURED})
_OVER_LINKS: Final = ("fabric_bytes", "fabric_rate")
QUANTITIES.update({f"{name}_{at}": over_link(at, name) for name in _OVER_LINKS for at in range(links.BOARD)})


def of_devices(machine: Machine, name: str) -> Values:
    """Return a quantity of all devices."""
    return QUANTITIES[name](machine)


_ADDED_UP: Final = (
    "energy", "memory_bytes", "memory_rate", "fabric_bytes", "fabric_rate", "corrected", "uncorrected", "hangs",
)  # fmt: skip
_WHILE_BUSY: Final = (
    "sm_active", "sm_occupancy", "sm_stall", "tensor_active", "dram_active", "memory_usage", "memory_usage_exact",
)  # fmt: skip


def of_parts(machine: Machine, name: str) -> Values:
    """Return a quantity of all parts: their own, or their share of the device's, or the device's."""
    if name in _OF_PARTS:
        field, factor = _OF_PARTS[name]
        return machine.part_column(field) * factor
    if name in _FROM_PARTS:
        return _FROM_PARTS[name](machine)
    whole = QUANTITIES[name](machine)[machine.parent]
    if name in _ADDED_UP:
        share = 1 / np.bincount(machine.parent, minlength=len(machine.devices))[machine.parent]
        return np.asarray(whole * share)
    if name in _WHILE_BUSY:
        busy = machine.column("busy")[machine.parent]
        shared = np.where(busy > 0, whole / np.maximum(busy, 1e-9) * of_parts(machine, "busy"), 0.0)
        return np.where(machine.instances, _OF_INSTANCES[name](machine), shared) if name in _OF_INSTANCES else shared
    return whole


def _part_sm_active(machine: Machine) -> Values:
    return np.maximum(machine.part_column("sm"), machine.part_column("tensor"))


# What MIG instances do on their own; tiles work together.
_OF_INSTANCES: Final[dict[str, Quantity]] = {
    "sm_active": _part_sm_active,
    "sm_stall": lambda machine: of_parts(machine, "busy") - _part_sm_active(machine),
    "sm_occupancy": lambda machine: machine.part_column("sm"),
    "tensor_active": lambda machine: machine.part_column("tensor"),
    "dram_active": lambda machine: machine.part_column("traffic"),
}


def _part_pcie_rate(machine: Machine) -> Values:
    """The card's traffic, split by the load of its parts."""
    whole, busy = QUANTITIES["pcie_rate"](machine), np.maximum(machine.column("busy"), 1e-9)
    return np.asarray((whole / busy)[machine.parent] * of_parts(machine, "busy") * machine.part_column("share"))


def _part_since_hopper(name: str) -> Quantity:
    return lambda machine: np.where(_capability(machine)[machine.parent] >= _HOPPER, of_parts(machine, name), np.nan)


def of_links(machine: Machine, listed: Sequence[links.Link], name: str) -> Values:
    """Return a quantity of links: their share of the device's traffic, by ports, or the device's."""
    ports = np.array([link.ports for link in listed], dtype=float)
    if name == "linked":
        return (ports > 0).astype(float)
    device = np.array([link.device for link in listed], dtype=np.intp)
    values = QUANTITIES[name](machine)[device]
    if name in _OVER_LINKS:
        values = values * ports / machine.fact("links.count")[device]
    return values


def of_workloads(machine: Machine, usages: Sequence[Usage], name: str) -> Values:
    """Return a quantity of each workload on each device: its own, or the device's; NaN on cards with instances."""
    device = np.array([item.device for item in usages], dtype=np.intp)
    usage = np.array([item.usage for item in usages])
    if name == "usage":
        values = 100 * usage
    elif name == "fb_used":
        values = np.array([item.memory_mib for item in usages])
    else:
        values = QUANTITIES[name](machine)[device]
    if name == "process_occupancy":
        values = values / np.maximum(machine.column("busy")[device], 1e-9) * usage
    return np.where(machine.static(_mig_mode)[device] > 0, np.nan, values)


_FROM_PARTS: Final[dict[str, Quantity]] = {
    "fb_free": lambda machine: of_parts(machine, "fb_total") - of_parts(machine, "fb_used"),
    "fb_reserved": lambda machine: np.zeros(len(machine.parts)),
    "idle_share": lambda machine: 100 - of_parts(machine, "usage"),
    "memory_filled": lambda machine: of_parts(machine, "fb_used") / of_parts(machine, "fb_total"),
    "pcie_rate": _part_pcie_rate,
    **{f"gpm_{name}": _part_since_hopper(name) for name in _MEASURED},
}
