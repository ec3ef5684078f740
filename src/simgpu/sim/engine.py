"""The engine: the interface of the simulation, to add cards, run workloads on them and advance time.

A step has a fixed order: demands of active workloads are summed per card, and a workload that crosses the card's memory
or a limit that its model states is terminated; sums are clamped to the card's capacity; clocks, power and temperatures
follow (`physics`); workloads are terminated where these cross limits of the model, or where anything crosses limits of
their own; activities whose time is over are followed by the next.

Cards and parts of cards have ids that are never reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu import errors
from simgpu.catalog import models
from simgpu.sim import activity, cards, demands, limits, packing, places
from simgpu.sim.group import Group
from simgpu.sim.parts import Part, Parts, PartState
from simgpu.sim.workloads import REACHED, REMOVED, Outcome, Targets, Workloads

__all__ = ["Engine", "Outcome", "Part", "PartState", "Share", "Usages"]

_MAX_STEP_SECONDS = 5.0  # longer steps are split
_MAX_PIECES = 100

_WHOLE, _ALL_OF_IT = np.zeros(1, np.int64), np.ones(1, np.float32)  # part and share of a workload on one card


class Share(msgspec.Struct, frozen=True):
    """What a workload uses of a card or part of a card now."""

    card: int
    part: int | None
    usage: float  # 0 to 1
    memory_mib: float
    power_w: float
    runtime: float  # seconds since the workload started


class Usages(NamedTuple):
    """What workloads use of cards, as columns: an entry per workload and card or part that it runs on."""

    workload: npt.NDArray[np.int64]
    card: npt.NDArray[np.int64]
    usage: npt.NDArray[np.float64]
    memory_mib: npt.NDArray[np.float64]


class Engine:
    """Cards of any models, and the workloads on them. `now` is in seconds of the caller's clock, and only increases.

    Steps are `compiled` where the library for them is there, and those of many cards are jobs for `parallel`. Results
    depend on neither. A step is split where activities end, but not into pieces shorter than `finest`, in seconds: each
    costs as much as a step of all cards.
    """

    def __init__(
        self,
        *,
        seed: int,
        now: float = 0.0,
        compiled: bool = True,
        parallel: cards.Parallel = cards.in_turn,
        finest: float = activity.MIN_SECONDS,
    ) -> None:
        self._finest = finest
        self._compiled = compiled
        self._parallel = parallel
        self.now = now
        self.epoch = 0.0  # Unix time when `now` was 0, if the caller set it
        self._before = now
        self._seed = seed
        self._rng = np.random.Generator(np.random.SFC64([seed, 0]))
        self._groups: dict[str, Group] = {}
        self._numbered: dict[int, Group] = {}
        self._reading_limits: dict[int, limits.ReadingLimits] = {}  # by group, where its model has any
        self._places = places.Places()
        self._parts = Parts()
        self._workloads = Workloads(self._groups, self._rng)

    # Cards.

    def add_cards(
        self, model: models.Model, count: int = 1, *, inlet: float | None = None, spread: float = 1.0
    ) -> list[int]:
        """Add idle cards and return their ids. `spread` scales how much they differ; with 0 all equal their model."""
        if count < 0:
            raise errors.InputError("count", "must not be negative")
        if inlet is not None:
            _checked_inlet(inlet)
        if not count:
            return []
        group = self._group(model)
        return self._places.add(group.number, group.add(count, inlet=inlet, spread=spread))

    def remove_cards(self, ids: Iterable[int]) -> list[Outcome]:
        """Remove cards; workloads on them end with an error. Return their outcomes."""
        gone = {card: self._find(card) for card in ids}
        rows: dict[str, list[int]] = {}
        for group, row in gone.values():
            rows.setdefault(group.model.key, []).append(row)
        running = [number for key, mine in rows.items() for number in self._workloads.on(self._groups[key], mine)]
        ended = [self._workloads.end(number, 1, REMOVED) for number in running]
        for card, (group, row) in gone.items():
            self._places.remove([card, *self._parts.forget(card)])
            group.remove(row)
        for group in [group for group in self._groups.values() if not group.there]:
            self._places.forget(group.number)
            del self._groups[group.model.key], self._numbered[group.number]
            self._reading_limits.pop(group.number, None)
        return ended

    def split(self, card: int, parts: Sequence[tuple[str, float, float]]) -> list[int]:
        """Divide a card into parts: name, share of its compute, memory in MiB. Return the ids to run workloads on."""
        self._find(card)
        self._parts.check(card, parts)
        ids = self._places.add(-1, np.arange(len(parts)))
        for number, (name, share, memory) in zip(ids, parts, strict=True):
            self._parts.add(number, Part(card, name, share, memory))
        return ids

    def remove_parts(self, parts: Sequence[int]) -> list[Outcome]:
        """Remove parts of cards; workloads on them end with an error. Return their outcomes."""
        gone, running = np.asarray(parts, dtype=np.int64), list[int]()
        for group in self._groups.values():
            demand = group.demands
            running += np.unique(demand.admitted[demand.live & np.isin(demand.part, gone)]).tolist()
        ended = [self._workloads.end(number, 1, REMOVED) for number in running]
        self._parts.remove(parts)
        self._places.remove(list(parts))
        return ended

    def parts(self, card: int) -> dict[int, Part]:
        """Return the parts of a card by id."""
        return self._parts.of(card)

    def set_limit(self, card: int, watts: float) -> None:
        """Set the power limit, within the model's range."""
        group, row = self._find(card)
        power = group.model.power_w
        if not power.min <= watts <= power.max:
            raise errors.InputError("limit", f"must be from {power.min:g} to {power.max:g} W")
        group.cards["limit"][row] = watts

    def set_highest_clock(self, card: int, mhz: float | None) -> None:
        """Limit the SM clock; None removes the limit."""
        group, row = self._find(card)
        clocks = group.model.clocks_mhz
        if mhz is not None and not clocks.sm_min <= mhz <= clocks.sm_max:
            raise errors.InputError("clock", f"must be from {clocks.sm_min:g} to {clocks.sm_max:g} MHz")
        group.cards["highest"][row] = 1.0 if mhz is None else mhz / clocks.sm_max

    def set_inlet(self, card: int, celsius: float) -> None:
        """Set the temperature of the card's coolant."""
        group, row = self._find(card)
        group.cards["inlet"][row] = _checked_inlet(celsius)

    def set_linked(self, card: int, *, linked: bool) -> None:
        """Set whether the card has NVLink peers. Without peers it has no NVLink traffic, whatever the demand."""
        group, row = self._find(card)
        group.cards["linked"][row] = linked
        group.demands.changed = True

    def strike(self, card: int, event: str) -> None:
        """Let an event happen to a card once: one of its kinds, or `xids` if it falls off the bus."""
        group, row = self._find(card)
        group.strike(row, event, now=self.now)

    def take_errors(self) -> bool:
        """Return whether any cards had errors since the last call."""
        struck = [group for group in self._groups.values() if group.struck]
        for group in struck:
            group.struck = False
        return bool(struck)

    def erring_part(self, card: int, event: str) -> int | None:
        """Return the part of a card whose workload had the last error of a kind; None if it was none's."""
        group, row = self._find(card)
        return group.erring.get((event, row)) or None

    def keep(self, card: int) -> dict[str, float]:
        """Return the state of a card, for `resume` here or in another engine."""
        group, row = self._find(card)
        return group.cards.keep(row)

    def resume(self, card: int, kept: Mapping[str, float], *, seconds: float = 0.0) -> list[str]:
        """Restore the state of a card from `keep` of one of its model at `now`. Return the names of invalid values.

        Counters that were saved `seconds` ago resume with the most that they can have grown since.
        """
        group, row = self._find(card)
        return group.cards.resume(row, kept, seconds=seconds)

    def check_model(self, model: models.Model) -> None:
        """Raise an `InputError` if there are cards of a different model with the same key."""
        group = self._groups.get(model.key)
        if group is not None and group.model != model:
            raise errors.InputError("model", f"cards of another model named {model.key} exist")

    def _group(self, model: models.Model) -> Group:
        """Return the group of a model; a new one if there is none."""
        self.check_model(model)
        if model.key in self._groups:
            return self._groups[model.key]
        number = next(number for number in range(len(self._groups) + 1) if number not in self._numbered)
        return self._add_group(model, number)

    def _add_group(self, model: models.Model, number: int) -> Group:
        rng = np.random.Generator(np.random.SFC64([self._seed, number + 1]))
        there = cards.Cards(model, rng, compiled=self._compiled, parallel=self._parallel)
        group = self._groups[model.key] = self._numbered[number] = Group(number, model, there)
        if readings := limits.ReadingLimits(model.terminate):
            self._reading_limits[number] = readings
        return group

    def _find(self, card: int) -> tuple[Group, int]:
        number, row = self._places.find(card)
        if number < 0:
            raise errors.InputError("device", f"there is no device {card}")
        return self._numbered[number], row

    # Workloads.

    def add_workload(self, profile: activity.Profile, on: Sequence[int], *, owner: str = "", age: float = 0.0) -> int:
        """Start a workload on cards, or parts of cards, of one model, and return its id. InputError if it is invalid.

        It is where it would be had it begun `age` seconds ago. The activity changes per step of a named owner's
        workloads are limited.
        """
        activity.check(profile)
        if not on:
            raise errors.InputError("devices", "a workload needs at least one")
        return self._workloads.add(profile, self._targets(on), now=self.now, owner=owner, age=age)

    def end_workload(self, workload: int) -> None:
        """Remove a workload; one that has ended is ignored."""
        if workload in self._workloads.running:
            self._workloads.drop(workload)

    def set_usage(self, workload: int, usage: float) -> None:
        """Override the usage (0 to 1) of a workload until its next activity begins."""
        if work := self._workloads.running.get(workload):
            rows = np.array(work.rows, dtype=np.intp)
            self._groups[work.model].demands.set_usage(rows, min(1.0, max(0.0, usage)))

    def workloads(self) -> dict[int, str]:
        """Return the names of running workloads by id, in the order of their start."""
        return {number: work.profile.name for number, work in self._workloads.running.items()}

    def shares(self, workload: int) -> list[Share]:
        """Return what a workload uses of each of its cards."""
        work = self._workloads.running[workload]
        group = self._groups[work.model]
        return [self._share(group, index, runtime=self.now - work.started) for index in work.rows]

    def usages(self, workloads: Sequence[int]) -> Usages:
        """Return what many workloads use of their cards, in the order of the arguments."""
        works = [self._workloads.running[number] for number in workloads]
        counts = [len(work.rows) for work in works]
        rows = np.fromiter(chain.from_iterable(work.rows for work in works), dtype=np.intp)
        groups = np.repeat([self._groups[work.model].number for work in works], counts)
        numbers = np.repeat(np.asarray(workloads, dtype=np.int64), counts)
        found = Usages(numbers, np.empty(len(rows), np.int64), np.empty(len(rows)), np.empty(len(rows)))
        for group, mine in self._by_group(groups):
            demand, chosen = group.demands, rows[mine]
            found.card[mine] = self._places.cards(group.number, demand.card[chosen])
            found.usage[mine] = np.minimum(1.0, demand.values[demands.AT[activity.USAGE], chosen])
            found.memory_mib[mine] = demand.memory(chosen)
        return found

    def _share(self, group: Group, index: int, *, runtime: float) -> Share:
        demand, row = group.demands, int(group.demands.card[index])
        working = max(0.0, float(group.cards["power"][row]) - group.cards.constants.idle)
        return Share(
            card=self._places.card(group.number, row),
            part=int(demand.part[index]) or None,
            usage=min(1.0, float(demand.values[demands.AT[activity.USAGE], index])),
            memory_mib=float(demand.memory(index)),
            power_w=demand.part_of(index) * working,
            runtime=runtime,
        )

    def _targets(self, on: Sequence[int]) -> Targets:
        """Return the rows of cards and parts, which must be of one model."""
        divided = self._parts.known
        if len(on) == 1 and on[0] not in divided:
            number, row = self._places.find(on[0])
            if number < 0:
                raise errors.InputError("devices", f"there is no device {on[0]}")
            group = self._numbered[number]
            return Targets(group, np.array([row], np.intp), _WHOLE, _ALL_OF_IT, float(group.model.memory_mib.usable))
        wanted = np.unique(np.asarray(on, dtype=np.int64))
        known = [divided.get(item) for item in wanted.tolist()] if divided else [None] * len(wanted)
        cards_of = [item if part is None else part.card for item, part in zip(wanted.tolist(), known, strict=True)]
        numbers, rows = self._places.find_all(cards_of)
        if (numbers < 0).any():
            raise errors.InputError("devices", f"there is no device {cards_of[int(np.argmax(numbers < 0))]}")
        if (numbers != numbers[0]).any():
            raise errors.InputError("devices", "a workload's devices must be of one model")
        group = self._numbered[int(numbers[0])]
        return Targets(
            group=group,
            rows=rows,
            parts=np.array([0 if part is None else item for item, part in zip(wanted, known, strict=True)], np.int64),
            shares=np.array([1.0 if part is None else part.share for part in known], np.float32),
            memory_mib=min((part.memory_mib for part in known if part), default=float(group.model.memory_mib.usable)),
        )

    # Time.

    def step(self, now: float) -> list[Outcome]:
        """Advance to `now`. Return the outcomes of workloads that ended."""
        ended: list[Outcome] = []
        self._workloads.begin_step()
        longest = max(_MAX_STEP_SECONDS, (now - self.now) / _MAX_PIECES)
        for left in range(2 * _MAX_PIECES, 0, -1):
            if now <= self.now:
                break
            until = min(now, self.now + longest)
            if left > 1:
                until = min(until, max(self._workloads.next_deadline(), self.now + self._finest))
            ended += self._step(until if left > 1 else now, last=until == now or left == 1)
        return ended

    def _step(self, now: float, *, last: bool) -> list[Outcome]:
        start, self._before, self.now = self.now, self.now, now
        ended: list[Outcome] = []
        for group in self._groups.values():
            group.demands.draw(start, self._rng, events=False)
            if group.demands.changed or (group.demands.usage_changed and group.model.terminate):
                ended += self._end_all(limits.crossing(group, self._parts.known))
            group.step(start, now, self._rng)
            if (readings := self._reading_limits.get(group.number)) is not None:
                ended += self._end_all(readings.past(group, now, self._workloads.started))
        if last:
            ended += self._workloads.end_at_limits(now)
        return [*ended, *self._workloads.advance(now)]

    def _end_all(self, crossing: Mapping[int, str]) -> list[Outcome]:
        return [self._workloads.end(number, 1, REACHED.format(name)) for number, name in crossing.items()]

    def next_change(self) -> float:
        """Return when the demand changes next: the end of an activity, or the edge of a pulse."""
        edges = (group.demands.next_edge(self.now) for group in self._groups.values())
        return min([self._workloads.next_deadline(), *edges])

    # Views.

    def read(self, name: str, ids: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return a quantity of some cards, in the order of the ids."""
        numbers, rows = self._places.find_all(ids)
        result = np.empty(len(ids))
        for group, mine in self._by_group(numbers):
            result[mine] = group.cards[name][rows[mine]]
        return result

    def read_all(self, ids: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.float64]]:
        """Return copies of all quantities that views show, of some cards, in the order of the ids."""
        numbers, rows = self._places.find_all(ids)
        groups = np.unique(numbers).tolist()
        if groups and groups[0] < 0:
            raise errors.InputError("device", "one of them does not exist")
        if len(groups) == 1:
            only = self._numbered[groups[0]].cards
            return {name: only[name][rows].astype(np.float64) for name in cards.READABLE}
        columns = {name: np.empty(len(ids)) for name in cards.READABLE}
        for number in groups:
            mine = np.flatnonzero(numbers == number)
            group, there = self._numbered[number].cards, rows[mine]
            for name, values in columns.items():
                values[mine] = group[name][there]
        return columns

    def counters(self, ids: Sequence[int]) -> npt.NDArray[np.float64]:
        """Return all counters of some cards: a row per card, in the order of `cards.COUNTERS`."""
        numbers, rows = self._places.find_all(ids)
        result = np.empty((len(ids), len(cards.COUNTERS)))
        for group, mine in self._by_group(numbers):
            result[mine] = group.cards.counters(rows[mine])
        return result

    def _by_group(self, numbers: npt.NDArray[np.integer[Any]]) -> Iterator[tuple[Group, npt.NDArray[np.bool_]]]:
        """Yield each group among the numbers of groups, and where it is; `np.unique` would load masked arrays."""
        if (numbers < 0).any():
            raise errors.InputError("device", "one of them does not exist")
        for number, group in self._numbered.items():
            if (mine := numbers == number).any():
                yield group, mine

    def read_part(self, part: int) -> PartState:
        """Return the readings of a part of a card."""
        return PartState(**{name: float(values[0]) for name, values in self.read_parts([part]).items()})

    def read_parts(self, parts: Sequence[int] | npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.float64]]:
        """Return the readings of parts of cards, as columns named like the fields of `PartState`."""
        ids = np.asarray(parts, dtype=np.int64)
        numbers, rows = self._places.find_all(self._parts.cards(ids))
        columns = {name: np.empty(len(parts)) for name in PartState.__struct_fields__}
        for group, mine in self._by_group(numbers):
            states = self._parts.states(ids[mine], rows[mine], group, start=self._before, now=self.now)
            for name, values in states.items():
                columns[name][mine] = values
        return columns

    def state_bytes(self, model: str) -> int:
        """Return bytes of memory per card of a model with one workload on it."""
        group = self._groups[model]
        return group.cards.state_bytes + group.demands.row_bytes + self._places.card_bytes

    def groups(self) -> Mapping[str, cards.Cards]:
        """Return all cards by model, to read many at once."""
        return {key: group.cards for key, group in self._groups.items()}

    # Keeping.

    def snapshot(self) -> bytes:
        """Return the whole state: after `restored`, the same events lead to the same bytes."""
        return msgspec.msgpack.encode(
            {
                "seed": self._seed,
                "now": self.now,
                "before": self._before,
                "epoch": self.epoch,
                "rng": packing.random_state(self._rng),
                "groups": [group.snapshot() for group in self._groups.values()],
                "places": self._places.snapshot(),
                "parts": self._parts.known,
                "workloads": self._workloads.snapshot(),
                "readings": {number: item.snapshot() for number, item in self._reading_limits.items()},
            }
        )

    @classmethod
    def restored(cls, snapshot: bytes) -> Engine:
        """Return an engine with the state of a snapshot."""
        kept = msgspec.msgpack.decode(snapshot, strict=False)
        engine = cls(seed=kept["seed"], now=kept["now"])
        engine._restore(kept)
        return engine

    def _restore(self, kept: dict[str, Any]) -> None:
        for item in kept["groups"]:
            self._add_group(msgspec.convert(item["model"], models.Model), item["number"]).restore(item)
        self._before, self.epoch = kept["before"], kept["epoch"]
        self._rng.bit_generator.state = packing.random_state_from(kept["rng"])
        self._places.restore(kept["places"])
        self._parts.restore(kept["parts"])
        self._workloads.restore(kept["workloads"])
        for number, item in kept["readings"].items():
            self._reading_limits[number].restore(item)


def _checked_inlet(celsius: float) -> float:
    coldest, hottest = cards.INLETS
    if not coldest <= celsius <= hottest:
        raise errors.InputError("inlet", f"must be from {coldest:g} to {hottest:g} degrees")
    return celsius
