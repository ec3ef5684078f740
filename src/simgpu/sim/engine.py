"""The engine: cards, workloads, and steps from one moment to the next.

A step follows one order: what active workloads ask is added up per card, and a workload whose part crosses a limit
of the card is ended; sums are clamped to what a card has; everything that follows from them follows (`physics`);
workloads past limits of their own are ended; activities whose time is over make room for the next.

Cards and parts of cards are known by ids that are never used again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import errors
from simgpu.catalog import models
from simgpu.sim import activity, cards, demands, places

FINISHED, REACHED = "OK", "Limit {} reached, terminated"

_LONGEST = 5.0  # seconds: longer steps are taken in pieces
_MOST_PIECES = 100
_LARGEST_MEMORY = 1e9


class Outcome(msgspec.Struct, frozen=True):
    """How a workload ended: the exit code and the message that its process ends with."""

    workload: int
    name: str
    exit_code: int
    message: str


class Share(msgspec.Struct, frozen=True):
    """What a workload has of a card or part of a card, now."""

    card: int
    part: int | None
    usage: float
    memory_mib: float
    power_w: float
    runtime: float


class Part(msgspec.Struct, frozen=True):
    """A tile or an instance of a card: its share of the card's work, and its memory."""

    card: int
    name: str
    share: float
    memory_mib: float


class PartState(msgspec.Struct, frozen=True):
    """What a part of a card is doing; `share` is what it is of the card."""

    share: float
    usage: float
    memory_mib: float
    memory_total_mib: float
    power_w: float


class _Targets(msgspec.Struct, frozen=True):
    """Where a workload runs: rows of one model, and the memory that each of them has."""

    model: str
    rows: npt.NDArray[np.intp]
    parts: npt.NDArray[np.int64]
    shares: npt.NDArray[np.float32]
    memory_mib: float


class _Workload(msgspec.Struct):
    """A running workload."""

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
        return self.profile.activities[self.at]

    @property
    def deadline(self) -> float:
        return self.begun + max(self.now.length / self.rate, activity.SHORTEST)


