"""Accepting connections, with a rate limit per process, and per guest once it is identified.

The kernel reports the connected process at no cost; identifying its pod costs more. A guest that connects over and
over, from however many processes, makes the socket accept more slowly, so that its cost stays a small share of time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from simgpu import vocabulary

BURST = vocabulary.MAX_CONNECTS
PER_SECOND = float(vocabulary.MAX_CONNECT_RATE)

_MAX_TRACKED = 4096  # processes and guests
_BACKLOG = 4096
_RETRY = 0.1  # seconds after accepting failed, as at the limit of open files
_AT_ONCE, _PAUSE = 8, 0.001  # rejections between pauses, and a pause in seconds
_MAX_PAUSE = 0.1  # seconds

_log = logging.getLogger(__name__)


class Arrivals:
    """Rate limits of processes, by pid, and guests, by name; `trusted` processes have none."""

    def __init__(self) -> None:
        self._left: dict[int | str, tuple[float, float]] = {}  # tokens left, and as of when
        self._trusted: Counter[int] = Counter()
        self._pause = 0.0

    def admit(self, who: int | str, now: float) -> bool:
        """Whether a process or a guest may connect now; takes one of its tokens."""
        if isinstance(who, int) and self._trusted[who]:
            return True
        if len(self._left) > _MAX_TRACKED:
            self._left = {other: seen for other, seen in self._left.items() if _refilled(*seen, now) < BURST}
        left = _refilled(*self._left.get(who, (BURST, now)), now)
        self._left[who] = (max(0.0, left - 1), now)
        return left >= 1

    def delay(self, seconds: float) -> None:
        """Delay the next connection by these seconds, because rejecting one had a cost."""
        self._pause = min(self._pause + max(seconds, _PAUSE), _MAX_PAUSE)  # accepting it had a cost too

    def pause(self) -> float:
        """Return the seconds to wait before the next connection, and reset them."""
        pause, self._pause = self._pause, 0.0
        return pause

    @contextlib.contextmanager
    def trusted(self, pid: int) -> Iterator[None]:
        """Exempt a process from the rate limit while it has this connection."""
        self._trusted[pid] += 1
        try:
            yield
        finally:
            self._trusted[pid] -= 1
            self._trusted += Counter()


def _refilled(left: float, since: float, now: float) -> float:
    return min(float(BURST), left + PER_SECOND * (now - since))


def listen(path: Path, mode: int) -> socket.socket:
    """Return a new listening socket at this path; its mode is set before connections are possible."""
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
    """Pass each connection to `take` until cancelled, and close those that it rejects; then wait `pause` seconds."""
    loop, rejected = asyncio.get_running_loop(), 0
    while True:
        try:
            connection, _ = await loop.sock_accept(listening)
        except OSError:
            await asyncio.sleep(_RETRY)
            continue
        taken = False
        try:
            taken = take(connection)
        except Exception:  # noqa: BLE001 - logged; other connections are not affected
            _log.exception("serving a connection failed")
        finally:
            if not taken:
                connection.close()
        rejected += not taken
        await asyncio.sleep(max(pause(), _PAUSE if not taken and rejected % _AT_ONCE == 0 else 0))


async def streams(connection: socket.socket, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the streams of a connection, with a buffer of `limit` bytes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
