"""What each guest of the socket may take, so that the others, and the box itself, go on undisturbed."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from simgpu import errors
from simgpu.workloads import documents, guest, receiving

MOST_CLIENTS = 20_000
MOST_CONNECTIONS = 64  # of a guest
MOST_ACTIVITIES = 4096  # in all workloads of a guest
LARGEST = 1 << 16  # bytes of a guest's document

_OTHER_FILES = 256  # that are open besides connections
_MOST_TOLD = 64  # who are told at once that they are refused
_SHARE = 20  # guests' documents take one part in so many of the time
_SHORTEST = 0.01


class Effort:
    """Processor time that a document takes of us, without that of others while it comes in."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Within this, it is worked on."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began


class Bounds:
    """Counts what guests have. Whoever is no guest, and so has no name, is trusted with everything."""

    def __init__(self) -> None:
        self._connections: Counter[str] = Counter()
        self._activities: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Lock] = {}
        self._told = 0

    @contextlib.contextmanager
    def connected(self, who: guest.Guest) -> Iterator[None]:
        """A connection of a guest, as long as it is open."""
        if who.name and self._connections[who.name] >= MOST_CONNECTIONS:
            raise guest.Refused(f"{who.name} has {MOST_CONNECTIONS} connections already")
        self._connections[who.name] += 1
        try:
            yield
        finally:
            self._connections[who.name] -= 1
            if not self._connections[who.name]:
                del self._connections[who.name]
                self._turns.pop(who.name, None)

    @contextlib.asynccontextmanager
    async def turn(self, who: guest.Guest) -> AsyncIterator[Effort]:
        """One document of a guest at a time, and the next after a pause that is many times as long as that took.

        The more guests are connected, the longer: all of them together take no more of the time than one alone.
        """
        effort = Effort()
        if not who.name:
            yield effort
            return
        turn = self._turns.setdefault(who.name, asyncio.Lock())
        await turn.acquire()
        try:
            yield effort
        finally:
            pause = max(_SHORTEST, _SHARE * max(1, len(self._turns)) * effort.seconds)
            asyncio.get_running_loop().call_later(pause, turn.release)

    def take(self, who: guest.Guest, activities: int) -> None:
        """Activities of a workload that starts."""
        if who.name and self._activities[who.name] + activities > MOST_ACTIVITIES:
            raise errors.InputError("Profile", f"{who.name} would have more than {MOST_ACTIVITIES} activities in all")
        self._activities[who.name] += activities

    def give_back(self, who: guest.Guest, activities: int) -> None:
        """Those of one that ended."""
        self._activities[who.name] -= activities
        if not self._activities[who.name]:
            del self._activities[who.name]

    async def way_of_telling(self, reader: asyncio.StreamReader) -> int:
        """The protocol that somebody speaks who is refused; those who are too many are not asked for it."""
        if self._told >= _MOST_TOLD:
            return 1
        self._told += 1
        try:
            async with asyncio.timeout(receiving.SILENCE):
                return documents.protocol(await receiving.receive(reader, LARGEST))
        except (errors.InputError, OSError, TimeoutError):
            return 1
        finally:
            self._told -= 1


def room() -> int:
    """How many can be connected: as many files as the process may have open, but for those that other things need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CLIENTS + _OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - _OTHER_FILES)
