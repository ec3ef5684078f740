"""The server of the workload socket.

A client sends one JSON document and waits; the answer is the result of its workload, after which the connection closes.
v1 is answered with the exit code in digits, v2 with one line of JSON that carries a message too. When a client
disconnects, its workload ends. A document that changes a setting of a device is answered at once, with one of NVML's
codes. All input is bounded in size, time and number.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.machines import documents
from simgpu.machines.box import Box
from simgpu.pods.guests import Guest, PeerRejected
from simgpu.workloads import accepting, bounds, guest, receiving

SHUTDOWN = "exporter shutting down"

INVALID_ARGUMENT, NO_PERMISSION = 2, 4  # NVML's codes

_BUFFER_BYTES = 1 << 16  # of a connection
_MAX_PROBLEM = 1000  # characters

Read = Callable[[Any], documents.Wanted]
Settings = Callable[[str, str, Sequence[int]], int]

_log = logging.getLogger(__name__)


class _Started(msgspec.Struct, frozen=True):
    """A running workload of a guest: its size, its numbers in the box, and the answer when it is `done`."""

    who: Guest
    activities: int
    devices: int
    numbers: list[int]
    done: asyncio.Future[tuple[int, str]]


class WorkloadServer:
    """Takes workloads for a box. `read` parses and checks a workload document.

    `settings` applies a setting and returns NVML's code; without it nothing can be set. `identify` returns who is
    connected: a guest acts on its own devices only. `changed` is called when a guest's first workload starts, and when
    its last one ends.
    """

    def __init__(
        self,
        box: Box,
        path: Path,
        *,
        read: Read = documents.read,
        mode: int = 0o700,
        settings: Settings | None = None,
        identify: guest.Identify = guest.trust_all,
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
        self._working: Counter[Guest] = Counter()
        self._arrivals = accepting.Arrivals()
        self._clients: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._max_clients = bounds.MAX_CLIENTS

    async def start(self) -> None:
        """Listen. A stale socket is replaced; one that is in use is an error."""
        if self._path.exists() or self._path.is_symlink():
            if not self._path.is_socket():
                raise errors.InputError("--socket", f"{self._path} exists and is not a socket")
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(self._path)
                writer.close()
                raise errors.InputError("--socket", f"{self._path}: address already in use")
            self._path.unlink(missing_ok=True)
        try:
            self._listening = accepting.listen(self._path, self._mode)
        except OSError as error:
            raise errors.InputError("--socket", f"{self._path}: {error.strerror or error}") from None
        self._max_clients = bounds.max_clients()
        self._accepting = asyncio.create_task(accepting.accept(self._listening, self._take, self._arrivals.pause))

    async def stop(self) -> None:
        """Answer all clients that the server shuts down, and remove the socket."""
        tasks = [*self._clients, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        self._path.unlink(missing_ok=True)

    @property
    def clients(self) -> int:
        """The number of open connections."""
        return len(self._clients)

    @property
    def working(self) -> Collection[Guest]:
        """Guests that have workloads."""
        return self._working.keys()

    def _take(self, connection: socket.socket) -> bool:
        """Serve a connection, unless there are too many, or its process connects too often."""
        if len(self._clients) >= self._max_clients:
            return False
        if self._identify is not guest.trust_all and not self._arrivals.admit(guest.pid(connection), _now()):
            return False
        task = asyncio.create_task(self._serve(connection))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        return True

    async def _serve(self, connection: socket.socket) -> None:
        """Identify the peer before anything is read, and serve or reject it."""
        who, effort, ours = guest.STRANGER, bounds.Effort(), True
        try:
            who = await self._identify(connection, effort.spent)
            with self._admitted(who, guest.pid(connection)):
                reader, writer = await accepting.streams(connection, _BUFFER_BYTES)
                ours = False
                await self._converse(who, effort, reader, writer)
        except PeerRejected as error:
            await self._reject(who, effort, connection, str(error))
        except guest.RateLimited:
            self._arrivals.delay(effort.pause)
        except asyncio.CancelledError:
            if ours:
                _send(connection, 1, (1, SHUTDOWN))
        except OSError:
            pass  # the client is gone
        except Exception:  # noqa: BLE001 - logged; other guests are not affected
            _log.exception("serving a connection failed")
        finally:
            if ours:
                connection.close()

    @contextlib.contextmanager
    def _admitted(self, who: Guest, process: int) -> Iterator[None]:
        """Count an open connection for a process of the node, or for its guest."""
        if who.name and not self._arrivals.admit(who.name, _now()):
            raise guest.RateLimited
        with contextlib.nullcontext() if who.name else self._arrivals.trusted(process), self._bounds.connected(who):
            yield

    async def _reject(self, who: Guest, effort: bounds.Effort, connection: socket.socket, problem: str) -> None:
        """Answer a rejected client in its protocol; if too many of a guest wait, its document is not read."""
        _log.info("workload rejected: %s", problem[:_MAX_PROBLEM])
        protocol, read = 1, functools.partial(asyncio.get_running_loop().sock_recv, connection)
        try:
            with self._bounds.rejected(who), contextlib.suppress(errors.InputError, OSError):
                async with self._bounds.turn(who, effort):
                    document = await receiving.receive(read, bounds.MAX_REJECTED_BYTES, working=effort.spent)
                    protocol = documents.protocol(document)
        except guest.RateLimited:
            self._arrivals.delay(effort.pause)
        finally:
            _send(connection, protocol, (1, problem[:_MAX_PROBLEM]))

    async def _converse(
        self, who: Guest, effort: bounds.Effort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read a document, apply its setting or run its workload, and answer."""
        protocol, answer = 1, None
        try:
            async with self._bounds.turn(who, effort):
                limit = vocabulary.MAX_DOCUMENT_BYTES if who.name else receiving.MAX_BYTES
                document = await receiving.receive(reader.read, limit, working=effort.spent)
                protocol = documents.protocol(document)
                with effort.spent():
                    started = self._start(document, who, guest.pid(writer.get_extra_info("socket")))
            answer = await self._wait(started, reader) if isinstance(started, _Started) else started
        except errors.InputError as error:
            problem = str(error)[:_MAX_PROBLEM]  # which may quote the document
            _log.info("workload rejected: %s", problem)
            answer = (1, problem)
        except asyncio.CancelledError:
            answer = (1, SHUTDOWN)
        except (OSError, EOFError):
            answer = None
        except Exception:  # noqa: BLE001 - logged; other guests are not affected
            _log.exception("serving a workload failed")
            answer = (1, "internal error; see the server's log")
        finally:
            await _reply(writer, protocol, answer)

    def _start(self, document: Any, who: Guest, pid: int) -> _Started | tuple[int, str]:
        """Apply the setting, or start the workload."""
        if documents.is_setting(document):
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
        """Wait until the workload ends, and return the answer; None if its client disconnects before."""
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

    def _count(self, who: Guest, more: int) -> bool:
        """Count a guest's workloads, and return whether it started its first or ended its last."""
        if who.pod is None:
            return False
        before = self._working[who]
        self._working[who] = before + more
        self._working += Counter()
        return not before or not self._working[who]

    def _set(self, document: Any, who: Guest) -> int:
        """Apply a setting, and return one of NVML's codes."""
        if self._settings is None:
            return NO_PERMISSION
        try:
            setting = documents.setting(document)
        except errors.InputError as error:
            _log.info("setting rejected: %s", str(error)[:_MAX_PROBLEM])
            return INVALID_ARGUMENT
        if not who.may_set(setting.device):
            return NO_PERMISSION
        return self._settings(setting.device, setting.setting, setting.values)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _line(protocol: int, answer: tuple[int, str]) -> bytes:
    code, message = answer
    verdict: dict[str, Any] = {"exit": code, "message": message}
    if message == SHUTDOWN:
        verdict["lost"] = True  # the workload did not end: its client may reconnect
    return (json.dumps(verdict) + "\n" if protocol == 2 else str(code)).encode()


def _send(connection: socket.socket, protocol: int, answer: tuple[int, str]) -> None:
    """Answer on a connection on which nothing was sent yet, so that the answer fits into its buffer."""
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
