"""What counters may do: grow. Remembers the last value of each, and every fall that nothing explains.

Three things explain a fall. The GPUs of a node were replaced: until the next check at rest each of its counters may
begin anew, once. A failure was taken back: remapped rows go with it, likewise. A controller ended seconds after an
error was seen: it may have been kept from saving that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from soak.pages import Page, Place

# Longer than the network is lost, or answers are errors, and the write is tried again.
UNSAVED_SECONDS = 20.0
_STATELESS = "exporter"  # its counters count for one life of the process
_MAX_FALLS = 50
_OWN_COUNTERS = ("_total", "_count", "_sum")
_ROWS = "REMAPPED_ROWS"  # of a configured failure: they go when it is taken back
_ENERGY = "ENERGY"  # in the names of counters that grow with time

Key = tuple[str, str, str]  # a role, a family, and the id of a GPU


class Counters:
    """The counters of all roles. `falls` are lines for a report, `grown` the counters that were seen to grow."""

    def __init__(self) -> None:
        self.grown: set[Key] = set()
        self.falls: list[str] = []
        self._values: dict[Key, float] = {}
        self._grew: dict[Key, float] = {}  # when that was last seen
        self._places: dict[str, Place] = {}  # of GPUs
        self._lives: dict[str, tuple[int, float]] = {}  # of each role: its process, and when that was last read
        self._own: tuple[int, dict[str, float]] = 0, {}  # a controller's process, and its counters of itself
        self._may_fall: set[Key] = set()
        self._failed: set[str] = set()  # GPUs that were made to fail

    @property
    def roles_grown(self) -> set[str]:
        """The roles with a counter that grew."""
        return {role for role, _, _ in self.grown}

    def replaced(self, *nodes: str) -> None:
        """Let each counter of these nodes' GPUs fall once before the next rest: they are those of other GPUs."""
        gone = {gpu for gpu, place in self._places.items() if place[0] in nodes}
        self._may_fall |= {key for key in self._values if key[2] in gone}

    def failed(self, node: str, index: int) -> None:
        """Note that a GPU was made to fail: a controller that ends right after it may take the error along."""
        failing = {gpu for gpu, place in self._places.items() if place == (node, index)}
        self._failed |= failing
        self._may_fall |= {key for key in self._values if key[2] in failing and _ROWS in key[1]}

    def settled(self, role: str) -> None:
        """Allow a role no more falls: it was read at rest, so whatever was replaced has been seen."""
        self._may_fall = {key for key in self._may_fall if key[0] != role}

    def add(self, role: str, page: Page, *, pid: int, at: float) -> None:
        """Compare a page of a process with the one before it."""
        before, last_read = self._lives.get(role, (pid, at))
        self._lives[role] = (pid, at)
        if role == _STATELESS and before != pid:
            self._values = {key: value for key, value in self._values.items() if key[0] != role}
        self._places |= page.gpus
        ended = last_read if before != pid else None
        for key, value in _keyed(role, page).items():
            last = self._values.get(key, value)
            if math.isnan(value):
                self.falls.append(f"{at:.1f} s: {role} {key[1]} {self._places.get(key[2])}: it is no number")
                continue
            if value > last:
                self.grown.add(key)
                self._grew[key] = at
            elif value < last:
                self._fall(key, f"{last} -> {value}", at=at, ended=ended)
            self._values[key] = value

    def add_own(self, values: Mapping[str, float], *, pid: int, at: float) -> None:
        """Compare the controller's counters of itself, which count for one life of the process."""
        life, before = self._own
        now = {name: value for name, value in values.items() if name.partition("{")[0].endswith(_OWN_COUNTERS)}
        fallen = [name for name, value in now.items() if pid == life and not value >= before.get(name, value)]
        found = [f"{at:.1f} s: {name} of the controller: {before.get(name)} -> {now[name]}" for name in fallen]
        self.falls += found[: max(0, _MAX_FALLS - len(self.falls))]
        self._own = pid, now

    def _fall(self, key: Key, change: str, *, at: float, ended: float | None) -> None:
        """Remember a fall, unless it is explained; `ended` is when the process before was last read, if it ended."""
        role, family, gpu = key
        if key in self._may_fall:
            self._may_fall.discard(key)
        elif not self._unsaved(key, ended) and len(self.falls) < _MAX_FALLS:
            self.falls.append(f"{at:.1f} s: {role} {family} {self._places.get(gpu)}: {change}")

    def _unsaved(self, key: Key, ended: float | None) -> bool:
        if ended is None or key[2] not in self._failed or _ENERGY in key[1] or key not in self._grew:
            return False
        return ended - self._grew[key] <= UNSAVED_SECONDS


def _keyed(role: str, page: Page) -> dict[Key, float]:
    return {(role, family, gpu): value for (family, gpu), value in page.counters.items()}
