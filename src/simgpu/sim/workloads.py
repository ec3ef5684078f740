"""Workloads: which run where, when an activity makes room for the next, and how each ends.

Who owns a workload may be somebody that nobody trusts. What such owners' activities cost in a step is bounded: those
that are beyond it change later, and then go on with what they would be doing by then.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import errors
from simgpu.catalog import models
from simgpu.sim import activity, demands, limits
from simgpu.sim.group import Group

MAX_CHANGES = 64  # of activities in a step, for each owner
MAX_CHANGES_IN_ALL = 512  # of all owners that are not trusted,
GUARANTEED_CHANGES = 4  # beside these of each, so that no owner waits for others

_TOLERANCE = 1e-9  # seconds: what is due within this is due
_RATES = (1e-6, 1e6)

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
    owner: str = ""

    @property
    def now(self) -> activity.Activity:
        """What it does."""
        return self.profile.activities[self.at]

    @property
    def deadline(self) -> float:
        """When that is over."""
        return self.begun + max(self.now.length / self.rate, activity.MIN_SECONDS)


class Workloads:
    """All that run, in the order in which they came; `groups` are the cards that they run on."""

    def __init__(self, groups: Mapping[str, Group], rng: np.random.Generator) -> None:
        self.running: dict[int, Workload] = {}
        self._groups = groups
        self._rng = rng
        self._next = 1
        self._deadlines: list[tuple[float, int]] = []
        self._late: list[tuple[float, int]] = []  # deadlines that have passed in this step, too many to act on
        self._changes: Counter[str] = Counter()  # of activities in this step, by owner,
        self._changes_in_all = 0  # and of all of them
        self._limited: dict[int, limits.Own] = {}
        self._watches: dict[str, limits.Watch] | None = None  # by model; made when needed
        self._ends: dict[int, demands.Doubles] = {}  # of each activity, from the start of a cycle; made when needed

    # Coming and going.

    def add(self, profile: activity.Profile, on: Targets, *, now: float, owner: str = "") -> int:
        """Start one. An owner with a name is not trusted."""
        rate = _rate(profile, on.group.model)
        number, self._next = self._next, self._next + 1
        rows = on.group.demands.add(on.rows, on.parts, on.shares, admitted=number).tolist()
        work = Workload(
            id=number,
            profile=profile,
            model=on.group.model.key,
            rows=rows,
            rate=rate,
            memory_mib=on.memory_mib,
            started=now,
            begun=now,
            left=profile.repeat,
            owner=owner,
        )
        self._hold(work)
        try:
            self._begin(work)
        except BaseException:
            self.drop(number)
            raise
        return number

    def drop(self, number: int) -> None:
        """One is gone."""
        work = self.running.pop(number)
        self._groups[work.model].demands.remove(np.array(work.rows, dtype=np.intp))
        if self._limited.pop(number, None) is not None:
            self._watches = None
        self._ends.pop(number, None)
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
            self._limited[work.id] = limits.Own(work.profile.limits)
            self._watches = None

    def _begin(self, work: Workload) -> None:
        group = self._groups[work.model]
        scale = demands.Scale(group.cards, rate=work.rate, memory_mib=work.memory_mib)
        rows = np.array(work.rows, dtype=np.intp)
        group.demands.begin(rows, work.now, scale, now=work.begun, rng=self._rng)
        heapq.heappush(self._deadlines, (work.deadline, work.id))

    # Time.

    def begin_step(self) -> None:
        """From here on owners may change activities again; those that could not come first."""
        self._changes.clear()
        self._changes_in_all = 0
        for item in self._late:
            heapq.heappush(self._deadlines, item)
        self._late.clear()

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
        past = [
            number
            for model, watch in self._watched().items()
            for number in watch.past(self._groups[model].demands, now)
        ]
        return [outcome for number in sorted(past) if (outcome := self._end_at_limit(number, now))]

    def _watched(self) -> dict[str, limits.Watch]:
        if self._watches is None:
            found: dict[str, list[limits.Limited]] = {}
            for number, own in self._limited.items():
                work = self.running[number]
                found.setdefault(work.model, []).append(limits.Limited(number, work.rows, work.started, own))
            self._watches = {model: limits.Watch(items) for model, items in found.items()}
        return self._watches

    def _end_at_limit(self, number: int, now: float) -> Outcome | None:
        work = self.running[number]
        asked = self._groups[work.model].demands
        name = self._limited[number].reached(asked, work.rows, runtime=now - work.started)
        return self.end(number, 1, REACHED.format(name)) if name else None

    def advance(self, now: float) -> list[Outcome]:
        """Activities whose time is over make room; the time by which a step overshot is not lost."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now + _TOLERANCE:
            deadline, number = heapq.heappop(self._deadlines)
            if not self._current(deadline, number):
                continue
            work = self.running[number]
            if not self._may_change(work.owner):
                self._late.append((deadline, number))
            elif number in self._limited and (outcome := self._end_at_limit(number, now)):
                ended.append(outcome)
            elif self._move_on(work, now):
                self._begin(work)
            else:
                ended.append(self.end(number, 0, FINISHED))
        return ended

    def _may_change(self, owner: str) -> bool:
        if not owner:
            return True
        done = self._changes[owner]
        if done >= MAX_CHANGES or (done >= GUARANTEED_CHANGES and self._changes_in_all >= MAX_CHANGES_IN_ALL):
            return False
        self._changes[owner] = done + 1
        self._changes_in_all += 1
        return True

    def _move_on(self, work: Workload, now: float) -> bool:
        """Let one come to what it does `now`; whether there is anything left to do. What lies between is skipped."""
        work.begun = work.deadline
        work.at += 1
        if work.at == len(work.profile.activities):
            work.at = 0
            if work.left == 1:
                return False
            work.left = max(0, work.left - 1)
        return work.deadline > now + _TOLERANCE or self._catch_up(work, now + _TOLERANCE)

    def _catch_up(self, work: Workload, now: float) -> bool:
        ends = self._ends.get(work.id)
        if ends is None:
            lengths = np.array([item.length for item in work.profile.activities]) / work.rate
            ends = self._ends[work.id] = np.cumsum(np.maximum(lengths, activity.MIN_SECONDS))
        starts = np.concatenate([[0.0], ends[:-1]])
        start, cycle = work.begun - float(starts[work.at]), float(ends[-1])
        cycles = math.floor((now - start) / cycle)
        if 0 < work.left <= cycles:
            return False
        start, work.left = start + cycles * cycle, max(0, work.left - cycles)
        work.at = min(int(np.searchsorted(ends, now - start, side="right")), len(ends) - 1)
        work.begun = start + float(starts[work.at])
        return True

    # Keeping.

    def snapshot(self) -> dict[str, Any]:
        """Everything, to go on from later."""
        deadlines = [*self._deadlines, *self._late]
        return {"next": self._next, "running": list(self.running.values()), "deadlines": deadlines}

    def restore(self, kept: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self._next = kept["next"]
        for item in kept["running"]:
            self._hold(msgspec.convert(item, Workload))
        self._deadlines = [(deadline, number) for deadline, number in kept["deadlines"]]
        heapq.heapify(self._deadlines)


def _rate(profile: activity.Profile, model: models.Model) -> float:
    """How much faster this card does what was made for another."""
    if profile.reference is None:
        return 1.0
    reference = profile.reference
    rate = model.clocks_mhz.sm_max * model.capability / (reference.mhz * reference.capability)
    slowest, fastest = _RATES
    if not slowest <= rate <= fastest:
        problem = f"{model.product} is {rate:g} times as fast; from {slowest:g} to {fastest:g} times is allowed"
        raise errors.InputError("reference", problem)
    return rate
