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
import resource
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from simgpu import errors
from simgpu.box import Box
from simgpu.workloads import documents, guest

LARGEST = 1 << 20
MOST_CLIENTS = 20_000
OTHER_FILES = 256  # that are open besides connections
MOST_OF_A_GUEST = 256
SILENCE = 0.15
SLOWEST = 5.0
SHUTDOWN = "exporter shutting down"

INVALID_ARGUMENT, NO_PERMISSION = 2, 4  # as NVML says it

Settings = Callable[[str, str, Sequence[int]], int]

_log = logging.getLogger(__name__)


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
        self._guests: Counter[str] = Counter()
        self._working: Counter[guest.Guest] = Counter()
        self._clients: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._most = MOST_CLIENTS

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
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=LARGEST, backlog=4096)
        except OSError as error:
            raise errors.InputError("--socket", f"{self._path}: {error.strerror or error}") from None
        self._path.chmod(self._mode)
        self._most = _room()

    async def stop(self) -> None:
        """Tell all who wait that it is over, and leave no socket behind."""
        if self._server is not None:
            self._server.close()
        for task in list(self._clients):
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    @property
    def clients(self) -> int:
        """Connections that are open."""
        return len(self._clients)

    @property
    def working(self) -> Collection[guest.Guest]:
        """Guests that have workloads."""
        return self._working.keys()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are in one
        protocol, answer = 1, None
        self._clients.add(task)
        try:
            with self._counted(await self._identify(writer.get_extra_info("socket"))) as who:
                document = await _receive(reader)
                protocol = documents.protocol(document)
                answer = await self._run(document, reader, who)
        except guest.Refused as error:
            _log.info("workload refused: %s", error)
            with contextlib.suppress(errors.InputError, OSError):
                protocol = documents.protocol(await _receive(reader))  # so that it is told in the way that it knows
            answer = (1, str(error))
        except errors.InputError as error:
            _log.info("workload refused: %s", error)
            answer = (1, str(error))
        except asyncio.CancelledError:
            answer = (1, SHUTDOWN)
        except (OSError, EOFError):
            answer = None
        finally:
            self._clients.discard(task)
            await _reply(writer, protocol, answer)

    @contextlib.contextmanager
    def _counted(self, who: guest.Guest) -> Iterator[guest.Guest]:
        """One guest must not take what others need, and all together not more than there is."""
        if len(self._clients) > self._most:
            raise guest.Refused(f"there are {self._most} workloads already")
        if who.name and self._guests[who.name] >= MOST_OF_A_GUEST:
            raise guest.Refused(f"{who.name} has {MOST_OF_A_GUEST} connections already")
        self._guests[who.name] += 1
        try:
            yield who
        finally:
            self._guests[who.name] -= 1
            self._guests += Counter()  # forget those who have none

    async def _run(self, document: Any, reader: asyncio.StreamReader, who: guest.Guest) -> tuple[int, str] | None:
        """Set what is to be set; or run the workload until it ends, or its client goes."""
        if documents.wants_setting(document):
            return self._set(document, who), ""
        wanted = documents.read(document, names=self._names, half_amplitude=self._half)
        done: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

        def ended(code: int, message: str) -> None:
            if not done.done():
                done.set_result((code, message))

        devices, pod = who.choose(wanted.devices), who.pod or wanted.pod
        numbers = self._box.admit(wanted.profile, devices, pod=pod, ended=ended)
        self._works(who, +1)
        gone = asyncio.ensure_future(reader.read(1))  # a client that waits sends nothing
        try:
            either: set[asyncio.Future[Any]] = {done, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return done.result() if done.done() else None
        finally:
            gone.cancel()
            self._box.drop(numbers)
            self._works(who, -1)

    def _works(self, who: guest.Guest, more: int) -> None:
        if who.pod is not None:
            self._working[who] += more
            self._working += Counter()
            self._changed()

    def _set(self, document: Any, who: guest.Guest) -> int:
        """Whoever sets something understands NVML's codes only."""
        if self._settings is None:
            return NO_PERMISSION
        try:
            wish = documents.setting(document)
        except errors.InputError as error:
            _log.info("setting refused: %s", error)
            return INVALID_ARGUMENT
        if not who.may_set(wish.device):
            return NO_PERMISSION
        return self._settings(wish.device, wish.setting, wish.values)


def _room() -> int:
    """How many can be connected: as many files as the process may have open, but for those that other things need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CLIENTS + OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - OTHER_FILES)


async def _receive(reader: asyncio.StreamReader) -> Any:
    """One JSON value; the end of the value is the end of the message."""
    buffer = b""
    loop = asyncio.get_running_loop()
    latest = loop.time() + SLOWEST
    while True:
        try:
            async with asyncio.timeout(min(SILENCE, latest - loop.time())):
                piece = await reader.read(65536)
        except TimeoutError:
            raise errors.InputError("workload", "no whole document came in time") from None
        if not piece:
            raise errors.InputError("workload", "the connection closed before a whole document came")
        buffer += piece
        if len(buffer) > LARGEST:
            raise errors.InputError("workload", f"the document is larger than {LARGEST} bytes")
        if len(buffer) == len(piece) or buffer.rstrip().endswith(b"}"):  # an object cannot end otherwise
            with contextlib.suppress(Incomplete):
                return decode(buffer)


class Incomplete(Exception):
    """More has to come."""


def decode(buffer: bytes) -> Any:
    """The JSON value in the buffer. What can never become one is an error."""
    try:
        text = buffer.decode()
    except UnicodeDecodeError as error:
        if error.end == len(buffer) and len(buffer) - error.start < 4:
            raise Incomplete from None
        raise errors.InputError("workload", "not JSON: not UTF-8") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise errors.InputError("workload", "not JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            if "\0" in text:
                raise errors.InputError("workload", "not JSON: NUL bytes") from None
            raise Incomplete from None
        raise errors.InputError("workload", f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise errors.InputError("workload", f"not JSON: {error}") from None


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
