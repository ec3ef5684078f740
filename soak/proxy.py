"""A proxy in front of the API server that injects faults: lost and slow networks, and answers of an overloaded server.

It ends TLS, so that it can answer requests itself; clients behind it authenticate by token. Answers of the server pass
as bytes. A request is read only as far as its end has to be known: by `Content-Length` or chunks.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random
import ssl
from pathlib import Path
from typing import Self

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 << 20
_PIECE = 64 * 1024
_SLOW_PIECE = 4 * 1024
_POLL_SECONDS = 0.02
_REASONS = {429: ("Too Many Requests", "TooManyRequests"), 500: ("Internal Server Error", "InternalError")}


class FaultProxy:
    """Forwards connections, with the faults that are on at the moment. `counts` are faults by kind, and requests."""

    def __init__(self, upstream: tuple[str, int], pki: Path, *, chance: random.Random) -> None:
        self.stalled = False  # nothing passes, unreported
        self.delay = 0.0  # seconds that each piece waits, both ways
        self.status = 0  # of answers in a storm; 0 for none
        self.share = 0.0  # of requests that are answered with it
        self.counts: collections.Counter[str] = collections.Counter()
        self.url = ""  # once it listens
        self._upstream = upstream
        self._chance = chance
        self._outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._outer.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
        self._inner = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        """Start."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._outer, limit=_MAX_HEAD)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> int:
        """Break every connection now; return how many there were."""
        count = len(self._writers) // 2
        self.counts["connections cut"] += count
        for writer in self._writers:
            writer.transport.abort()
        return count

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._upstream, ssl=self._inner)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        try:
            with contextlib.suppress(asyncio.CancelledError):  # at the end; asyncio would log it
                await self._forward(reader, writer, server_reader, server_writer)
        finally:
            self._writers -= {writer, server_writer}
            for one in (writer, server_writer):
                one.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        """Forward both ways until either side ends."""
        ways = [
            asyncio.ensure_future(self._requests(reader, writer, server_writer)),
            asyncio.ensure_future(self._answers(server_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await _read_body(reader, head)
                self.counts["requests"] += 1
                if self.status and self._chance.random() < self.share:
                    self.counts[f"answers {self.status}"] += 1
                    writer.write(_answer(self.status))
                    await writer.drain()
                    continue
                await self._pass(len(head) + len(body))
                server.write(head + body)
                await server.drain()

    async def _answers(self, server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(_SLOW_PIECE if self.delay else _PIECE):
                await self._pass(len(data))
                writer.write(data)
                await writer.drain()

    async def _pass(self, size: int) -> None:
        """Wait as long as the network makes these bytes wait."""
        if self.stalled:
            self.counts["bytes held up"] += size
        while self.stalled:
            await asyncio.sleep(_POLL_SECONDS)
        if self.delay:
            self.counts["pieces delayed"] += 1
            await asyncio.sleep(self.delay * self._chance.uniform(0.5, 1.5))


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Return the body of a request as it was sent, framing included."""
    lines = head.decode("latin-1").split("\r\n")[1:]
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in fields.get("transfer-encoding", "").lower():
        return await _read_chunks(reader)
    length = int(fields.get("content-length", "0"))
    if not 0 <= length <= _MAX_BODY:
        raise ValueError("length of a request")
    return await reader.readexactly(length)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if not 0 <= size <= _MAX_BODY:
            raise ValueError("size of a chunk")
        parts += [line, await reader.readexactly(size + 2)]
        if size == 0:
            return b"".join(parts)


def _answer(status: int) -> bytes:
    """Return the answer of an API server that fails."""
    phrase, reason = _REASONS[status]
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}
    body = json.dumps({**document, "message": "injected by the soak"}).encode()
    more = "Retry-After: 1\r\n" if status == 429 else ""
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
