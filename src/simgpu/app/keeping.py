"""What outlives a process, in files: where the devices of its box stood, and what the cluster last said of its node.

A file is replaced as a whole. One that cannot be read is a warning, and counts as none.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec.structs import replace

from simgpu import boot, errors
from simgpu.box import Box, Kept
from simgpu.catalog import models
from simgpu.controllers.own_node import Uses
from simgpu.topology import pools

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Saved(msgspec.Struct, frozen=True):
    """Where devices stood at `now` of the simulation, `clock` of the day, `uptime` after the machine's last start."""

    version: Literal[2]
    boot: str
    clock: float
    uptime: float
    now: float
    devices: dict[str, Kept]

    @property
    def age(self) -> float:
        """What the simulation's time is now, whatever was done to the clock of the day."""
        return self.now + max(0.0, _uptime() - self.uptime)


class Known(msgspec.Struct, frozen=True):
    """What the node has, and who uses it, as the cluster last said."""

    spec: pools.NodeGpus = pools.NodeGpus(())
    uses: dict[str, Uses] = msgspec.field(default_factory=dict)
    version: Literal[1] = 1


class Keeper:
    """Writes a file that holds `what`. Where that fails, as on a full disk, it says so once, and goes on."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._written = b""
        self._problem = ""

    def save(self, document: Saved | Known) -> None:
        """Write what is not written yet."""
        content = msgspec.json.encode(document)
        if content == self._written:
            return
        unfinished = self._path.with_suffix(".unfinished")
        problem = ""
        try:
            unfinished.write_bytes(content)
            unfinished.rename(self._path)
            self._written = content
        except OSError as error:
            problem = errors.explain(error)
        if problem and problem != self._problem:
            _log.warning("%s is not saved: %s", self._what, problem)
        self._problem = problem


def stand(box: Box) -> Saved:
    """Where devices stand."""
    return Saved(2, boot.current(), box.machine.time, _uptime(), box.engine.now, box.keep())


def load(path: Path) -> Saved:
    """Where devices stood. While the machine was off they did nothing, and became cold."""
    saved = _read(path, Saved, "GPUs start anew")
    if saved is None:
        return Saved(2, boot.current(), time.time(), _uptime(), 0.0, {})
    if saved.boot == boot.current():
        return saved
    cold = {name: kept.cold() for name, kept in saved.devices.items()}
    off = max(0.0, time.time() - saved.clock)
    return Saved(2, boot.current(), time.time(), _uptime(), saved.now + off, cold)


def known(path: Path) -> Known:
    """What the cluster last said."""
    found = _read(path, Known, "what the node had is not known")
    if found is None:
        return Known()
    same: dict[str, models.Model] = {}  # devices of one model share it, which makes them peers
    gpus = tuple(replace(gpu, model=same.setdefault(gpu.model.key, gpu.model)) for gpu in found.spec.gpus)
    return replace(found, spec=replace(found.spec, gpus=gpus))


def _read(path: Path, kind: type[T], otherwise: str) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        explained = errors.explain(error) if isinstance(error, OSError) else error
        _log.warning("%s: %s: %s", otherwise, path, explained)
        return None


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
