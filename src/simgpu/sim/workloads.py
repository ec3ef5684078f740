"""Workloads: which run where, when an activity makes room for the next, and how each ends."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.catalog import models
from simgpu.sim import activity, demands, limits
from simgpu.sim.group import Group

FINISHED, REMOVED, REACHED = "OK", "Device removed, terminated", "Limit {} reached, terminated"


class Outcome(msgspec.Struct, frozen=True):
    """How a workload ended: the exit code and the message that its process ends with."""

    workload: int
    name: str
    exit_code: int
    message: str


class Targets(msgspec.Struct, frozen=True):
    """Where a workload runs: rows of one model, and the memory that each of them has."""

    group: Group
    rows: npt.NDArray[np.intp]
    parts: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float32]
    memory_mib: float


class Workload(msgspec.Struct):
    """A running workload; its rows are those of its model's demands."""

    id: int
    profile: activity.Profile
    model: str
    rows: list[int]
    rate: float
    memory_mib: float
    started: float
    begun: float
    at: int = 0
    left: int = 1

    @property
    def now(self) -> activity.Activity:
        """What it does."""
        return self.profile.activities[self.at]

    @property
    def deadline(self) -> float:
        """When that is over."""
        return self.begun + max(self.now.length / self.rate, activity.SHORTEST)


class Workloads:
    """All that run, in the order in which they came; `groups` are the cards that they run on."""

    def __init__(self, groups: Mapping[str, Group], rng: np.random.Generator) -> None:
        self.running: dict[int, Workload] = {}
        self._groups = groups
        self._rng = rng
        self._next = 1
        self._deadlines: list[tuple[float, int]] = []
        self._limited: dict[int, None] = {}

    # Coming and going.

    def add(self, profile: activity.Profile, on: Targets, *, now: float) -> int:
        """Start one."""
        number, self._next = self._next, self._next + 1
        rows = on.group.demands.add(on.rows, on.parts, on.shares, admitted=number).tolist()
        work = Workload(
            id=number,
            profile=profile,
            model=on.group.model.key,
            rows=rows,
            rate=_rate(profile, on.group.model),
            memory_mib=on.memory_mib,
            started=now,
            begun=now,
            left=profile.repeat,
        )
        self._hold(work)
        self._begin(work)
        return number

    def drop(self, number: int) -> None:
        """One is gone."""
        work = self.running.pop(number)
        self._groups[work.model].demands.remove(np.array(work.rows, dtype=np.intp))
        self._limited.pop(number, None)
        if len(self._deadlines) > 2 * len(self.running) + 1000:  # those of workloads that are gone
            self._deadlines = [item for item in self._deadlines if self._current(*item)]
            heapq.heapify(self._deadlines)

    def end(self, number: int, exit_code: int, message: str) -> Outcome:
        """One is gone, and this is what its owner is told."""
        name = self.running[number].profile.name
        self.drop(number)
        return Outcome(number, name, exit_code, message)

    def on(self, group: Group, rows: list[int]) -> list[int]:
        """Those that run on some cards."""
        asked = group.demands
        found: list[int] = np.unique(asked.admitted[asked.live & np.isin(asked.card, rows)]).tolist()
        return found

    def _hold(self, work: Workload) -> None:
        self.running[work.id] = work
        if work.profile.limits:
            self._limited[work.id] = None

    def _begin(self, work: Workload) -> None:
        group = self._groups[work.model]
        scale = demands.Scale(group.cards, rate=work.rate, memory_mib=work.memory_mib)
        rows = np.array(work.rows, dtype=np.intp)
        group.demands.begin(rows, work.now, scale, now=work.begun, rng=self._rng)
        heapq.heappush(self._deadlines, (work.deadline, work.id))

    # Time.

    def next_deadline(self) -> float:
        """When the next activity is over."""
        while self._deadlines and not self._current(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def _current(self, deadline: float, number: int) -> bool:
        work = self.running.get(number)
        return work is not None and work.deadline == deadline

    def end_at_limits(self, now: float) -> list[Outcome]:
        """Those past limits of their own end."""
        ended = []
        for number in list(self._limited):
            work = self.running[number]
            asked = self._groups[work.model].demands
            if name := limits.reached(work.profile.limits, asked, work.rows, runtime=now - work.started):
                ended.append(self.end(number, 1, REACHED.format(name)))
        return ended

    def advance(self, now: float) -> list[Outcome]:
        """Activities whose time is over make room; the time by which a step overshot is not lost."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now + 1e-9:
            deadline, number = heapq.heappop(self._deadlines)
            if not self._current(deadline, number):
                continue
            work = self.running[number]
            work.begun = deadline
            work.at += 1
            if work.at == len(work.profile.activities):
                work.at = 0
                if work.left == 1:
                    ended.append(self.end(number, 0, FINISHED))
                    continue
                work.left = max(0, work.left - 1)
            self._begin(work)
        return ended

    # Keeping.

    def snapshot(self) -> dict[str, Any]:
        """Everything, to go on from later."""
        return {"next": self._next, "running": list(self.running.values()), "deadlines": self._deadlines}

    def restore(self, kept: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self._next = kept["next"]
        for item in kept["running"]:
            self._hold(msgspec.convert(item, Workload))
        self._deadlines = [(deadline, number) for deadline, number in kept["deadlines"]]


def _rate(profile: activity.Profile, model: models.Model) -> float:
    """How much faster this card does what was made for another."""
    if profile.reference is None:
        return 1.0
    reference = profile.reference
    return model.clocks_mhz.sm_max * model.capability / (reference.mhz * reference.capability)
