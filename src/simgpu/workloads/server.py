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
from collections.abc import Callable, Collection, Iterator, Sequence
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

Read = Callable[[Any], documents.Wanted]
Settings = Callable[[str, str, Sequence[int]], int]

_log = logging.getLogger(__name__)


class _Started(msgspec.Struct, frozen=True):
    """A workload that runs."""

    who: guest.Guest
    activities: int
    devices: int
    numbers: list[int]
    done: asyncio.Future[tuple[int, str]]


class WorkloadServer:
    """Takes workloads for a box. `read` parses and checks a workload document.

    `settings` is told the device, what to set and to what; without it nothing can be set. `identify` says who is
    connected: a guest acts on its own devices only. `changed` is called when a guest comes to have workloads, or none.
    """

    def __init__(
        self,
        box: Box,
        path: Path,
        *,
        read: Read = documents.read,
        mode: int = 0o700,
        settings: Settings | None = None,
        identify: guest.Identify = guest.anybody,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._box = box
        self._path = path
        self._read = read
        self._mode = mode
        self._settings = settings
        self._identify = identify
        self._changed = changed
        self._bounds = bounds.Bounds()
        self._working: Counter[guest.Guest] = Counter()
        self._arrivals = accepting.Arrivals()
        self._clients: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._most = bounds.MAX_CLIENTS

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
        self._accepting = asyncio.create_task(accepting.accept(self._listening, self._take, self._arrivals.pause))

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
        if self._identify is not guest.anybody and not self._arrivals.admit(guest.pid(connection), _now()):
            return False
        task = asyncio.create_task(self._serve(connection))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        return True

    async def _serve(self, connection: socket.socket) -> None:
        """Find out who is connected, before anything is read, and serve or refuse that one."""
        who, effort, ours = guest.STRANGER, bounds.Effort(), True
        try:
            who = await self._identify(connection, effort.spent)
            with self._admitted(who, guest.pid(connection)):
                reader, writer = await accepting.streams(connection, _PIECE)
                ours = False
                await self._converse(who, effort, reader, writer)
        except guest.PeerRejected as error:
            await self._refuse(who, effort, connection, str(error))
        except guest.TurnedAway:
            self._arrivals.delay(effort.pause)
        except asyncio.CancelledError:
            if ours:
                _send(connection, 1, (1, SHUTDOWN))
        except OSError:
            pass  # it is gone
        except Exception:  # noqa: BLE001 - one guest's is nobody else's, and it is logged
            _log.exception("a connection could not be served")
        finally:
            if ours:
                connection.close()

    @contextlib.contextmanager
    def _admitted(self, who: guest.Guest, process: int) -> Iterator[None]:
        """A connection counts for a process of the node, or for its guest, as long as it is open."""
        if who.name and not self._arrivals.admit(who.name, _now()):
            raise guest.TurnedAway
        with contextlib.nullcontext() if who.name else self._arrivals.trusted(process), self._bounds.connected(who):
            yield

    async def _refuse(self, who: guest.Guest, effort: bounds.Effort, connection: socket.socket, problem: str) -> None:
        """Answer in the protocol of whoever is refused; of those who are too many none is read."""
        _log.info("workload refused: %s", problem[:_LONGEST_PROBLEM])
        protocol, reader = 1, accepting.Raw(connection)
        try:
            with self._bounds.refused(who), contextlib.suppress(errors.InputError, OSError):
                async with self._bounds.turn(who, effort):
                    document = await receiving.receive(reader, bounds.LARGEST_REFUSED, working=effort.spent)
                    protocol = documents.protocol(document)
        except guest.TurnedAway:
            self._arrivals.delay(effort.pause)
        finally:
            _send(connection, protocol, (1, problem[:_LONGEST_PROBLEM]))

    async def _converse(
        self, who: guest.Guest, effort: bounds.Effort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read a document, do what it wants, and answer."""
        protocol, answer = 1, None
        try:
            async with self._bounds.turn(who, effort):
                largest = bounds.LARGEST if who.name else receiving.LARGEST
                document = await receiving.receive(reader, largest, working=effort.spent)
                protocol = documents.protocol(document)
                with effort.spent():
                    started = self._start(document, who, guest.pid(writer.get_extra_info("socket")))
            answer = await self._wait(started, reader) if isinstance(started, _Started) else started
        except errors.InputError as error:
            problem = str(error)[:_LONGEST_PROBLEM]  # which may quote what came in
            _log.info("workload refused: %s", problem)
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
        wanted = self._read(document)
        done: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

        def ended(code: int, message: str) -> None:
            if not done.done():
                done.set_result((code, message))

        activities, devices, pod = len(wanted.profile.activities), who.choose(wanted.devices), who.pod or wanted.pod
        count = len(set(devices))
        with contextlib.ExitStack() as undo:
            self._bounds.take(who, activities=activities, devices=count)
            undo.callback(self._bounds.give_back, who, activities=activities, devices=count)
            numbers = self._box.admit(wanted.profile, devices, pod=pod, ended=ended, pid=pid, owner=who.name)
            undo.callback(self._box.drop, numbers)
            began = self._count(who, +1)
            undo.callback(self._count, who, -1)
            if began:
                self._changed()
            undo.pop_all()
        return _Started(who, activities, count, numbers, done)

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
            self._bounds.give_back(started.who, activities=started.activities, devices=started.devices)
            if self._count(started.who, -1):
                self._changed()

    def _count(self, who: guest.Guest, more: int) -> bool:
        """Count a guest's workloads; whether it has come to have some, or none."""
        if who.pod is None:
            return False
        before = self._working[who]
        self._working[who] = before + more
        self._working += Counter()
        return not before or not self._working[who]

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


def _now() -> float:
    return asyncio.get_running_loop().time()


def _line(protocol: int, answer: tuple[int, str]) -> bytes:
    code, message = answer
    verdict: dict[str, Any] = {"exit": code, "message": message}
    if message == SHUTDOWN:
        verdict["lost"] = True  # the workload did not end: its client may come again
    return (json.dumps(verdict) + "\n" if protocol == 2 else str(code)).encode()


def _send(connection: socket.socket, protocol: int, answer: tuple[int, str]) -> None:
    """Answer on a connection on which nothing was sent yet: there is room for it, or nobody reads."""
    with contextlib.suppress(OSError):
        connection.send(_line(protocol, answer))


async def _reply(writer: asyncio.StreamWriter, protocol: int, answer: tuple[int, str] | None) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        if answer is not None:
            writer.write(_line(protocol, answer))
            async with asyncio.timeout(1):
                await writer.drain()
        writer.close()
        async with asyncio.timeout(1):
            await writer.wait_closed()
