"""Workload shapes: named mixes of demands on a card."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from simgpu import yaml_text
from simgpu.catalog.facts import Facts, Share

DATA = Path(__file__).parent / "data" / "shapes.yaml"


class Demand(Facts, frozen=True):
    """Demand of a load, as shares of what the card can do."""

    sm: Share = 0.0
    tensor: Share = 0.0
    memory: Share = 0.0
    pcie: Share = 0.0
    nvlink: Share = 0.0


class Shape(Facts, frozen=True):
    """A mix; `duty` is the share of time in which kernels run, `context` whether a process has the card open.

    `footprint` is the memory that such a job uses, as a share of the card's usable memory.
    """

    about: str
    demand: Demand = Demand()
    duty: Share = 1.0
    context: bool = True
    footprint: Share | None = None


@functools.cache
def load() -> dict[str, Shape]:
    """Return all shapes by name."""
    return msgspec.convert(yaml_text.parse_file(DATA), dict[str, Shape])
