"""Cards on one engine, for a box or a fleet: the device, users and state of each.

Devices are added and removed; an unchanged one keeps its state, one that comes back resumes its counters.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, groupby, islice

import msgspec
import numpy as np

from simgpu.catalog import placing
from simgpu.machines import profiles
from simgpu.machines.health import HANG_XID, LOST_XID, MEMORY_XID, DeviceFailure, DeviceFaults
from simgpu.machines.machine import DevicePart, Machine, UsageLister
from simgpu.machines.registry import WorkloadGroup, WorkloadRegistry
from simgpu.machines.users import Plan, PodRef, User
from simgpu.sim import activity, cards, engine
from simgpu.topology import links
from simgpu.topology.devices import Device, StaticMetrics

_NO_USER = ("", "")
_ERRORS = {"uncorrected": MEMORY_XID, "hangs": HANG_XID}  # events that are errors, and the XID of each
_FAILURES = {DeviceFailure.MEMORY: MEMORY_XID, DeviceFailure.LOST: LOST_XID}

_log = logging.getLogger(__name__)


class DeviceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a device: values by quantity, its kind (see `kind_of`), its age in seconds, a configured failure."""

    kind: str
    values: dict[str, float]
    away: float = 0.0
    failure: DeviceFailure = DeviceFailure.NONE

    def cold(self) -> DeviceState:
        """Return only the counters and the failure, for a device that was absent or off."""
        kept = {name: value for name, value in self.values.items() if name in cards.OUTLIVING}
        return DeviceState("", kept, self.away, self.failure)


class Playing(msgspec.Struct, frozen=True, gc=False):
    """The workload, by number, that simulates a user, or the configured static metrics."""

    what: User | StaticMetrics
    resting: bool
    number: int


class Card(msgspec.Struct, gc=False):
    """A device, its number on the engine, its parts by (number on the device, profile, handle), and its users.

    `seen` are the users at the last step, to which its readings belong. `failure` is the configured one, and `forgiven`
    are the counts of `_ERRORS` when the card was last healed.
    """

    device: Device
    number: int
    parts: tuple[tuple[int, str, int], ...] = ()
    users: tuple[User, ...] = ()
    seen: tuple[User, ...] = ()
    playing: tuple[Playing, ...] = ()
    kind: str = ""
    place: int = -1  # in the machine that shows all cards of a fleet
    failure: DeviceFailure = DeviceFailure.NONE
    forgiven: tuple[float, ...] = ()

    def part_pods(self, users: Sequence[User]) -> dict[int, PodRef]:
        """Return the pods that label its MIG instances, by handle: of the first user of each."""
        first = {user.part: user.pod for user in reversed(users)}
        return {handle: first[number] for number, _, handle in self.parts if number in first}

    def pod(self, users: Sequence[User]) -> PodRef | None:
        """Return the pod that labels the card: of the first user of all of it, or from the configuration."""
        if users:
            return users[0].pod if users[0].part is None else next((one.pod for one in users if one.part is None), None)
        reading = self.device.static
        return PodRef(reading.pod, reading.namespace, reading.container) if reading and reading.pod else None


