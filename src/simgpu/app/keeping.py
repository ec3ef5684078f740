"""What outlives a process: where the devices of its box stood after the last step, in a file.

The file is replaced as a whole. One that cannot be read is a warning, and the devices start anew.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Literal

import msgspec

from simgpu import errors
from simgpu.box import Box, Kept

_BOOT = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


class Saved(msgspec.Struct, frozen=True):
    """Where devices stood at `now` of the simulation, which was `clock` of the day, since the machine's last start."""

    version: Literal[1]
    boot: str
    clock: float
    now: float
    devices: dict[str, Kept]

    @property
    def age(self) -> float:
        """What the simulation's time is now."""
        return self.now + max(0.0, time.time() - self.clock)


class Keeper:
    """Writes the file. Where that fails, as on a full disk, it says so once, and goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._problem = ""

    def save(self, box: Box) -> None:
        """Remember where devices stand."""
        saved = Saved(1, _boot(), box.machine.time, box.engine.now, box.keep())
        unfinished = self._path.with_suffix(".unfinished")
        problem = ""
        try:
            unfinished.write_bytes(msgspec.json.encode(saved))
            unfinished.rename(self._path)
        except OSError as error:
            problem = errors.explain(error)
        if problem and problem != self._problem:
            _log.warning("where GPUs stand is not saved: %s", problem)
        self._problem = problem


def load(path: Path) -> Saved:
    """Where devices stood. While the machine was off they did nothing, and became cold."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except FileNotFoundError:
        return _nothing()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        explained = errors.explain(error) if isinstance(error, OSError) else error
        _log.warning("GPUs start anew: %s: %s", path, explained)
        return _nothing()
    if saved.boot == _boot():
        return saved
    cold = {name: kept.cold() for name, kept in saved.devices.items()}
    return Saved(1, _boot(), time.time(), saved.age, cold)


def _nothing() -> Saved:
    return Saved(1, _boot(), time.time(), 0.0, {})


def _boot() -> str:
    return _BOOT.read_text().strip()
