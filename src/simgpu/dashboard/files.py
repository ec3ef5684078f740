"""The page's files, from the package, each read and compressed once."""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
from typing import NamedTuple

from aiohttp import web

from simgpu.web import compressing

SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KINDS = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}  # fmt: skip


class StaticFile(NamedTuple):
    """A file as it is sent."""

    kind: str
    plain: bytes
    packed: bytes
    tag: str


@functools.cache
def load() -> dict[str, StaticFile]:
    """Return all files by name."""
    folder = importlib.resources.files("simgpu.dashboard") / "static"
    found = {}
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        kind = _KINDS.get(item.name.rpartition(".")[2])
        if kind is not None:
            plain = item.read_bytes()
            tag = f'"{hashlib.blake2b(plain, digest_size=12).hexdigest()}"'
            found[item.name] = StaticFile(kind, plain, compressing.compress(plain), tag)
    return found


def routes() -> list[web.RouteDef]:
    """Return the routes of the page and of each file."""
    return [web.get("/", _page), web.get("/static/{name}", _file)]


async def _page(request: web.Request) -> web.StreamResponse:
    return _send(request, "index.html")


async def _file(request: web.Request) -> web.StreamResponse:
    return _send(request, request.match_info["name"])


def _send(request: web.Request, name: str) -> web.Response:
    found = load().get(name)
    if found is None:
        raise web.HTTPNotFound(text="no such file\n")
    headers = {
        "Content-Type": found.kind, "ETag": found.tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **SAFE,
    }  # fmt: skip
    if found.tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=found.packed, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=found.plain, headers=headers)
