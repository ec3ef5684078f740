"""Sends large bodies in chunks, within a budget of unsent bytes.

A body is held until its client has read it, so a few hundred clients that do not read would otherwise hold as many
bodies. Small ones are left to the HTTP library: the limit on connections bounds what they hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator

from aiohttp import web

from simgpu.web.limits import Busy

LARGE = 64 << 10  # as much as a connection buffers before its writer has to wait
_PIECE = 256 << 10


class Unsent:
    """Admits large bodies while those in progress have `limit` bytes or fewer; a single one may be larger."""

    def __init__(self, limit: int) -> None:
        self.held = 0
        self._limit = limit

    @contextlib.contextmanager
    def room_for(self, response: web.Response) -> Generator[memoryview, None, None]:
        """Return the body of a response, taken out of it, while it is sent; raises `Busy` at the limit.

        The HTTP library keeps a response, or the exception that became one, until the connection's next request.
        """
        body, response.body = memoryview(_body(response)), None
        size = len(body)
        try:
            if self.held and self.held + size > self._limit:
                raise Busy
            self.held += size
            try:
                yield body
            finally:
                self.held -= size
        finally:
            body.release()


UNSENT = web.AppKey("unsent", Unsent)


@web.middleware
async def bounded(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Middleware: send large bodies within the budget."""
    response = await handler(request)
    if isinstance(response, web.Response) and len(_body(response)) > LARGE:
        response.headers["Content-Length"] = str(len(_body(response)))
        with request.app[UNSENT].room_for(response) as body, contextlib.suppress(ConnectionError):
            writer = await response.prepare(request)
            assert writer is not None  # noqa: S101 - nothing was sent before
            for start in range(0, len(body) if request.method != "HEAD" else 0, _PIECE):
                await writer.write(bytes(body[start : start + _PIECE]))  # a view would outlive a lost connection
    return response


def _body(response: web.Response) -> bytes | bytearray:
    return response.body if isinstance(response.body, bytes | bytearray) else b""
