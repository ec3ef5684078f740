"""The agent's state files: the state of its GPUs, and what the node has and who uses it. Each is replaced atomically.

A file that cannot be read is logged and ignored. One that cannot be written, as on a full disk, is logged once.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import msgspec

from simgpu import boot, errors
from simgpu.kube import errors as kube_errors
from simgpu.machines import saved
from simgpu.machines.box import Box
from simgpu.machines.saved import Known, Moment, Saved
from simgpu.page import outliving
from simgpu.vocabulary import KNOWN_FILE, STATE_FILE

_log = logging.getLogger(__name__)


class StateFiles:
    """State that the next agent resumes from. `saved` and `known` are what the previous one left.

    Where the state could not be saved, it has the counters of its `pages`.
    """

    def __init__(self, folder: Path, pages: Path) -> None:
        found = load(folder / STATE_FILE)
        self.saved = outliving.resume(found, pages, monotonic_ns=time.monotonic_ns(), uptime=now().uptime)
        self.known = load_known(folder / KNOWN_FILE)
        self._saved = _File(folder / STATE_FILE, "the state of GPUs")
        self._known = _File(folder / KNOWN_FILE, "the list of the node's GPUs and users")

    def age(self) -> float:
        """Return the simulation's time now, in seconds: it includes the time without an agent."""
        return self.saved.age(now().uptime)

    def save(self, box: Box) -> None:
        """Write the state of a box's devices, if it changed."""
        self._saved.write(saved.snapshot(box, now()))

    def remember(self, known: Known) -> None:
        """Write the node's GPUs and their users, if they changed."""
        self._known.write(known)


class _File:
    """A file with one JSON document; `what` names its content in messages."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._written = b""
        self._problem = ""

    def write(self, document: Saved | Known) -> None:
        """Write the document, unless it was the last one written; a failure is logged once."""
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
    """Return the current boot, time and uptime."""
    return Moment(boot.current(), time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))


def load(path: Path) -> Saved:
    """Return the saved state of devices; an empty one if the file is missing or invalid."""
    at = now()
    try:
        found, problems = saved.parse(json.loads(path.read_text(errors="replace"), parse_int=float), at)
    except FileNotFoundError:
        return saved.empty(at)
    except (OSError, ValueError, RecursionError) as error:
        _log.warning(
            "GPUs start from their initial state, but for counters on their pages: %s: %s",
            path,
            errors.explain(error) if isinstance(error, OSError) else error,
        )
        return saved.empty(at)
    if problems:
        _log.warning("%s: invalid values are ignored: %s", path, problems)
    return found


def load_known(path: Path) -> Known:
    """Return the GPUs and users that the cluster last reported; none if the file is missing or invalid."""
    try:
        known = msgspec.json.decode(path.read_bytes(), type=Known)
        known.check()
        return known.with_shared_models()
    except FileNotFoundError:
        return Known()
    except (OSError, errors.InputError, *kube_errors.DECODING) as error:
        explained = errors.explain(error) if isinstance(error, OSError) else error
        _log.warning("the previous GPUs of the node are unknown: %s: %s", path, explained)
        return Known()
