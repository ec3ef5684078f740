"""The HTTP server: addresses, JSON responses and errors, start and stop."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from simgpu import errors
from simgpu.web.limits import STREAMS, Limits, Streams, accept, timed
from simgpu.web.sending import UNSENT, Unsent, bounded
from simgpu.web.streaming import THREADS, Threads

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def address_text(host: str, port: int) -> str:
    """Return HOST:PORT as it stands in a URL: an IPv6 address has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, *, field: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `:PORT` (all addresses) or `PORT` (loopback)."""
    host, colon, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise errors.InputError(field, f"{text!r}: must be HOST:PORT, :PORT or PORT")
    return (host.strip("[]") or "0.0.0.0" if colon else "127.0.0.1"), int(port)  # noqa: S104 - as requested


def get(path: str, handler: Handler) -> web.RouteDef:
    """Return the route of a path for GET."""
    return web.get(path, handler)


def view(describe: Callable[[], object]) -> Handler:
    """Return a handler that responds with a value as JSON."""

    async def handler(_request: web.Request) -> web.Response:
        return json_response(describe())

    return handler


def json_response(value: object) -> web.Response:
    """Return a response with a value as JSON."""
    try:
        body = msgspec.json.encode(value)
    except UnicodeEncodeError:  # names come from users, and may hold half a surrogate pair
        body = json.dumps(msgspec.to_builtins(value)).encode()
    return web.Response(body=body, content_type="application/json")


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response with an error as JSON."""
    body = msgspec.json.encode({"error": message})
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


@web.middleware
async def json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: unknown paths, wrong methods and internal errors are answered as JSON too."""
    try:
        return await handler(request)
    except web.HTTPException as wrong:
        if wrong.status < 400:
            raise
        kept = {name: wrong.headers[name] for name in ("Allow", "Retry-After") if name in wrong.headers}
        return error(wrong.status, f"{request.method} {request.path}: {wrong.reason}", kept)
    except ConnectionError:
        raise  # the client is gone
    except Exception:  # noqa: BLE001 - logged, and the client gets a response
        _log.exception("%s %s failed", request.method, request.path)
        return error(500, "internal error; see the server's log")


class HttpServer:
    """Serves routes until it is stopped; `address` is where, as HOST:PORT."""

    def __init__(
        self, routes: Iterable[web.RouteDef], middlewares: Iterable[Any] = (), *, limits: Limits | None = None
    ) -> None:
        self._limits = limits or Limits()
        application = web.Application(client_max_size=1 << 16, middlewares=[timed, *middlewares, bounded])
        application[STREAMS] = Streams(self._limits.streams)
        application[UNSENT] = Unsent(self._limits.unsent_bytes)
        self._threads = application[THREADS] = Threads()
        application.add_routes(list(routes))
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=2.0)
        self._listener: asyncio.Server | None = None
        self.address = ""

    async def start(self, host: str, port: int, *, field: str) -> None:
        """Listen; port 0 takes a free one. Errors name `field`."""
        await self._runner.setup()
        connections = self._runner.server
        assert connections is not None  # noqa: S101 - it was set up
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: accept(connections, self._limits), host, port, backlog=1024, reuse_address=True
            )
        except OSError as error:
            await self._runner.cleanup()
            reason = "address already in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            raise errors.InputError(field, f"{host}:{port}: {reason}") from None
        bound, number = self._listener.sockets[0].getsockname()[:2]
        self.address = address_text(bound, number)

    async def stop(self) -> None:
        """Finish requests in progress, and close."""
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()
        self._threads.close()