class Inventory:
    """All cards of one engine. `saved` are states at `now`, in seconds; of absent devices `max_gone` are kept.

    With `tiles`, cards of models that have tiles are split into them. `finest` is the engine's.
    """

    def __init__(
        self,
        *,
        seed: int,
        max_gone: int,
        tiles: bool,
        now: float = 0.0,
        spread: float = 1.0,
        saved: Mapping[str, DeviceState] = {},
        parallel: cards.Parallel = cards.in_turn,
        finest: float = activity.MIN_SECONDS,
    ) -> None:
        self.engine = engine.Engine(seed=seed, now=now, parallel=parallel, finest=finest)
        self.workloads = WorkloadRegistry(self.engine)
        self.steps = 0
        self.time = 0.0
        self._tiles = tiles
        self._spread = spread
        self._gone = dict(saved)  # states of absent devices
        self._max_gone = max_gone
        self.changed: list[Card] = []  # cards whose users were others before the last step
        self._changed: list[Card] = []  # since then
        self._plays: dict[int, Playing] = {}  # what users do, and configured loads, by their workload
        self._driven: dict[int, User] = {}  # users that requests drive, by their workload
        self._over: set[int] = set()  # of these workloads, those that have crossed a limit; they do not start again
        self._ended: list[tuple[User, str]] = []  # their users since the last `take_ended`, and why

    # Devices.

    def exchange(self, before: Iterable[Card], devices: Sequence[Device]) -> list[Card]:
        """Return the cards of these devices: those from before that are the same but for MIG instances, and new ones.

        Other cards from before are removed.
        """
        known: dict[str, list[Card]] = {}
        for card in before:
            known.setdefault(card.device.uuid, []).append(card)
        found: list[Card | None] = []
        for device in devices:
            there = known.get(device.uuid, [])
            found.append(there.pop(0) if there and there[0].device.model == device.model else None)
        absent = [device for device, card in zip(devices, found, strict=True) if card is None]
        for model in {device.model.key: device.model for device in absent}.values():
            self.engine.check_model(model)  # before anything is removed
        self.remove([card for there in known.values() for card in there])
        new = iter(self._add(absent))
        made = [card or next(new) for card in found]
        for card, device, peers in zip(made, devices, links.peers(devices), strict=True):
            if card.device != device:
                former, card.device, card.kind = card.device, device, ""
                if former.usable_instances() != device.usable_instances():
                    self._divide(card)
            self.engine.set_linked(card.number, linked=peers > 0)
        return made

    def remove(self, gone: Sequence[Card]) -> None:
        """Remove cards, end their workloads, and keep their counters."""
        numbers = [card.number for card in gone]
        last = [self.engine.read(name, numbers).tolist() for name in cards.LAST]
        for card, counters, *times in zip(gone, self.engine.counters(numbers).tolist(), *last, strict=True):
            self._gone.pop(card.device.uuid, None)  # so that the newest comes last
            self._gone[card.device.uuid] = DeviceState("", dict(zip(cards.OUTLIVING, [*counters, *times], strict=True)))
            self._forget(card.playing)
            card.playing = ()
        removed = set(numbers)
        self._changed = [card for card in self._changed if card.number not in removed]
        self.workloads.finish(self.engine.remove_cards(numbers))
        self._trim()

    def _add(self, devices: Sequence[Device]) -> list[Card]:
        made: list[Card] = []
        for _, group in groupby(devices, key=lambda device: device.model.key):
            members = list(group)
            numbers = self.engine.add_cards(members[0].model, len(members), spread=self._spread)
            made += (Card(device, number) for device, number in zip(members, numbers, strict=True))
        for card in made:
            card.parts = self._split(card)
            if (state := self._gone.pop(card.device.uuid, None)) is not None:
                self.resume(card, state if state.kind == kind_of(card) else state.cold())
        self._forgive(made)
        return made

    def _split(self, card: Card, kept: Mapping[tuple[int, str], int] = {}) -> tuple[tuple[int, str, int], ...]:
        """Split a card into its MIG instances or tiles; return number, profile and handle of each.

        `kept` are handles of instances that it has already, by number and profile.
        """
        device, model = card.device, card.device.model
        if device.instances:
            slices = model.sm_count or 1
            new = [(place, item) for place, item in device.usable_instances() if (place.number, item.name) not in kept]
            wanted = [
                (item.name, placing.multiprocessors(item, model) / slices, placing.memory_mib(item, model))
                for _, item in new
            ]
            made = self.engine.split(card.number, wanted)
            handles = {**kept, **{(place.number, item.name): made[at] for at, (place, item) in enumerate(new)}}
            pairs = device.usable_instances()
            return tuple((place.number, item.name, handles[place.number, item.name]) for place, item in pairs)
        if self._tiles and model.tiles > 1:
            memory = max(1, model.memory_mib.total // model.tiles)  # MiB: a card may have fewer than tiles
            wanted = [(str(tile), 1 / model.tiles, memory) for tile in range(model.tiles)]
            numbers = list(range(model.tiles))
        else:
            return ()
        tiles = self.engine.split(card.number, wanted)
        return tuple((number, "", handle) for number, handle in zip(numbers, tiles, strict=True))

    def _divide(self, card: Card) -> None:
        """Change the MIG instances of a card; those that stay keep what runs on them."""
        if not card.device.instances or not all(name for _, name, _ in card.parts):
            gone, kept = [handle for _, _, handle in card.parts], {}
        else:
            wanted = {(place.number, item.name) for place, item in card.device.usable_instances()}
            kept = {(number, name): handle for number, name, handle in card.parts if (number, name) in wanted}
            gone = [handle for number, name, handle in card.parts if (number, name) not in kept]
        if gone:
            self.workloads.finish(self.engine.remove_parts(gone))
        staying = {None, *(number for number, _ in kept)}
        stays = [item for item in card.playing if not isinstance(item.what, User) or item.what.part in staying]
        if len(stays) < len(card.playing):  # others are to be started again, on the instance
            self._end([item for item in card.playing if item not in stays])
            card.playing = tuple(stays)
            card.users = tuple(item.what for item in stays if isinstance(item.what, User))
            self._changed.append(card)
        card.parts = self._split(card, kept)

    # Users.

    def use(self, card: Card, users: Sequence[User], *, resting: Collection[tuple[str, str]] = ()) -> bool:
        """Set a card's users; the first one's pod labels it. Return whether that changed anything.

        Each container is one user of the card, or of an instance, however often it is listed. Users that are `resting`,
        by uid and container, are driven by workloads of their own instead.
        """
        static = card.device.static
        wanted: dict[tuple[tuple[str, str], int | None], User | StaticMetrics] = {}
        for user in users:
            wanted.setdefault((user.key, user.part), user)
        if not users and static is not None:
            wanted[_NO_USER, None] = static
        targets = [(item, key in resting) for (key, _), item in wanted.items()]
        running, over = self.workloads.running, self._over
        kept = {
            (item.what, item.resting): item for item in card.playing if item.number in running or item.number in over
        }
        if list(kept) == targets and len(kept) == len(card.playing):
            return False
        stays = [kept[target] for target in targets if target in kept]
        self._end([item for item in card.playing if item not in stays])
        card.users, card.playing = tuple(users), tuple(self._play_all(card, targets, stays))
        self._changed.append(card)
        return True

    def _end(self, items: Collection[Playing]) -> None:
        self.workloads.drop([item.number for item in items])
        self._forget(items)

    def _play_all(
        self, card: Card, targets: Sequence[tuple[User | StaticMetrics, bool]], stays: Sequence[Playing]
    ) -> list[Playing]:
        """Return what plays all targets: what `stays`, else a new workload. If one cannot start, no new one has."""
        playing = {(item.what, item.resting): item for item in stays}
        try:
            for target in targets:
                if target not in playing:
                    playing[target] = item = self._play(card, target)
                    self._plays[item.number] = item
        except BaseException:
            self._end([item for item in playing.values() if item not in stays])
            card.users = tuple(item.what for item in stays if isinstance(item.what, User))
            card.playing = tuple(stays)
            self._changed.append(card)
            raise
        return [playing[target] for target in targets]

    def _play(self, card: Card, target: tuple[User | StaticMetrics, bool]) -> Playing:
        what, rests = target
        if not isinstance(what, User):
            return Playing(what, rests, self._start(card.number, profiles.static(what), card.pod(())))
        on = next((handle for number, _, handle in card.parts if number == what.part), card.number)
        absent = what.part is not None and on == card.number
        profile = profiles.of_user(what, resting=rests or absent)
        if what.plan is not None and not rests and not absent:
            return Playing(what, rests, self._follow_plan(on, what, what.plan, profile))
        number = self._start(on, profile, what.pod)
        if what.full_load and not rests and not absent:
            self._driven[number] = what
        return Playing(what, rests, number)

    def _start(self, handle: int, profile: activity.Profile, pod: PodRef | None) -> int:
        return self.workloads.start(profile, [WorkloadGroup((handle,))], pod=pod)[0]

    def request_driven(self) -> list[tuple[User, int]]:
        """Return the users that their requests drive, and the workload of each."""
        return [(user, number) for number, user in self._driven.items()]

    def _follow_plan(self, handle: int, user: User, plan: Plan, profile: activity.Profile) -> int:
        """Start a user's plan where it is by now, whenever this process began; return the workload's number."""
        age = max(0.0, self.engine.epoch + self.engine.now - plan.started)
        owner = f"{user.pod.uid}/{handle}"
        return self.workloads.start(profile, [WorkloadGroup((handle,))], pod=user.pod, owner=owner, age=age)[0]

    def _forget(self, gone: Iterable[Playing]) -> None:
        for item in gone:
            self._plays.pop(item.number, None)
            self._driven.pop(item.number, None)
            self._over.discard(item.number)

    def take_ended(self) -> list[tuple[User, str]]:
        """Return the users that a limit ended since the last call, and the reason."""
        ended, self._ended = self._ended, []
        return ended

    # Health.

    def fail(self, card: Card, failure: DeviceFailure) -> bool:
        """Let a card fail as configured, or heal it; return whether that changed anything."""
        if failure == card.failure:
            return False
        if failure == DeviceFailure.NONE:
            self._forgive([card])
        else:
            self.engine.strike(card.number, "uncorrected" if failure == DeviceFailure.MEMORY else "xids")
        card.failure = failure
        return True

    def faults(self, listed: Sequence[Card]) -> dict[str, DeviceFaults]:
        """Return what is wrong with cards, by the device's id; healthy ones are left out."""
        found: dict[str, DeviceFaults] = {}
        erred = self.errors(listed).keys() if listed else ()  # few, and there may be many cards
        suspects = [card for place, card in enumerate(listed) if place in erred or card.failure != DeviceFailure.NONE]
        for card, counts in zip(suspects, self._errors(suspects), strict=True):
            pairs = zip(_ERRORS.values(), counts, card.forgiven, strict=True)
            xids = [xid for xid, count, before in pairs if count >= before + 1]
            if (failing := _FAILURES.get(card.failure)) is not None and failing not in xids:
                xids.append(failing)
            if xids:
                found[card.device.uuid] = DeviceFaults(tuple(xids), lost=card.failure == DeviceFailure.LOST)
        return found

    def errors(self, listed: Sequence[Card]) -> dict[int, float]:
        """Return how many errors cards have had, by place in the list; those without any are left out."""
        numbers = [card.number for card in listed]
        counts = sum((self.engine.read(name, numbers) for name in _ERRORS), np.zeros(len(numbers)))
        return {place: float(counts[place]) for place in np.flatnonzero(counts >= 1).tolist()}

    def _errors(self, listed: Sequence[Card]) -> list[tuple[float, ...]]:
        numbers = [card.number for card in listed]
        columns = [self.engine.read(name, numbers).tolist() for name in _ERRORS] if numbers else []
        return list(zip(*columns, strict=True))

    def _forgive(self, listed: Sequence[Card]) -> None:
        """Take the errors of cards so far as dealt with."""
        for card, counts in zip(listed, self._errors(listed), strict=True):
            card.forgiven = counts

    # Time.

    def step(self, now: float, *, clock: float) -> bool:
        """Simulate up to `now`, in seconds; `clock` is in seconds since 1970. Return whether workloads have ended."""
        if not self.steps:
            self.engine.epoch = clock - now
            self._gone = {name: state.cold() for name, state in self._gone.items()}
        outcomes = self.engine.step(now)
        self.steps += 1
        self.time = clock
        self.changed, self._changed = self._changed, []
        for card in self.changed:
            card.seen = card.users
        self.workloads.finish(outcomes)
        for outcome in outcomes:
            if (item := self._plays.get(outcome.workload)) is not None:
                self._over.add(outcome.workload)
                if isinstance(item.what, User) and not item.resting:
                    self._ended.append((item.what, outcome.message))
        return bool(outcomes)

    # Saved state.

    def counters(self, listed: Sequence[Card], *, digits: int | None = None) -> dict[str, list[float]]:
        """Return the counters of cards, by the device's id, in the order of `sim.cards.COUNTERS`."""
        values = self.engine.counters([card.number for card in listed])
        rounded = values if digits is None else np.round(values, digits)
        return dict(zip((card.device.uuid for card in listed), rounded.tolist(), strict=True))

    def device_states(self, listed: Sequence[Card]) -> dict[str, DeviceState]:
        """Return the states of cards and of removed ones, by the device's id."""
        return self._gone | {
            card.device.uuid: DeviceState(kind_of(card), self.engine.keep(card.number), failure=card.failure)
            for card in listed
        }

    def resume(self, card: Card, state: DeviceState) -> None:
        """Resume a card from a saved state; invalid values are logged and left out.

        Earlier errors do not count. A failure goes on, and is not counted again.
        """
        invalid = self.engine.resume(card.number, state.values, seconds=state.away)
        if invalid:
            name = card.device.uuid
            _log.warning("%s cannot resume from its saved state: invalid values of %s", name, ", ".join(invalid))
        card.failure = state.failure
        self._forgive([card])

    def remember(self, saved: Mapping[str, DeviceState]) -> None:
        """Keep states of absent devices, unless they have one already."""
        for name, state in saved.items():
            self._gone.setdefault(name, state)
        self._trim()

    def _trim(self) -> None:
        for name in list(islice(self._gone, max(0, len(self._gone) - self._max_gone))):
            del self._gone[name]

    # Views.

    def machine(self, nodes: Sequence[tuple[str, Sequence[Card]]], *, list_usages: UsageLister = tuple) -> Machine:
        """Return cards of one or several hosts as one machine to render."""
        listed = list(chain.from_iterable(there for _, there in nodes))
        parts = [
            DevicePart(place, number, profile, handle)
            for place, card in enumerate(listed)
            if card.parts
            for number, profile, handle in card.parts
        ]
        return Machine(
            [card.device for card in listed], self.engine, [card.number for card in listed],
            nodes=[(name, len(there)) for name, there in nodes], parts=parts, list_usages=list_usages,
        )  # fmt: skip


def kind_of(card: Card) -> str:
    """Return a hash that is the same for identical cards, also in other processes."""
    if not card.kind:
        facts = msgspec.msgpack.encode((card.device.model, card.device.instances))  # starts change nothing that is kept
        card.kind = hashlib.sha256(facts).hexdigest()[:16]
    return card.kind
