"""What each guest of the socket may take, so that the others, and the box itself, go on undisturbed."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from simgpu import errors
from simgpu.workloads import guest

MAX_CLIENTS = 20_000
MAX_CONNECTIONS = 64  # of a guest
MAX_REFUSED = 8  # clients of a guest that wait to be told why they are refused
MAX_ACTIVITIES = 4096  # in all workloads of a guest
MAX_PLACES = 1024  # of a guest: its workloads, each counted for every device that it is on
MAX_PLACES_IN_ALL = 8192  # of all guests together, beside one workload on all of a guest's own devices
LARGEST = 1 << 16  # bytes of a guest's document
LARGEST_REFUSED = 1 << 12  # bytes that are read of one that is refused anyway, to answer in its protocol

_OTHER_FILES = 256  # that are open besides connections
_SHARE = 20  # guests take one part in so many of the time
_SHORTEST = 0.01
_COUNTED = "workloads (each counts once for every device that it is on)"


class Effort:
    """Processor time that a connection takes of us, without that of others while it waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def pause(self) -> float:
        """Seconds to wait after it, so that it is a small part of the time."""
        return _SHARE * self.seconds

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Within this, it is worked on."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began


class _Turn:
    """The order in which a guest's connections are worked on. `users` wait for it, have it, or pause after it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Bounds:
    """Counts what guests have. Whoever is no guest, and so has no name, is trusted with everything."""

    def __init__(self) -> None:
        self._connections: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._activities: Counter[str] = Counter()
        self._places: Counter[str] = Counter()
        self._turns: dict[str, _Turn] = {}

    @contextlib.contextmanager
    def connected(self, who: guest.Guest) -> Iterator[None]:
        """A connection of a guest, as long as it is open."""
        if who.name and self._connections[who.name] >= MAX_CONNECTIONS:
            raise guest.PeerRejected(f"{who.name} has {MAX_CONNECTIONS} connections already")
        with _counted(self._connections, who.name):
            yield

    @contextlib.contextmanager
    def refused(self, who: guest.Guest) -> Iterator[None]:
        """A client of a guest that is refused, as long as it waits to be told why."""
        if self._refused[who.name] >= MAX_REFUSED:
            raise guest.TurnedAway(who.name)
        with _counted(self._refused, who.name):
            yield

    @contextlib.asynccontextmanager
    async def turn(self, who: guest.Guest, effort: Effort) -> AsyncIterator[None]:
        """One connection of a guest at a time, and the next after a pause that is many times as long as its effort.

        The more guests are at it, the longer: all of them together take no more of the time than one alone. The pause
        outlasts the connection, so that closing it and making another gains nothing.
        """
        if not who.name:
            yield
            return
        turn = self._turns.setdefault(who.name, _Turn())
        turn.users += 1
        try:
            await turn.lock.acquire()
        except BaseException:
            self._leave(who.name, turn)
            raise
        try:
            yield
        finally:
            pause = max(_SHORTEST, len(self._turns) * effort.pause)
            asyncio.get_running_loop().call_later(pause, self._release, who.name, turn)

    def _release(self, name: str, turn: _Turn) -> None:
        turn.lock.release()
        self._leave(name, turn)

    def _leave(self, name: str, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[name]

    def take(self, who: guest.Guest, *, activities: int, devices: int) -> None:
        """A workload of so many activities starts on so many devices."""
        if not who.name:
            return
        if self._activities[who.name] + activities > MAX_ACTIVITIES:
            raise errors.InputError("Profile", f"{who.name} would have more than {MAX_ACTIVITIES} activities in all")
        places, own = self._places[who.name] + devices, len(who.devices or ())
        if places > MAX_PLACES:
            raise errors.InputError("Devices", f"{who.name} would have {places} {_COUNTED}; at most {MAX_PLACES}")
        if places > own and self._places.total() + devices > MAX_PLACES_IN_ALL:
            problem = f"all pods would have more than {MAX_PLACES_IN_ALL} {_COUNTED}; {who.name} may always have {own}"
            raise errors.InputError("Devices", problem)
        self._activities[who.name] += activities
        self._places[who.name] = places

    def give_back(self, who: guest.Guest, *, activities: int, devices: int) -> None:
        """It ended."""
        if who.name:
            _lower(self._activities, who.name, activities)
            _lower(self._places, who.name, devices)


@contextlib.contextmanager
def _counted(counts: Counter[str], name: str) -> Iterator[None]:
    counts[name] += 1
    try:
        yield
    finally:
        _lower(counts, name, 1)


def _lower(counts: Counter[str], name: str, by: int) -> None:
    """Guests that have nothing are forgotten."""
    counts[name] -= by
    if not counts[name]:
        del counts[name]


def room() -> int:
    """How many can be connected: as many files as the process may have open, but for those that other things need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CLIENTS + _OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - _OTHER_FILES)
