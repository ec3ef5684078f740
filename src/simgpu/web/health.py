"""Health routes of all roles."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from simgpu.web.server import Handler


def liveness(problems: Callable[[], Iterable[str]] = tuple) -> Handler:
    """Return a handler that always answers 200; with `?verbose` it also lists problems, one a line."""

    async def handler(request: web.Request) -> web.Response:
        found = list(problems()) if "verbose" in request.query else []
        return web.Response(text="\n".join(["ok", *found]) + "\n")

    return handler


def readiness(problem: Callable[[], str | None]) -> Handler:
    """Return a handler that answers 200, or 503 with the problem while there is one."""

    async def handler(_request: web.Request) -> web.Response:
        wrong = problem()
        return web.Response(text=f"{wrong or 'ok'}\n", status=503 if wrong else 200)

    return handler
