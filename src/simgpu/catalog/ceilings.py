"""Limits of a card at which workloads on it are terminated."""

from __future__ import annotations

from typing import Final, Literal

from simgpu.catalog.facts import Facts, Number

DEMANDS: Final = ("usage", "sm", "tensor", "bandwidth", "pcie", "fabric", "memory")


class Ceiling(Facts, frozen=True):
    """A limit of a quantity of a card or of each of its parts, and the quantity's `name` in messages, if it is another.

    Of what workloads demand (usage and units as shares of the card, memory in MiB) there is only a highest value: it
    ends the workload whose addition crosses it. A reading of a card (W, °C, MHz, joules, bytes, seconds, counts) that
    rises `above` a value or falls `below` one ends the newest workload on the card.
    """

    quantity: Literal[
        "usage", "sm", "tensor", "bandwidth", "pcie", "fabric", "memory",
        "power", "power_instant", "temperature", "memory_temperature", "frequency", "memory_clock", "memory_usage",
        "energy", "power_throttle", "thermal_throttle", "hardware_throttle", "busy_time",
        "memory_bytes", "pcie_bytes", "fabric_bytes", "hang_count", "corrected_count", "uncorrected_count", "xid_count",
    ]  # fmt: skip
    above: Number | None = None
    below: Number | None = None
    of: Literal["card", "part"] = "card"
    name: str = ""

    @property
    def shown(self) -> str:
        """The name in messages."""
        return self.name or self.quantity
