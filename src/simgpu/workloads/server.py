"""The socket to which workloads connect.

A client sends one JSON document and then only waits; the answer is how its workload ended, after which the connection
closes. v1 is answered with the exit code in digits, v2 with one line of JSON that carries a message too. A connection
that goes away takes its workload with it. A document that wants something set on a device is answered at once, with
one of NVML's codes. Everything that comes in is bounded: size, time, number.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simgpu import errors
from simgpu.box import Box
from simgpu.workloads import accepting, bounds, documents, guest, receiving

SHUTDOWN = "exporter shutting down"

INVALID_ARGUMENT, NO_PERMISSION = 2, 4  # as NVML says it

_PIECE = 1 << 16  # bytes that wait for somebody to read them
_LONGEST_PROBLEM = 1000  # characters

Settings = Callable[[str, str, Sequence[int]], int]

_log = logging.getLogger(__name__)


class _Started(msgspec.Struct, frozen=True):
    """A workload that runs."""

    who: guest.Guest
    activities: int
    numbers: list[int]
    done: asyncio.Future[tuple[int, str]]


class Server:
    """Takes workloads for a box. `names` are quantities by the names that an exporter shows, for limits.

    `settings` is told the device, what to set and to what; without it nothing can be set. `identify` says who is
    connected: a guest acts on its own devices only. `changed` is called when a guest's workloads come and go.
    """

    def __init__(
        self,
        box: Box,
        path: Path,
        *,
        names: documents.Names = documents.NO_NAMES,
        mode: int = 0o700,
        half_amplitude: bool = False,
        settings: Settings | None = None,
        identify: guest.Identify = guest.anybody,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._box = box
        self._path = path
        self._names = names
        self._mode = mode
        self._half = half_amplitude
        self._settings = settings
        self._identify = identify
        self._changed = changed
        self._bounds = bounds.Bounds()
        self._working: Counter[guest.Guest] = Counter()
        self._arrivals = accepting.Arrivals()
        self._clients: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._most = bounds.MOST_CLIENTS

    async def start(self) -> None:
        """Listen. A socket that nobody answers on is replaced; one that is in use is an error."""
        if self._path.exists() or self._path.is_symlink():
            if not self._path.is_socket():
                raise errors.InputError("--socket", f"{self._path} is there and is no socket")
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(self._path)
                writer.close()
                raise errors.InputError("--socket", f"{self._path}: somebody else answers there")
            self._path.unlink(missing_ok=True)
        try:
            self._listening = accepting.listen(self._path, self._mode)
        except OSError as error:
            raise errors.InputError("--socket", f"{self._path}: {error.strerror or error}") from None
        self._most = bounds.room()
        self._accepting = asyncio.create_task(accepting.accept(self._listening, self._take))

    async def stop(self) -> None:
        """Tell all who wait that it is over, and leave no socket behind."""
        tasks = [*self._clients, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        self._path.unlink(missing_ok=True)

    @property
    def clients(self) -> int:
        """Connections that are open."""
        return len(self._clients)

    @property
    def working(self) -> Collection[guest.Guest]:
        """Guests that have workloads."""
        return self._working.keys()

    def _take(self, connection: socket.socket) -> bool:
        """Serve a connection, unless there are too many, or its process makes too many."""
        if len(self._clients) >= self._most:
            return False
        if self._identify is not guest.anybody:
            now = asyncio.get_running_loop().time()
            if not self._arrivals.admit(guest.pid(connection), now):
                return False
        task = asyncio.create_task(self._serve(connection))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        return True

    async def _serve(self, connection: socket.socket) -> None:
        process, protocol, answer = guest.pid(connection), 1, None
        reader, writer = await accepting.streams(connection, _PIECE)
        try:
            who = await self._identify(writer.get_extra_info("socket"))
            trusted = contextlib.nullcontext() if who.name else self._arrivals.trusted(process)
            with trusted, self._bounds.connected(who):
                async with self._bounds.turn(who) as effort:
                    largest = bounds.LARGEST if who.name else receiving.LARGEST
                    document = await receiving.receive(reader, largest, working=effort.spent)
                    protocol = documents.protocol(document)
                    with effort.spent():
                        started = self._start(document, who, process)
                answer = await self._wait(started, reader) if isinstance(started, _Started) else started
        except (guest.Refused, errors.InputError) as error:
            problem = str(error)[:_LONGEST_PROBLEM]  # which may quote what came in
            _log.info("workload refused: %s", problem)
            if isinstance(error, guest.Refused):
                protocol = await self._bounds.way_of_telling(reader)
            answer = (1, problem)
        except asyncio.CancelledError:
            answer = (1, SHUTDOWN)
        except (OSError, EOFError):
            answer = None
        except Exception:  # noqa: BLE001 - one guest's is nobody else's, and it is logged
            _log.exception("a workload's document could not be served")
            answer = (1, "could not be served; the log says why")
        finally:
            await _reply(writer, protocol, answer)

    def _start(self, document: Any, who: guest.Guest, pid: int) -> _Started | tuple[int, str]:
        """Set what is to be set, or start the workload."""
        if documents.wants_setting(document):
            return self._set(document, who), ""
        wanted = documents.read(document, names=self._names, half_amplitude=self._half)
        done: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

        def ended(code: int, message: str) -> None:
            if not done.done():
                done.set_result((code, message))

        activities, devices, pod = len(wanted.profile.activities), who.choose(wanted.devices), who.pod or wanted.pod
        with contextlib.ExitStack() as undo:
            self._bounds.take(who, activities)
            undo.callback(self._bounds.give_back, who, activities)
            numbers = self._box.admit(wanted.profile, devices, pod=pod, ended=ended, pid=pid, owner=who.name)
            undo.callback(self._box.drop, numbers)
            self._count(who, +1)
            undo.callback(self._count, who, -1)
            if who.pod is not None:
                self._changed()
            undo.pop_all()
        return _Started(who, activities, numbers, done)

    async def _wait(self, started: _Started, reader: asyncio.StreamReader) -> tuple[int, str] | None:
        """Let a workload run until it ends, or its client goes."""
        gone = asyncio.ensure_future(reader.read(1))  # a client that waits sends nothing
        try:
            either: set[asyncio.Future[Any]] = {started.done, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return started.done.result() if started.done.done() else None
        finally:
            gone.cancel()
            self._box.drop(started.numbers)
            self._bounds.give_back(started.who, started.activities)
            self._count(started.who, -1)
            if started.who.pod is not None:
                self._changed()

    def _count(self, who: guest.Guest, more: int) -> None:
        if who.pod is not None:
            self._working[who] += more
            self._working += Counter()

    def _set(self, document: Any, who: guest.Guest) -> int:
        """Whoever sets something understands NVML's codes only."""
        if self._settings is None:
            return NO_PERMISSION
        try:
            wish = documents.setting(document)
        except errors.InputError as error:
            _log.info("setting refused: %s", str(error)[:_LONGEST_PROBLEM])
            return INVALID_ARGUMENT
        if not who.may_set(wish.device):
            return NO_PERMISSION
        return self._settings(wish.device, wish.setting, wish.values)


async def _reply(writer: asyncio.StreamWriter, protocol: int, answer: tuple[int, str] | None) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        if answer is not None:
            code, message = answer
            verdict: dict[str, Any] = {"exit": code, "message": message}
            if message == SHUTDOWN:
                verdict["lost"] = True  # the workload did not end: its client may come again
            line = json.dumps(verdict) + "\n" if protocol == 2 else str(code)
            writer.write(line.encode())
            async with asyncio.timeout(1):
                await writer.drain()
        writer.close()
        async with asyncio.timeout(1):
            await writer.wait_closed()
