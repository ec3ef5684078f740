"""What one server does at a time, and how long it waits for a client: nobody who stalls keeps memory or others out.

A client that sends no whole request, or does not take its answer, is disconnected. What is beyond a limit is answered
with 503 and when to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator

import msgspec
from aiohttp import web

RETRY_AFTER_SECONDS = 5
_REJECTION = (
    "HTTP/1.1 503 Service Unavailable\r\n"
    f"Retry-After: {RETRY_AFTER_SECONDS}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
).encode()


class Limits(msgspec.Struct, frozen=True):
    """The limits of one server."""

    connections: int = 512
    streams: int = 4  # large pages at a time: each holds a copy of all values, and a pair of Prometheus takes two
    unsent_bytes: int = 64 << 20  # of large bodies that clients have yet to take, all together
    idle_seconds: float = 75.0  # for a whole request to come, on a connection that is new or was answered
    answer_seconds: float = 60.0  # for an answer to be made and taken: no scrape waits longer
    line_bytes: int = 8190  # of a request's first line
    field_bytes: int = 8190  # of a header
    headers: int = 64


class Busy(web.HTTPServiceUnavailable):
    """More at a time than the server does."""

    def __init__(self) -> None:
        super().__init__(text="busy: try again later\n", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


class Streams:
    """Admits so many large pages at a time."""

    def __init__(self, most: int) -> None:
        self._free = most

    @contextlib.contextmanager
    def one(self) -> Generator[None, None, None]:
        """The place of one page, or Busy."""
        if self._free <= 0:
            raise Busy
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


STREAMS = web.AppKey("streams", Streams)


class Connection(web.RequestHandler):
    """A client's connection. Who has not taken an answer in time is disconnected."""

    def __init__(self, server: web.Server, limits: Limits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # which is how it is switched off
            keepalive_timeout=limits.idle_seconds,
            max_line_size=limits.line_bytes,
            max_field_size=limits.field_bytes,
            max_headers=limits.headers,
        )
        self._seconds = limits.answer_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._answering = False

    @contextlib.contextmanager
    def answering(self) -> Generator[None, None, None]:
        """An answer is being made; its time begins."""
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)
        self._answering = True
        try:
            yield
        finally:
            self._answering = False  # though it may still have to be sent

    def _end(self) -> None:
        if self.transport is not None and (self._answering or self.transport.get_write_buffer_size()):
            self.transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone."""
        self._cancel_timer()
        super().connection_lost(exc)


def accept(server: web.Server, limits: Limits) -> asyncio.Protocol:
    """The protocol of a new connection: one that says no where there are too many."""
    return Connection(server, limits) if len(server.connections) < limits.connections else _Rejection()


@web.middleware
async def timed(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Each answer has its time."""
    if not isinstance(request.protocol, Connection):
        return await handler(request)
    with request.protocol.answering():
        return await handler(request)


class _Rejection(asyncio.Protocol):
    """Answers that there are too many connections, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say no."""
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(_REJECTION)
        transport.close()
