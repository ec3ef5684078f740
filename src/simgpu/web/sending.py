"""Sends large bodies piece by piece, within a budget of bytes that clients have yet to take.

A body that was made for one client is held until that client has taken it, so a few hundred clients that do not read
would otherwise hold as many bodies. Small ones are left to the HTTP library: what connections hold of them is bounded
by the limit on connections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator

from aiohttp import web

from simgpu.web.limits import Busy

LARGE = 64 << 10  # as much as a connection buffers before its writer has to wait
_PIECE = 256 << 10


class Unsent:
    """Admits large bodies while those under way have `most` bytes or fewer; one alone may have more."""

    def __init__(self, most: int) -> None:
        self.held = 0
        self._most = most

    @contextlib.contextmanager
    def room_for(self, response: web.Response) -> Generator[memoryview, None, None]:
        """The body of a response that may be sent now, or Busy. The response itself is left without it.

        The HTTP library keeps an answer, or the exception that became one, until the connection's next request.
        """
        body, response.body = memoryview(_body(response)), None
        size = len(body)
        try:
            if self.held and self.held + size > self._most:
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
    """Large bodies are sent within the budget."""
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
