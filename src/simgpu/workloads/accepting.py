"""Taking connections from a socket: one at a time, and only so many from a process, and from a guest once it is known.

The kernel tells which process has connected, which costs next to nothing; to find out in which pod it is costs more. A
guest that connects over and over, from however many processes, makes the socket take connections more slowly: what it
costs stays a small part of the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

BURST = 64  # connections that a process or a guest may make at once,
PER_SECOND = 20.0  # and on and on

_MOST_KNOWN = 4096
_BACKLOG = 4096
_RETRY = 0.1  # seconds after which a process that may open no more files tries again
_AT_ONCE, _PAUSE = 8, 0.001  # so many are turned away without a pause
_LONGEST_PAUSE = 0.1

_log = logging.getLogger(__name__)


class Arrivals:
    """How often processes connect, by their numbers, and guests, by their names.

    Processes that are `trusted` may as often as they like.
    """

    def __init__(self) -> None:
        self._left: dict[int | str, tuple[float, float]] = {}  # connections that each has left, and as of when
        self._trusted: Counter[int] = Counter()
        self._pause = 0.0

    def admit(self, who: int | str, now: float) -> bool:
        """Whether a process or a guest may connect once more."""
        if isinstance(who, int) and self._trusted[who]:
            return True
        if len(self._left) > _MOST_KNOWN:
            self._left = {other: seen for other, seen in self._left.items() if _refilled(*seen, now) < BURST}
        left = _refilled(*self._left.get(who, (BURST, now)), now)
        self._left[who] = (max(0.0, left - 1), now)
        return left >= 1

    def delay(self, seconds: float) -> None:
        """Let the next connection wait for that long: one was turned away, and not before it had cost something."""
        self._pause = min(self._pause + max(seconds, _PAUSE), _LONGEST_PAUSE)  # taking it has cost something too

    def pause(self) -> float:
        """Seconds to wait before the next connection is taken; they are due once."""
        pause, self._pause = self._pause, 0.0
        return pause

    @contextlib.contextmanager
    def trusted(self, pid: int) -> Iterator[None]:
        """A process is known to be one that may do everything, as long as it has this connection."""
        self._trusted[pid] += 1
        try:
            yield
        finally:
            self._trusted[pid] -= 1
            self._trusted += Counter()


def _refilled(left: float, since: float, now: float) -> float:
    return min(float(BURST), left + PER_SECOND * (now - since))


def listen(path: Path, mode: int) -> socket.socket:
    """A new socket at that path; nobody can connect before its mode is what it should be."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(str(path))
        path.chmod(mode)
        listening.listen(_BACKLOG)
        listening.settimeout(0)
    except BaseException:
        listening.close()
        raise
    return listening


async def accept(
    listening: socket.socket, take: Callable[[socket.socket], bool], pause: Callable[[], float] = float
) -> None:
    """Give each connection to `take` until cancelled; one that it does not want is closed. `pause` follows on each."""
    loop, turned_away = asyncio.get_running_loop(), 0
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError:
            await asyncio.sleep(_RETRY)
            continue
        taken = False
        try:
            taken = take(connection)
        except Exception:  # noqa: BLE001 - the next connection is another's, and it is logged
            _log.exception("a connection could not be served")
        finally:
            if not taken:
                connection.close()
        turned_away += not taken
        await asyncio.sleep(max(pause(), _PAUSE if not taken and turned_away % _AT_ONCE == 0 else 0))


class Raw:
    """A connection of which no more is read than is asked for."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    async def read(self, n: int, /) -> bytes:
        """So many bytes at most; none at the end."""
        return await asyncio.get_running_loop().sock_recv(self._connection, n)


async def streams(connection: socket.socket, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, to read from and to write to."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
