"""An HTTP server around handlers: where it listens, and how it ends."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from simgpu import errors

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def parse_address(text: str, *, field: str) -> tuple[str, int]:
    """`HOST:PORT`, `:PORT` (all addresses) or `PORT` (loopback)."""
    host, colon, port = text.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
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


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """An error as JSON."""
    body = msgspec.json.encode({"error": message})
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


@web.middleware
async def json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What no handler answers is answered as JSON too: unknown paths, wrong methods, our own mistakes."""
    try:
        return await handler(request)
    except web.HTTPException as wrong:
        if wrong.status < 400:
            raise
        allowed = {"Allow": wrong.headers["Allow"]} if "Allow" in wrong.headers else None
        return error(wrong.status, f"{request.method} {request.path}: {wrong.reason}", allowed)
    except Exception:  # noqa: BLE001 - whatever it is, the client gets an answer that it can read
        _log.exception("%s %s failed", request.method, request.path)
        return error(500, "the server made a mistake; its log says more")


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
