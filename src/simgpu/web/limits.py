"""Limits on concurrency and on slow clients, so that a stalled client holds neither memory nor connections.

A client that does not send a complete request, or does not read its response, is disconnected. Requests over a limit
are answered with 503 and `Retry-After`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import msgspec
from aiohttp import http_exceptions, web

_log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5
_REJECTION = (
    "HTTP/1.1 503 Service Unavailable\r\n"
    f"Retry-After: {RETRY_AFTER_SECONDS}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
).encode()


class Limits(msgspec.Struct, frozen=True):
    """Limits of an HTTP server on all of its clients together, or on each connection and request."""

    connections: int = 512
    streams: int = 4  # large pages at once: each holds a copy of all values, and a Prometheus pair needs two
    unsent_bytes: int = 64 << 20  # of large bodies that clients have yet to read, in total
    idle_seconds: float = 75.0  # for a complete request, on a new or idle connection
    answer_seconds: float = 60.0  # for a response to be made and read: no scrape waits longer
    line_bytes: int = 8190  # of the request line
    field_bytes: int = 8190  # of a header
    headers: int = 64


class Busy(web.HTTPServiceUnavailable):
    """The server is at a limit: 503 with `Retry-After`."""

    def __init__(self) -> None:
        super().__init__(text="busy: try again later\n", headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


class Streams:
    """Limits the number of large pages in progress."""

    def __init__(self, limit: int) -> None:
        self._free = limit

    @contextlib.contextmanager
    def one(self) -> Generator[None, None, None]:
        """Count one page while it is in progress; raises `Busy` at the limit."""
        if self._free <= 0:
            raise Busy
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


STREAMS = web.AppKey("streams", Streams)


class Connection(web.RequestHandler):
    """A client's connection, aborted when a response takes too long to be made or read."""

    def __init__(self, server: web.Server, limits: Limits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # switches it off
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
        """Limit the time of the response that is made within."""
        self.extend()
        self._answering = True
        try:
            yield
        finally:
            self._answering = False  # though it may not have been sent yet

    def extend(self) -> None:
        """Start the time anew: the client has read what was sent so far of a response without an end."""
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        if self.transport is not None and (self._answering or self.transport.get_write_buffer_size()):
            self.transport.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error of ours; a request that is no HTTP is its client's, and anyone can send such ones."""
        if isinstance(kw.get("exc_info"), http_exceptions.HttpProcessingError):
            _log.debug(*args, **kw)
        else:
            super().log_exception(*args, **kw)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client disconnected."""
        self._cancel_timer()
        super().connection_lost(exc)


def accept(server: web.Server, limits: Limits) -> asyncio.Protocol:
    """Return the protocol of a new connection; one that rejects it if there are too many."""
    return Connection(server, limits) if len(server.connections) < limits.connections else _Rejection()


@web.middleware
async def timed(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Middleware: limit the time of each response."""
    if not isinstance(request.protocol, Connection):
        return await handler(request)
    with request.protocol.answering():
        return await handler(request)


class _Rejection(asyncio.Protocol):
    """Answers 503, and closes the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Reject the connection."""
        if isinstance(transport, asyncio.WriteTransport):
            transport.write(_REJECTION)
        transport.close()
