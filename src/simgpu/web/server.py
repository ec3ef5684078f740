"""An HTTP server around handlers: where it listens, and how it ends."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from simgpu import errors

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def parse_address(text: str, *, field: str) -> tuple[str, int]:
    """`HOST:PORT`, `:PORT` (all addresses) or `PORT` (loopback)."""
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise errors.InputError(field, f"{text!r}: must be HOST:PORT, :PORT or PORT")
    return (host.strip("[]") or "0.0.0.0" if colon else "127.0.0.1"), int(port)  # noqa: S104 - asked for


def get(path: str, handler: Handler) -> web.RouteDef:
    """A path that can be read."""
    return web.get(path, handler)


def view(describe: Callable[[], object]) -> Handler:
    """A handler that answers with JSON."""

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(describe()), content_type="application/json")

    return handler


def health(problem: Callable[[], str | None]) -> Handler:
    """A handler that says ok, or what is wrong."""

    async def handler(_request: web.Request) -> web.Response:
        wrong = problem()
        return web.Response(text=f"{wrong or 'ok'}\n", status=503 if wrong else 200)

    return handler


class Server:
    """Serves routes until it is stopped."""

    def __init__(self, routes: Iterable[web.RouteDef], middlewares: Iterable[Any] = ()) -> None:
        application = web.Application(client_max_size=1 << 16, middlewares=list(middlewares))
        application.add_routes(list(routes))
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=2.0)
        self.address = ""

    async def start(self, host: str, port: int, *, field: str) -> None:
        """Listen; port 0 takes a free one."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, backlog=1024, reuse_address=True).start()
        except OSError as error:
            await self._runner.cleanup()
            reason = "somebody else listens there" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise errors.InputError(field, f"{host}:{port}: {reason}") from None
        bound = self._runner.addresses[0]
        self.address = f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        """Finish what is under way, and close."""
        await self._runner.cleanup()
