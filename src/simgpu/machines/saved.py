"""State that outlives a process: of the devices of a box, and of its node's users.

Each value of a device is checked on its own: an invalid one does not affect the others.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from simgpu.catalog import models
from simgpu.machines import profiles
from simgpu.machines.box import Box
from simgpu.machines.health import DeviceFailure
from simgpu.machines.inventory import DeviceState
from simgpu.machines.users import User
from simgpu.sim import activity
from simgpu.topology import pools
from simgpu.topology.mig_by_hand import HandMade

VERSION: Final = 2
_MAX_SECONDS = 1e10
_MAX_LISTED = 5  # problems in a message


class Moment(msgspec.Struct, frozen=True):
    """A boot of the operating system by its id, seconds since 1970, and seconds since that boot."""

    boot: str
    clock: float
    uptime: float


class Saved(msgspec.Struct, frozen=True):
    """States of devices at `now` of the simulation, in seconds; boot, clock and uptime are those of that moment."""

    version: Literal[2]
    boot: str
    clock: float
    uptime: float
    now: float
    devices: dict[str, DeviceState]

    def age(self, uptime: float) -> float:
        """Return the simulation's time at an uptime, in seconds; changes of the wall clock have no effect."""
        return self.now + max(0.0, uptime - self.uptime)


class Known(msgspec.Struct, frozen=True):
    """Which GPUs a node has, and the users of each, as the cluster last reported them; and what was divided by hand."""

    spec: pools.NodeGpus = pools.NodeGpus(())
    users: dict[str, tuple[User, ...]] = msgspec.field(default_factory=dict)
    version: Literal[2] = 2
    hand: HandMade | None = None

    def check(self) -> None:
        """Raise an `InputError` if models contradict themselves, or users do what they cannot."""
        for gpu in self.spec.gpus:
            models.consistent(gpu.model, where="spec.gpus")
        for user in chain.from_iterable(self.users.values()):
            activity.check(profiles.of_user(user))

    def with_shared_models(self) -> Known:
        """Return a copy in which GPUs of a model share one object, which makes them peers."""
        same: dict[str, models.Model] = {}
        gpus = tuple(replace(gpu, model=same.setdefault(gpu.model.key, gpu.model)) for gpu in self.spec.gpus)
        return replace(self, spec=replace(self.spec, gpus=gpus))


def empty(at: Moment) -> Saved:
    """Return the state of a new box."""
    return Saved(VERSION, at.boot, at.clock, at.uptime, 0.0, {})


def snapshot(box: Box, at: Moment) -> Saved:
    """Return the state of a box."""
    return Saved(VERSION, at.boot, box.machine.time, at.uptime, box.engine.now, box.device_states())


def parse(document: Any, at: Moment) -> tuple[Saved, str]:
    """Return the state in a document, and a list of its invalid values; `ValueError` for another version.

    After a reboot devices are cold.
    """
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"must be an object of version {VERSION}")
    before, wrong = empty(at), list[str]()
    found: dict[str, Any] = {}
    for name in ("clock", "uptime", "now"):
        value = document.get(name)
        fits = isinstance(value, float) and 0 <= value <= _MAX_SECONDS
        found[name] = value if fits else getattr(before, name)
        if not fits:
            wrong.append(name)
    devices = document.get("devices")
    if not isinstance(devices, dict):
        wrong.append("devices")
        devices = {}
    states = {name: state for name, item in devices.items() if (state := _state(name, item, wrong)) is not None}
    more = f" and {len(wrong) - _MAX_LISTED} more" if len(wrong) > _MAX_LISTED else ""
    problems = ", ".join(wrong[:_MAX_LISTED]) + more
    if document.get("boot") == at.boot:
        return replace(before, devices=states, **found), problems
    off = max(0.0, at.clock - found["clock"])
    cold = {name: state.cold() for name, state in states.items()}
    return replace(before, now=found["now"] + off, devices=cold), problems


def _state(name: str, item: Any, wrong: list[str]) -> DeviceState | None:
    if not isinstance(item, dict) or not isinstance(item.get("values"), dict):
        wrong.append(name)
        return None
    values = {key: value for key, value in item["values"].items() if isinstance(value, float) and math.isfinite(value)}
    wrong.extend(f"{name}.{key}" for key in item["values"] if key not in values)
    failure = item.get("failure", DeviceFailure.NONE.value)
    if failure not in [known.value for known in DeviceFailure]:
        wrong.append(f"{name}.failure")
        failure = DeviceFailure.NONE.value
    return DeviceState(str(item.get("kind")), values, failure=DeviceFailure(failure))
