"""Taking connections from a socket: one at a time, and only so many from a process until it is known who that is.

The kernel tells which process has connected, which costs next to nothing; to find out in which pod it is costs more,
and whoever connects and closes in a loop must not make others wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

BURST = 64  # connections that a process may make at once,
PER_SECOND = 20.0  # and on and on

_MOST_KNOWN = 4096
_BACKLOG = 4096
_RETRY = 0.1  # seconds after which a process that may open no more files tries again
_AT_ONCE, _PAUSE = 8, 0.001  # so many are turned away without a pause

_log = logging.getLogger(__name__)


class Arrivals:
    """How often processes connect, by their numbers; those that are `trusted` may as often as they like."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}  # connections that each has left, and as of when
        self._trusted: Counter[int] = Counter()

    def admit(self, pid: int, now: float) -> bool:
        """Whether a process may connect once more."""
        if self._trusted[pid]:
            return True
        if len(self._left) > _MOST_KNOWN:
            self._left = {other: seen for other, seen in self._left.items() if _refilled(*seen, now) < BURST}
        left = _refilled(*self._left.get(pid, (BURST, now)), now)
        self._left[pid] = (max(0.0, left - 1), now)
        return left >= 1

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


async def accept(listening: socket.socket, take: Callable[[socket.socket], bool]) -> None:
    """Give each connection to `take` until cancelled; one that it does not want is closed."""
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
        await asyncio.sleep(_PAUSE if not taken and turned_away % _AT_ONCE == 0 else 0)


async def streams(connection: socket.socket, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection, to read from and to write to."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
