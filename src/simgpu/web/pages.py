"""Metrics pages over HTTP.

A page is rendered once per step and cached, plain and compressed. A large one is not cached: it is streamed in pieces
from a copy of the step's values, so that memory stays flat, and to few clients at once. Threads make the pieces: the
event loop goes on meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import chain

from aiohttp import web

from simgpu.identities import render
from simgpu.identities.identity import Identity
from simgpu.machines.machine import Machine
from simgpu.web import compressing, streaming
from simgpu.web.limits import STREAMS

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MAX_CACHED_SERIES = 20_000  # a few MiB

More = Callable[[Machine], Iterator[render.Piece]]  # makes the end of a page; its values are taken at the call


def nothing(_machine: Machine) -> Iterator[render.Piece]:
    """Return no more."""
    return iter(())


class Page:
    """One identity's page of a machine; `more` returns what is appended to it."""

    def __init__(self, renderer: render.Renderer, more: More = nothing) -> None:
        self.renderer = renderer
        self._more = more
        self._step = (-1, -1)
        self._cached: dict[tuple[bool, bool], bytes] = {}
        self._kept = {False: streaming.Kept(), True: streaming.Kept()}  # by whether the format is OpenMetrics

    def on(self, machine: Machine) -> Page:
        """Return the page of another machine; this one if it is of that machine. Texts of devices are kept."""
        return self if self.renderer.machine is machine else Page(self.renderer.on(machine), self._more)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Respond to a scrape."""
        open_metrics = self.renderer.identity.openmetrics and OPENMETRICS[:28] in request.headers.get("Accept", "")
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        kind = OPENMETRICS if open_metrics else TEXT
        if self.renderer.size > MAX_CACHED_SERIES:
            return await self._stream(request, kind, open_metrics=open_metrics, packed=packed)
        headers = {"Content-Type": kind, "Vary": "Accept-Encoding"}
        if packed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=self._body(open_metrics=open_metrics, packed=packed), headers=headers)

    def _body(self, *, open_metrics: bool, packed: bool) -> bytes:
        machine = self.renderer.machine
        if self._step != (machine.step, machine.version):
            self._cached.clear()
            self._step = (machine.step, machine.version)
        key = (open_metrics, packed)
        if key not in self._cached:
            if packed:
                self._cached[key] = compressing.compress(self._body(open_metrics=open_metrics, packed=False))
            else:
                chunks = self.renderer.chunks(open_metrics=open_metrics)
                self._cached[key] = b"".join((*chunks, *(piece.make() for piece in self._more(machine))))
        return self._cached[key]

    async def _stream(self, request: web.Request, kind: str, *, open_metrics: bool, packed: bool) -> web.StreamResponse:
        headers = {"Content-Type": kind, "Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if packed else {})
        response = web.StreamResponse(headers=headers)
        with request.app[STREAMS].one(), contextlib.suppress(ConnectionError):  # the client is gone
            await response.prepare(request)
            snapshot, threads = self.renderer.snapshot(), request.app[streaming.THREADS]
            pieces = chain(self.renderer.pieces(snapshot, open_metrics=open_metrics), self._more(snapshot))
            del snapshot  # the renderer lets go of it too when it has read it
            made = (
                streaming.compressed(threads, pieces, self._kept[open_metrics])
                if packed
                else streaming.plain(threads, pieces)
            )
            async with contextlib.aclosing(made) as stream:
                async for piece in stream:
                    await response.write(piece)
            await response.write_eof()
        return response


class Following:
    """One identity's page of a machine that may be replaced by another; devices that both have keep their texts."""

    def __init__(self, machine: Callable[[], Machine], identity: Identity, more: More = nothing) -> None:
        self._machine = machine
        self._identity = identity
        self._more = more
        self._page: Page | None = None

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Answer a scrape."""
        return await self.page()(request)

    def page(self) -> Page:
        """Return the page of the current machine."""
        machine = self._machine()
        if self._page is None:
            self._page = Page(render.Renderer(machine, self._identity), self._more)
        else:
            self._page = self._page.on(machine)
        return self._page


def routes(pages: dict[str, Following], first: str) -> Iterator[web.RouteDef]:
    """Yield the routes: `/metrics` is the page of `first`, `/metrics/NAME` each identity's."""
    yield web.get("/metrics", pages[first])
    for name, page in pages.items():
        yield web.get(f"/metrics/{name}", page)
