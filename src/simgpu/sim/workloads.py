"""Workloads: where each runs, when its next activity begins, and how it ends.

Owners of workloads may be untrusted. The activity changes per step of such owners are limited: those beyond the limit
happen in a later step, and then continue with the activity that is due by then.
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
from simgpu.vocabulary import MAX_CHANGES

MAX_CHANGES_IN_ALL = 512  # of activities per step, of all untrusted owners together
GUARANTEED_CHANGES = 4  # per step and owner in any case, so that no owner starves others

_TOLERANCE = 1e-9  # seconds, of comparisons with deadlines
_RATES = (1e-6, 1e6)

FINISHED, REMOVED, REACHED = "OK", "Device removed, terminated", "Limit {} reached, terminated"


class Outcome(msgspec.Struct, frozen=True):
    """How a workload ended: exit code and message of its process."""

    workload: int
    name: str
    exit_code: int
    message: str


class Targets(msgspec.Struct, frozen=True):
    """Where a workload runs: rows of one model, and the memory of each in MiB."""

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
    rate: float  # speed relative to the card that the profile was made for
    memory_mib: float  # of each card or part
    started: float  # when the workload started
    begun: float  # when its present activity began
    at: int = 0  # index of the present activity; one past the last while it does what comes afterwards
    left: int = 1  # repetitions, this one included; 0 is forever
    owner: str = ""  # untrusted unless empty

    @property
    def now(self) -> activity.Activity:
        """The present activity."""
        rest = self.profile.afterwards
        return rest if rest is not None and self.resting else self.profile.activities[self.at]

    @property
    def resting(self) -> bool:
        """Whether all repetitions are over."""
        return self.at == len(self.profile.activities)

    @property
    def deadline(self) -> float:
        """When the present activity ends."""
        return math.inf if self.resting else self.begun + max(self.now.length / self.rate, activity.MIN_SECONDS)


class Workloads:
    """All running workloads, in the order of their start; `groups` are the cards by model."""

    def __init__(self, groups: Mapping[str, Group], rng: np.random.Generator) -> None:
        self.running: dict[int, Workload] = {}
        self._groups = groups
        self._rng = rng
        self._next = 1
        self._deadlines: list[tuple[float, int]] = []
        self._late: list[tuple[float, int]] = []  # deadlines passed in this step that exceed the limit
        self._changes: Counter[str] = Counter()  # of activities in this step, by owner
        self._changes_in_all = 0  # of all owners together
        self._limited: dict[int, limits.WorkloadLimits] = {}
        self._watches: dict[str, limits.LimitWatch] | None = None  # by model; built on demand
        self._ends: dict[int, demands.Doubles] = {}  # of each activity, from the start of a cycle; built on demand

    # Coming and going.

    def add(self, profile: activity.Profile, on: Targets, *, now: float, owner: str = "", age: float = 0.0) -> int:
        """Start a workload that began `age` seconds ago and return its id. An owner with a name is not trusted."""
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
            started=now - age,
            begun=now - age,
            left=profile.repeat,
            owner=owner,
        )
        if work.deadline <= now and not self._catch_up(work, now):
            work.at, work.left, work.begun = len(profile.activities) - 1, 1, now - age  # it ends with the next step
        self._hold(work)
        try:
            self._begin(work)
        except BaseException:
            self.drop(number)
            raise
        return number

    def drop(self, number: int) -> None:
        """Remove a workload."""
        work = self.running.pop(number)
        self._groups[work.model].demands.remove(np.array(work.rows, dtype=np.intp))
        if self._limited.pop(number, None) is not None:
            self._watches = None
        self._ends.pop(number, None)
        if len(self._deadlines) > 2 * len(self.running) + 1000:  # entries of removed workloads
            self._deadlines = [item for item in self._deadlines if self._current(*item)]
            heapq.heapify(self._deadlines)

    def end(self, number: int, exit_code: int, message: str) -> Outcome:
        """Remove a workload and return its outcome."""
        name = self.running[number].profile.name
        self.drop(number)
        return Outcome(number, name, exit_code, message)

    def started(self, number: int) -> float:
        """Return when a workload started."""
        return self.running[number].started

    def on(self, group: Group, rows: list[int]) -> list[int]:
        """Return the workloads that run on some cards."""
        demand = group.demands
        found: list[int] = np.unique(demand.admitted[demand.live & np.isin(demand.card, rows)]).tolist()
        return found

    def _hold(self, work: Workload) -> None:
        self.running[work.id] = work
        if work.profile.limits:
            self._limited[work.id] = limits.WorkloadLimits(work.profile)
            self._watches = None

    def _begin(self, work: Workload) -> None:
        group = self._groups[work.model]
        scale = demands.Scale(group.cards, rate=work.rate, memory_mib=work.memory_mib)
        rows = np.array(work.rows, dtype=np.intp)
        group.demands.begin(rows, work.now, scale, now=work.begun, rng=self._rng)
        if not work.resting:
            heapq.heappush(self._deadlines, (work.deadline, work.id))

    # Time.

    def begin_step(self) -> None:
        """Reset the limits on changes; postponed changes come first."""
        self._changes.clear()
        self._changes_in_all = 0
        for item in self._late:
            heapq.heappush(self._deadlines, item)
        self._late.clear()

    def next_deadline(self) -> float:
        """Return when the next activity ends; infinity if none."""
        while self._deadlines and not self._current(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def _current(self, deadline: float, number: int) -> bool:
        work = self.running.get(number)
        return work is not None and work.deadline == deadline

    def end_at_limits(self, now: float) -> list[Outcome]:
        """End the workloads that have reached limits of their own. Return their outcomes."""
        past = [number for model, watch in self._watched().items() for number in watch.past(self._groups[model], now)]
        return [outcome for number in sorted(past) if (outcome := self._end_at_limit(number, now))]

    def _watched(self) -> dict[str, limits.LimitWatch]:
        if self._watches is None:
            found: dict[str, list[limits.LimitedWorkload]] = {}
            for number, own in self._limited.items():
                work = self.running[number]
                found.setdefault(work.model, []).append(limits.LimitedWorkload(number, work.rows, work.started, own))
            self._watches = {model: limits.LimitWatch(items) for model, items in found.items()}
        return self._watches

    def _end_at_limit(self, number: int, now: float) -> Outcome | None:
        work = self.running[number]
        group = self._groups[work.model]
        name = self._limited[number].reached(group, work.rows, runtime=now - work.started)
        return self.end(number, 1, REACHED.format(name)) if name else None

    def advance(self, now: float) -> list[Outcome]:
        """Start the next activities where the present ones have ended, from when these ended. Return outcomes."""
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
        """Move a workload to its activity at `now`, skipping any between. False if none is left."""
        work.begun = work.deadline
        work.at += 1
        if work.resting:
            if work.left == 1:
                return work.profile.afterwards is not None
            work.at = 0
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
            work.at, work.begun = len(ends), start + work.left * cycle
            return work.profile.afterwards is not None
        start, work.left = start + cycles * cycle, max(0, work.left - cycles)
        work.at = min(int(np.searchsorted(ends, now - start, side="right")), len(ends) - 1)
        work.begun = start + float(starts[work.at])
        return True

    # Keeping.

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain data, for `restore`."""
        deadlines = [*self._deadlines, *self._late]
        return {"next": self._next, "running": list(self.running.values()), "deadlines": deadlines}

    def restore(self, kept: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self._next = kept["next"]
        for item in kept["running"]:
            self._hold(msgspec.convert(item, Workload))
        self._deadlines = [(deadline, number) for deadline, number in kept["deadlines"]]
        heapq.heapify(self._deadlines)


def _rate(profile: activity.Profile, model: models.Model) -> float:
    """Return the speed of a model relative to the profile's reference card."""
    if profile.reference is None:
        return 1.0
    reference = profile.reference
    rate = model.clocks_mhz.sm_max * model.capability / (reference.mhz * reference.capability)
    slowest, fastest = _RATES
    if reference.clamped:
        return min(max(rate, slowest), fastest)
    if not slowest <= rate <= fastest:
        problem = f"{model.product} is {rate:g} times as fast; from {slowest:g} to {fastest:g} times is allowed"
        raise errors.InputError("reference", problem)
    return rate
