"""State that outlives a process: where the devices of a box stood, and which users its node had.

Where devices stood is read value by value: one that makes no sense costs no other.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from simgpu.catalog import models
from simgpu.machines.box import Box
from simgpu.machines.inventory import Kept
from simgpu.machines.users import User
from simgpu.topology import pools

VERSION: Final = 2
_LATEST = 1e10  # seconds
_LISTED = 5  # problems that a message names


class Moment(msgspec.Struct, frozen=True):
    """A boot of the operating system by its id, seconds since 1970, and seconds since that boot."""

    boot: str
    clock: float
    uptime: float


class Saved(msgspec.Struct, frozen=True):
    """Where devices stood at `now` of the simulation, in seconds; boot, clock and uptime are those of that moment."""

    version: Literal[2]
    boot: str
    clock: float
    uptime: float
    now: float
    devices: dict[str, Kept]

    def age(self, uptime: float) -> float:
        """Seconds of the simulation at an uptime, whatever was done to the clock of the day."""
        return self.now + max(0.0, uptime - self.uptime)


class Known(msgspec.Struct, frozen=True):
    """Which GPUs a node has, and the users of each, as the cluster last reported them."""

    spec: pools.NodeGpus = pools.NodeGpus(())
    users: dict[str, tuple[User, ...]] = msgspec.field(default_factory=dict)
    version: Literal[2] = 2

    def with_shared_models(self) -> Known:
        """The same with one model for all GPUs of a model, which makes them peers."""
        same: dict[str, models.Model] = {}
        gpus = tuple(replace(gpu, model=same.setdefault(gpu.model.key, gpu.model)) for gpu in self.spec.gpus)
        return replace(self, spec=replace(self.spec, gpus=gpus))


def nothing(at: Moment) -> Saved:
    """The state of a box that has no past."""
    return Saved(VERSION, at.boot, at.clock, at.uptime, 0.0, {})


def take(box: Box, at: Moment) -> Saved:
    """Where the devices of a box stand."""
    return Saved(VERSION, at.boot, box.machine.time, at.uptime, box.engine.now, box.keep())


def parse(document: Any, at: Moment) -> tuple[Saved, str]:
    """The state in a document, and which of its values make no sense; `ValueError` for another version.

    While the machine was off, devices did nothing and became cold.
    """
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"must be an object of version {VERSION}")
    before, wrong = nothing(at), list[str]()
    found: dict[str, Any] = {}
    for name in ("clock", "uptime", "now"):
        value = document.get(name)
        fits = isinstance(value, float) and 0 <= value <= _LATEST
        found[name] = value if fits else getattr(before, name)
        if not fits:
            wrong.append(name)
    devices = document.get("devices")
    if not isinstance(devices, dict):
        wrong.append("devices")
        devices = {}
    kept = {name: kept for name, item in devices.items() if (kept := _kept(name, item, wrong)) is not None}
    more = f" and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
    problems = ", ".join(wrong[:_LISTED]) + more
    if document.get("boot") == at.boot:
        return replace(before, devices=kept, **found), problems
    off = max(0.0, at.clock - found["clock"])
    cold = {name: stood.cold() for name, stood in kept.items()}
    return replace(before, now=found["now"] + off, devices=cold), problems


def _kept(name: str, item: Any, wrong: list[str]) -> Kept | None:
    if not isinstance(item, dict) or not isinstance(item.get("values"), dict):
        wrong.append(name)
        return None
    values = {key: value for key, value in item["values"].items() if isinstance(value, float) and math.isfinite(value)}
    wrong.extend(f"{name}.{key}" for key in item["values"] if key not in values)
    return Kept(str(item.get("kind")), values)
