"""Limits of each guest of the socket, so that it disturbs neither other guests nor the box."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from simgpu import errors
from simgpu.pods.guests import Guest, PeerRejected
from simgpu.vocabulary import MAX_ACTIVITIES, MAX_ALL_PLACES, MAX_CONNECTIONS, MAX_PLACES
from simgpu.workloads import guest

MAX_CLIENTS = 20_000
MAX_REJECTED = 8  # of a guest: rejected clients that wait for their answer
MAX_REJECTED_BYTES = 1 << 12  # of a rejected client's document, which is read to answer in its protocol

_OTHER_FILES = 256  # open files besides connections
_SHARE = 20  # guests get 1/20 of the time
_MIN_PAUSE = 0.01  # seconds
_COUNTED = "workloads (counted once per device)"


class Effort:
    """CPU time that this process spends on a connection."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def pause(self) -> float:
        """Seconds to wait afterwards, so that the effort is a small share of the time."""
        return _SHARE * self.seconds

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Count the CPU time that is spent within."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began


class _Turn:
    """A lock that serialises a guest's connections. `users` wait for it, hold it, or pause after it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Bounds:
    """Counts and limits what guests use. Peers without a name are no guests, and have no limits."""

    def __init__(self) -> None:
        self._connections: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._activities: Counter[str] = Counter()
        self._places: Counter[str] = Counter()
        self._turns: dict[str, _Turn] = {}

    @contextlib.contextmanager
    def connected(self, who: Guest) -> Iterator[None]:
        """Count an open connection of a guest; raises `PeerRejected` at the limit."""
        if who.name and self._connections[who.name] >= MAX_CONNECTIONS:
            raise PeerRejected(f"{who.name} has {MAX_CONNECTIONS} connections already")
        with _counted(self._connections, who.name):
            yield

    @contextlib.contextmanager
    def rejected(self, who: Guest) -> Iterator[None]:
        """Count a rejected client of a guest while it waits for its answer; raises `RateLimited` at the limit."""
        if self._rejected[who.name] >= MAX_REJECTED:
            raise guest.RateLimited(who.name)
        with _counted(self._rejected, who.name):
            yield

    @contextlib.asynccontextmanager
    async def turn(self, who: Guest, effort: Effort) -> AsyncIterator[None]:
        """Admit one connection of a guest at a time, the next after a pause that is a multiple of its effort.

        The pause grows with the number of active guests: all of them together get no more time than one alone. It
        outlasts the connection, so that reconnecting gains nothing.
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
            pause = max(_MIN_PAUSE, len(self._turns) * effort.pause)
            asyncio.get_running_loop().call_later(pause, self._release, who.name, turn)

    def _release(self, name: str, turn: _Turn) -> None:
        turn.lock.release()
        self._leave(name, turn)

    def _leave(self, name: str, turn: _Turn) -> None:
        turn.users -= 1
        if not turn.users:
            del self._turns[name]

    def take(self, who: Guest, *, activities: int, devices: int) -> None:
        """Reserve capacity for a workload of so many activities and devices; raises `InputError` at a limit."""
        if not who.name:
            return
        if self._activities[who.name] + activities > MAX_ACTIVITIES:
            raise errors.InputError("Profile", f"{who.name} would have more than {MAX_ACTIVITIES} activities in all")
        places, own = self._places[who.name] + devices, len(who.devices or ())
        if places > MAX_PLACES:
            raise errors.InputError("Devices", f"{who.name} would have {places} {_COUNTED}; at most {MAX_PLACES}")
        if places > own and self._places.total() + devices > MAX_ALL_PLACES:
            problem = f"all pods would have more than {MAX_ALL_PLACES} {_COUNTED}; {who.name} may always have {own}"
            raise errors.InputError("Devices", problem)
        self._activities[who.name] += activities
        self._places[who.name] = places

    def give_back(self, who: Guest, *, activities: int, devices: int) -> None:
        """Release the capacity of a workload that ended."""
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
    """Lower a count, and drop it at zero."""
    counts[name] -= by
    if not counts[name]:
        del counts[name]


def max_clients() -> int:
    """Raise the limit of open files as far as needed and allowed, and return how many clients can connect."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CLIENTS + _OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - _OTHER_FILES)