class Engine:
    """Cards of any models, and the workloads on them. `now` is the owner's; it only has to grow."""

    def __init__(self, *, seed: int, now: float = 0.0) -> None:
        self.now = now
        self._before = now
        self._seed = seed
        self._values = np.random.Generator(np.random.SFC64([seed, 0]))
        self._groups: dict[str, cards.Cards] = {}
        self._demands: dict[str, demands.Demands] = {}
        self._keys: list[str] = []
        self._places = places.Places()
        self._parts: dict[int, Part] = {}
        self._split: dict[int, list[int]] = {}
        self._hung: dict[str, npt.NDArray[np.float64]] = {}
        self._workloads: dict[int, _Workload] = {}
        self.epoch = 0.0  # the time of day when `now` was 0, as far as its owner told
        self._deadlines: list[tuple[float, int]] = []
        self._limited: dict[int, None] = {}
        self._next = 1

    # Cards.

    def add_cards(
        self, model: models.Model, count: int = 1, *, inlet: float | None = None, spread: float = 1.0
    ) -> range:
        """Ids of new cards at rest. `spread` is how far they differ from each other; 0 makes all like their model."""
        group = self._groups.get(model.key)
        if group is None:
            rng = np.random.Generator(np.random.SFC64([self._seed, len(self._groups) + 1]))
            group = self._groups[model.key] = cards.Cards(model, rng)
            self._demands[model.key] = demands.Demands()
            self._keys.append(model.key)
        elif group.model != model:
            raise errors.InputError("model", f"there are cards of another model that is called {model.key} too")
        if count < 0:
            raise errors.InputError("count", "must not be negative")
        rows = group.add(count, inlet=inlet, spread=spread)
        self._demands[model.key].changed = True
        return self._places.add(self._keys.index(model.key), rows)

    def remove_cards(self, ids: Iterable[int]) -> list[Outcome]:
        """Cards are gone; workloads that ran on them end with an error."""
        gone = {card: self._find(card) for card in ids}
        ended = [self._end(work, 1, "Device removed, terminated") for work in self._running_on(gone.values())]
        for card, (model, row) in gone.items():
            self._places.remove(card)
            if model in self._hung and row < len(self._hung[model]):
                self._hung[model][row] = 0
            self._groups[model].remove(np.array([row]))
            self._forget_parts(card)
        return ended

    def split(self, card: int, parts: Sequence[tuple[str, float, float]]) -> range:
        """Tiles or instances of a card: name, share of its work, memory in MiB. Workloads can run on each."""
        self._find(card)
        for name, share, memory in parts:
            if not (0 < share <= 1 and 0 < memory <= _LARGEST_MEMORY):
                raise errors.InputError("parts", f"{name}: share and memory must be above 0, and the share at most 1")
        held = self.parts(card).values()
        if sum(part.share for part in held) + sum(share for _, share, _ in parts) > 1 + 1e-6:
            raise errors.InputError("parts", "together they are more than the card")
        ids = self._places.add(-1, np.arange(len(parts)))
        for part, (name, share, memory) in zip(ids, parts, strict=True):
            self._parts[part] = Part(card, name, share, memory)
        self._split.setdefault(card, []).extend(ids)
        return ids

    def unsplit(self, card: int) -> list[Outcome]:
        """The card is whole again; workloads that ran on its parts end with an error."""
        gone = self.parts(card)
        ended = [
            self._end(work, 1, "Device removed, terminated")
            for work in list(self._workloads.values())
            if any(int(self._demands[work.model].part[row]) in gone for row in work.rows)
        ]
        self._forget_parts(card)
        return ended

    def _forget_parts(self, card: int) -> None:
        for part in self._split.pop(card, ()):
            del self._parts[part]

    def parts(self, card: int) -> dict[int, Part]:
        """The parts of a card by id."""
        return {part: self._parts[part] for part in self._split.get(card, ())}

    def set_limit(self, card: int, watts: float) -> None:
        """A power limit; the model's lowest and highest bound it."""
        power = self._model(card).power_w
        if not power.min <= watts <= power.max:
            raise errors.InputError("limit", f"must be from {power.min:g} to {power.max:g} W")
        self._set(card, "limit", watts)

    def set_highest_clock(self, card: int, mhz: float | None) -> None:
        """Lock the clock to at most this; None takes the lock away."""
        clocks = self._model(card).clocks_mhz
        if mhz is not None and not clocks.sm_min <= mhz <= clocks.sm_max:
            raise errors.InputError("clock", f"must be from {clocks.sm_min:g} to {clocks.sm_max:g} MHz")
        self._set(card, "highest", 1.0 if mhz is None else mhz / clocks.sm_max)

    def set_inlet(self, card: int, celsius: float) -> None:
        """The temperature of what cools the card."""
        self._set(card, "inlet", celsius)

    def set_linked(self, card: int, *, linked: bool) -> None:
        """Whether the card has peers. One that has none sends them nothing, whatever a workload asks."""
        model, row = self._find(card)
        self._groups[model]["linked"][row] = linked
        self._demands[model].changed = True

    def raise_counters(self, card: int, floors: Mapping[str, float]) -> None:
        """Counters are at least this: they go on from where somebody saw them."""
        model, row = self._find(card)
        for name, floor in floors.items():
            counter = self._groups[model][name]
            counter[row] = max(counter[row], floor)

    def resume_counters(self, card: int, values: Sequence[float], seconds: float) -> None:
        """Go on from where counters stood that long ago, plus the most that they can have grown since.

        Values that are not of this version's counters say nothing.
        """
        if len(values) != len(cards.COUNTERS):
            return
        highest = self._groups[self._find(card)[0]].highest
        most = {
            "energy": self._model(card).power_w.max, "busy_time": 1.0, "power_throttle": 1.0, "thermal_throttle": 1.0,
            "hardware_throttle": 1.0, "pcie_bytes": highest["pcie"], "fabric_bytes": highest["fabric"],
            "memory_bytes": highest["bandwidth"],
        }  # fmt: skip
        floors = zip(cards.COUNTERS, values, strict=True)
        self.raise_counters(card, {name: float(value) + most.get(name, 0.0) * seconds for name, value in floors})

    def _set(self, card: int, name: str, value: float) -> None:
        model, row = self._find(card)
        self._groups[model][name][row] = value

    def _find(self, card: int) -> tuple[str, int]:
        group, row = self._places.find(card)
        if group < 0:
            raise errors.InputError("device", f"there is no device {card}")
        return self._keys[group], row

    def _model(self, card: int) -> models.Model:
        return self._groups[self._find(card)[0]].model

    # Workloads.

    def add_workload(self, profile: activity.Profile, on: Sequence[int]) -> int:
        """A workload on cards, or parts of cards, of one model. A profile that is not allowed is an error."""
        activity.check(profile)
        if not on:
            raise errors.InputError("devices", "a workload needs at least one")
        targets = self._targets(on)
        group, asked = self._groups[targets.model], self._demands[targets.model]
        number, self._next = self._next, self._next + 1
        rows = asked.add(targets.rows, targets.parts, targets.shares, admitted=number).tolist()
        work = _Workload(
            id=number,
            profile=profile,
            model=targets.model,
            rows=rows,
            rate=_rate(profile, group.model),
            memory_mib=targets.memory_mib,
            started=self.now,
            begun=self.now,
            left=profile.repeat,
        )
        self._workloads[number] = work
        if profile.limits:
            self._limited[number] = None
        self._begin(work)
        return number

    def end_workload(self, workload: int) -> None:
        """A workload is gone, for whatever reason its owner has; to end one that ended is no error."""
        if work := self._workloads.get(workload):
            self._drop(work)

    def set_usage(self, workload: int, usage: float) -> None:
        """A workload asks for this much of its cards' time from now on; for whoever knows better than its profile."""
        if work := self._workloads.get(workload):
            self._demands[work.model].set_usage(np.array(work.rows, dtype=np.intp), min(1.0, max(0.0, usage)))

    def workloads(self) -> dict[int, str]:
        """Running workloads by id, with their names, in the order in which they came."""
        return {number: work.profile.name for number, work in self._workloads.items()}

    def shares(self, workload: int) -> list[Share]:
        """What a workload has of each of its cards."""
        work = self._workloads[workload]
        group, asked = self._groups[work.model], self._demands[work.model]
        result = []
        for index in work.rows:
            row = int(asked.card[index])
            usage = float(asked.values[demands.AT[activity.USAGE], index])
            working = max(0.0, float(group["power"][row]) - group.constants.idle)
            known = int(asked.part[index])
            result.append(
                Share(
                    card=self._card_at(work.model, row),
                    part=known or None,
                    usage=min(1.0, usage),
                    memory_mib=float(asked.memory(index)),
                    power_w=asked.part_of(index) * working,
                    runtime=self.now - work.started,
                )
            )
        return result

    def _targets(self, on: Sequence[int]) -> _Targets:
        """Cards and parts as rows of one model."""
        wanted = np.unique(np.asarray(on, dtype=np.int64))
        known = [self._parts.get(item) for item in wanted.tolist()] if self._parts else [None] * len(wanted)
        cards_of = [item if part is None else part.card for item, part in zip(wanted.tolist(), known, strict=True)]
        groups, rows = self._places.find_all(cards_of)
        if (groups < 0).any():
            raise errors.InputError("devices", f"there is no device {cards_of[int(np.argmax(groups < 0))]}")
        if (groups != groups[0]).any():
            raise errors.InputError("devices", "a workload's devices must be of one model")
        model = self._keys[groups[0]]
        memory = self._groups[model].model.memory_mib
        return _Targets(
            model=model,
            rows=rows,
            parts=np.array([0 if part is None else item for item, part in zip(wanted, known, strict=True)], np.int64),
            shares=np.array([1.0 if part is None else part.share for part in known], np.float32),
            memory_mib=min((part.memory_mib for part in known if part), default=float(memory.usable)),
        )

    def _running_on(self, places: Collection[tuple[str, int]]) -> list[_Workload]:
        numbers: list[int] = []
        for model in {model for model, _ in places}:
            asked = self._demands[model]
            on = asked.live & np.isin(asked.card, [row for key, row in places if key == model])
            numbers += np.unique(asked.admitted[on]).tolist()
        return [self._workloads[number] for number in numbers]

    def _card_at(self, model: str, row: int) -> int:
        return self._places.card(self._keys.index(model), row)

    def _begin(self, work: _Workload) -> None:
        group = self._groups[work.model]
        scale = demands.Scale(group, rate=work.rate, memory_mib=work.memory_mib)
        rows = np.array(work.rows, dtype=np.intp)
        self._demands[work.model].begin(rows, work.now, scale, now=work.begun, rng=self._values)
        heapq.heappush(self._deadlines, (work.deadline, work.id))

    def _drop(self, work: _Workload) -> None:
        self._demands[work.model].remove(np.array(work.rows, dtype=np.intp))
        del self._workloads[work.id]
        self._limited.pop(work.id, None)
        if len(self._deadlines) > 2 * len(self._workloads) + 1000:  # those of workloads that are gone
            self._deadlines = [item for item in self._deadlines if self._current(*item)]
            heapq.heapify(self._deadlines)

    def _end(self, work: _Workload, exit_code: int, message: str) -> Outcome:
        self._drop(work)
        return Outcome(work.id, work.profile.name, exit_code, message)

    # Time.

    def step(self, now: float) -> list[Outcome]:
        """Move on to `now`. Returns the workloads that ended on the way."""
        ended: list[Outcome] = []
        longest = max(_LONGEST, (now - self.now) / _MOST_PIECES)
        for left in range(2 * _MOST_PIECES, 0, -1):
            if now <= self.now:
                break
            until = min(now, self.now + longest)
            if left > 1:
                until = min(until, max(self._next_deadline(), self.now + activity.SHORTEST))
            ended += self._step(until if left > 1 else now)
        return ended

    def _step(self, now: float) -> list[Outcome]:
        dt = now - self.now
        start, self._before, self.now = self.now, self.now, now
        ended: list[Outcome] = []
        for model, group in self._groups.items():
            asked = self._demands[model]
            asked.draw(start, self._values, events=False)
            if asked.changed:
                ended += self._end_at_device_limits(model)
            usage = asked.usage(start, now)
            if asked.changed:
                asked.add_up(group, usage)
            self._pin(model, start)
            sensors = group.model.relations.sensors
            group.step(dt, ticks=_crossed(start, now, sensors.refresh), windows=_crossed(start, now, sensors.usage))
            self._befall(model, asked.draw(now, self._values, events=True), now)
        ended += self._end_at_own_limits()
        ended += self._advance()
        return ended

    def next_change(self) -> float:
        """The next moment at which what is asked changes: an activity's end, or a pulse's edge."""
        soonest = self._next_deadline()
        for asked in self._demands.values():
            pulsed = np.flatnonzero(asked.duty < 1)
            if len(pulsed):
                period, on = asked.period[pulsed], asked.duty[pulsed] * asked.period[pulsed]
                turns = np.floor((self.now - asked.started[pulsed] + 1e-9) / period)
                begun = asked.started[pulsed] + turns * period
                edge = np.where(self.now + 1e-9 < begun + on, begun + on, begun + period)
                soonest = min(soonest, float(edge.min()))
        return soonest

    def _next_deadline(self) -> float:
        while self._deadlines and not self._current(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def _current(self, deadline: float, workload: int) -> bool:
        work = self._workloads.get(workload)
        return work is not None and work.deadline == deadline

    def _end_at_device_limits(self, model: str) -> list[Outcome]:
        """Memory is what a card, or a part of one, runs out of: who crosses the end is ended, the others stay."""
        group, asked = self._groups[model], self._demands[model]
        memory = group.model.memory_mib
        whole = memory.usable + 0.5
        wanted = asked.values[demands.AT[activity.MEMORY]]
        crowded = [
            (np.flatnonzero(asked.live & (asked.card == row)), whole)
            for row in np.flatnonzero(asked.summing(group.count)(wanted) > whole)
        ]
        crowded += [
            (np.flatnonzero(asked.live & (asked.part == part)), self._parts[part].memory_mib + 0.5)
            for part in np.unique(asked.part[asked.live & (asked.part > 0)]).tolist()
        ]
        ended: list[Outcome] = []
        for rows, room in crowded:
            held = 0.0
            for index in rows[np.argsort(asked.admitted[rows], kind="stable")]:
                work = self._workloads.get(int(asked.admitted[index]))
                if work is not None and asked.live[index]:
                    if held + wanted[index] > room:
                        ended.append(self._end(work, 1, REACHED.format(activity.MEMORY)))
                    else:
                        held += float(wanted[index])
        return ended

    def _befall(self, model: str, came: list[tuple[str, Any, Any, Any]], now: float) -> None:
        """Events are counted; a hang lasts for a period."""
        group, asked = self._groups[model], self._demands[model]
        for name, rows, counts, seconds in came:
            at = asked.card[rows]
            np.add.at(group[name], at, counts)
            if name == "hangs" and len(struck := np.flatnonzero(counts >= 1)):
                until = self._hung.setdefault(model, np.zeros(0))
                if len(until) < group.count:
                    until = self._hung[model] = np.pad(until, (0, group.count - len(until)))
                np.maximum.at(until, at[struck], now + seconds[struck])
            if name in ("hangs", "uncorrected"):
                np.add.at(group["xids"], at, counts)
                group[f"{name}_at"][at[counts >= 1]] = now

    def _pin(self, model: str, start: float) -> None:
        """A card that hangs is busy with nothing until the hang is over."""
        group, asked = self._groups[model], self._demands[model]
        if model in self._hung:
            until = self._hung[model]
            hung = np.flatnonzero(until > start)
            if not len(hung):
                del self._hung[model]
            asked.changed = True
            for column, value in (("busy", 1.0), ("context", 1.0), ("sm", 0.02)):
                group[column][hung] = value
            for column in ("tensor", "memory", "pcie", "nvlink"):
                group[column][hung] = 0.0

    def _end_at_own_limits(self) -> list[Outcome]:
        ended = []
        for number in list(self._limited):
            work = self._workloads[number]
            asked = self._demands[work.model]
            for name, limit in work.profile.limits.items():
                if name == activity.RUNTIME:
                    reached = self.now - work.started >= limit
                elif name == activity.MEMORY:
                    reached = bool((asked.memory(np.array(work.rows)) > limit).any())
                else:
                    reached = bool((asked.values[demands.AT[name], work.rows] > limit).any())
                if reached:
                    ended.append(self._end(work, 1, REACHED.format(name)))
                    break
        return ended

    def _advance(self) -> list[Outcome]:
        """Activities whose time is over make room; the time by which a step overshot is not lost."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= self.now + 1e-9:
            deadline, number = heapq.heappop(self._deadlines)
            if not self._current(deadline, number):
                continue
            work = self._workloads[number]
            work.begun = deadline
            work.at += 1
            if work.at == len(work.profile.activities):
                work.at = 0
                if work.left == 1:
                    ended.append(self._end(work, 0, FINISHED))
                    continue
                work.left = max(0, work.left - 1)
            self._begin(work)
        return ended

    # Views.

    def read(self, name: str, ids: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """A quantity of some cards, in the order of their ids."""
        groups, rows = self._places.find_all(ids)
        result = np.empty(len(ids))
        for index in np.unique(groups):
            if index < 0:
                raise errors.InputError("device", "one of them does not exist")
            mine = groups == index
            result[mine] = self._groups[self._keys[index]][name][rows[mine]]
        return result

    def counters(self, ids: Sequence[int]) -> npt.NDArray[np.float64]:
        """All counters of some cards: a row for each, in the order of `cards.COUNTERS`."""
        groups, rows = self._places.find_all(ids)
        result = np.empty((len(ids), len(cards.COUNTERS)))
        for index in set(groups.tolist()):
            mine = groups == index
            result[mine] = self._groups[self._keys[index]].counters(rows[mine])
        return result

    def read_part(self, part: int) -> PartState:
        """What a part of a card is doing."""
        return PartState(**{name: float(values[0]) for name, values in self.read_parts([part]).items()})

    def read_parts(self, parts: Sequence[int]) -> dict[str, npt.NDArray[np.float64]]:
        """What parts of cards are doing, by the fields of `PartState`: their usage and memory, and their part of power.

        Work on a whole card is done by all of its parts if they are all of the card, as tiles are.
        """
        ids = np.asarray(parts, dtype=np.int64)
        known = [self._parts[part] for part in parts]
        share, room = np.array([part.share for part in known]), np.array([part.memory_mib for part in known])
        of_whole = room * [self._memory_share(part.card) for part in known]
        groups, rows = self._places.find_all([part.card for part in known])
        usage, memory, power = np.zeros((3, len(known)))
        for index in np.unique(groups):
            mine = np.flatnonzero(groups == index)
            group, asked = self._groups[self._keys[index]], self._demands[self._keys[index]]
            if self.now > self._before:
                usage[mine] = np.minimum(
                    1.0, asked.of_parts(asked.usage(self._before, self.now), ids[mine], rows[mine], of_whole[mine] > 0)
                )
            memory[mine] = np.minimum(
                room[mine], asked.of_parts(asked.memory(slice(None)), ids[mine], rows[mine], of_whole[mine])
            )
            busy = group["busy"][rows[mine]].astype(float)
            working = np.maximum(0.0, group["power_average"][rows[mine]] - group.constants.idle)
            doing = np.divide(working * usage[mine], busy, out=np.zeros(len(mine)), where=busy > 0)
            power[mine] = share[mine] * (group.constants.idle + doing)
        fields = {"usage": 100 * usage, "memory_mib": memory, "memory_total_mib": room, "power_w": power}
        return {"share": share, **fields}

    def _memory_share(self, card: int) -> float:
        """What each MiB of a card's parts is of all of theirs; 0 if the parts are not all of the card."""
        parts = self.parts(card).values()
        return 1 / sum(part.memory_mib for part in parts) if sum(part.share for part in parts) > 1 - 1e-6 else 0.0

    def state_bytes(self, model: str) -> int:
        """Bytes held for a card of a model with one workload on it."""
        return self._groups[model].state_bytes + self._demands[model].row_bytes + self._places.card_bytes

    def groups(self) -> Mapping[str, cards.Cards]:
        """All cards by model, for those who read many at once; `rows` says which id is where."""
        return self._groups

    def rows(self, ids: Sequence[int]) -> tuple[str, npt.NDArray[np.intp]]:
        """The model of some cards and their rows there; they must be of one model."""
        groups, rows = self._places.find_all(ids)
        if len(ids) == 0 or groups[0] < 0 or (groups != groups[0]).any():
            raise errors.InputError("devices", "must be of one model")
        return self._keys[groups[0]], rows

    # Keeping.

    def snapshot(self) -> bytes:
        """Everything, to go on from later: the same events then lead to the same bytes."""
        return msgspec.msgpack.encode(
            {
                "seed": self._seed,
                "now": self.now,
                "before": self._before,
                "next": self._next,
                "rng": cards.random_state(self._values),
                "groups": [
                    {"model": group.model, "cards": group.snapshot(), "demands": self._demands[key].snapshot()}
                    for key, group in self._groups.items()
                ],
                "places": self._places.snapshot(),
                "parts": self._parts,
                "hung": {key: cards.pack(until) for key, until in self._hung.items()},
                "workloads": list(self._workloads.values()),
                "deadlines": self._deadlines,
                "epoch": self.epoch,
            }
        )

    @classmethod
    def restored(cls, snapshot: bytes) -> Engine:
        """The engine that a snapshot was taken of."""
        kept = msgspec.msgpack.decode(snapshot, strict=False)
        engine = cls(seed=kept["seed"], now=kept["now"])
        engine._restore(kept)
        return engine

    def _restore(self, kept: dict[str, Any]) -> None:
        for item in kept["groups"]:
            model = msgspec.convert(item["model"], models.Model)
            self.add_cards(model, 0)
            self._groups[model.key].restore(item["cards"])
            self._demands[model.key].restore(item["demands"])
        self._before, self._next, self.epoch = kept["before"], kept["next"], kept["epoch"]
        self._values.bit_generator.state = cards.random_state_from(kept["rng"])
        self._places.restore(kept["places"])
        self._parts = {part: msgspec.convert(known, Part) for part, known in kept["parts"].items()}
        for part, known in self._parts.items():
            self._split.setdefault(known.card, []).append(part)
        self._hung = {key: cards.unpack(until, np.float64) for key, until in kept["hung"].items()}
        for item in kept["workloads"]:
            work = msgspec.convert(item, _Workload)
            self._workloads[work.id] = work
            if work.profile.limits:
                self._limited[work.id] = None
        self._deadlines = [(deadline, number) for deadline, number in kept["deadlines"]]


def _crossed(start: float, stop: float, every: float) -> int:
    """How many multiples of `every` lie after `start` and up to `stop`."""
    return math.floor(stop / every + 1e-9) - math.floor(start / every + 1e-9)


def _rate(profile: activity.Profile, model: models.Model) -> float:
    """How much faster this card does what was made for another."""
    if profile.reference is None:
        return 1.0
    reference = profile.reference
    return model.clocks_mhz.sm_max * model.capability / (reference.mhz * reference.capability)
