"""Files below the agent's state folder: where GPUs stand, and what the node has. Each is replaced as a whole.

One that cannot be read is a warning, and counts as none. One that cannot be written, as on a full disk, is logged once.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import msgspec

from simgpu import boot, errors
from simgpu.machines import saved
from simgpu.machines.box import Box
from simgpu.machines.saved import Known, Moment, Saved
from simgpu.vocabulary import KNOWN_FILE, STATE_FILE

_log = logging.getLogger(__name__)


class StateFiles:
    """What an agent leaves to the one after it. `saved` and `known` are what was there when this one started."""

    def __init__(self, folder: Path) -> None:
        self.saved = load(folder / STATE_FILE)
        self.known = load_known(folder / KNOWN_FILE)
        self._saved = _File(folder / STATE_FILE, "where GPUs stand")
        self._known = _File(folder / KNOWN_FILE, "what the node has")

    def age(self) -> float:
        """Seconds of the simulation now: it went on while no agent ran."""
        return self.saved.age(now().uptime)

    def save(self, box: Box) -> None:
        """Write where the devices of a box stand."""
        self._saved.write(saved.snapshot(box, now()))

    def remember(self, known: Known) -> None:
        """Write what the node has, and who uses it."""
        self._known.write(known)


class _File:
    """A file that holds `what`."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._written = b""
        self._problem = ""

    def write(self, document: Saved | Known) -> None:
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


def now() -> Moment:
    """This moment."""
    return Moment(boot.current(), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))


def load(path: Path) -> Saved:
    """Where devices stood; nothing where there is no file or none that can be read."""
    at = now()
    try:
        found, problems = saved.parse(json.loads(path.read_text(errors="replace"), parse_int=float), at)
    except FileNotFoundError:
        return saved.empty(at)
    except (OSError, ValueError, RecursionError) as error:
        _log.warning(
            "GPUs start from their initial state: %s: %s",
            path,
            errors.explain(error) if isinstance(error, OSError) else error,
        )
        return saved.empty(at)
    if problems:
        _log.warning("%s: invalid values are ignored: %s", path, problems)
    return found


def load_known(path: Path) -> Known:
    """What the cluster last reported; nothing where there is no file or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Known).with_shared_models()
    except FileNotFoundError:
        return Known()
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        explained = errors.explain(error) if isinstance(error, OSError) else error
        _log.warning("the previous GPUs of the node are unknown: %s: %s", path, explained)
        return Known()
