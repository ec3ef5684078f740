"""HTTP routes of the page, its API and its event stream."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from simgpu.dashboard import answers, blocks, channels, encoding, files, openapi, origins, pod_pages, queries, reading
from simgpu.dashboard.fleet_channel import FleetChannel
from simgpu.dashboard.frames import FleetFrame, FrameKeeper
from simgpu.dashboard.hub import ViewerHub
from simgpu.dashboard.sources import DashboardSource
from simgpu.dashboard.waiting_pods import WaitingPods
from simgpu.errors import InputError
from simgpu.web import compressing
from simgpu.web.limits import Busy, Connection

API = "/api/v1"
KEPT_SECONDS = 30.0
_SMALL = 1024  # bytes, below which compressing is not worth it

Query = dict[str, str]

_USED = {
    "fleet": ("show", "pool", "model"),
    "node": ("node",),
    "gpu": ("node", "index"),
    "pods": ("q", "namespace", "phase", "limit", "offset"),
    "totals": (),
}  # fmt: skip - what makes one view different from another


class _NotFound(Exception):
    """There is no such object."""


class _Away(Exception):
    """There is nothing to show yet."""


class Dashboard:
    """The page of a source, until it is closed."""

    def __init__(self, source: DashboardSource, *, kept_seconds: float = KEPT_SECONDS) -> None:
        """`kept_seconds` after the last reader has gone, what was computed is forgotten."""
        self._source = source
        self._kept_seconds = kept_seconds
        self._forgetting: asyncio.TimerHandle | None = None
        self._keeper = FrameKeeper(source)
        self._waiting = WaitingPods(source)
        self.hub = ViewerHub(self._keeper)
        self._answer: dict[str, Callable[[Query, web.Request], Awaitable[object]]] = {
            "fleet": self._fleet, "nodes": self._nodes, "node": self._node, "gpus": self._gpus, "gpu": self._gpu,
            "node_gpu": self._node_gpu, "pods": self._pods, "container_gpus": self._container_gpus,
            "events": self._events, "search": self._search,
        }  # fmt: skip

    def routes(self, *, loopback: bool = True) -> list[web.RouteDef]:
        """Return all routes; `loopback` is whether the server listens there, and so answers only to local names."""
        found = [
            web.get(f"{API}{path.path}", functools.partial(self._respond, path.name, path.parameters))
            for path in openapi.PATHS
            if path.name in self._answer
        ]
        api = [
            *found,
            web.get(f"{API}/stream", self._stream, allow_head=False),  # it would have no end
            web.get(f"{API}/openapi.json", _openapi),
        ]
        return [
            *(_guarded(route, loopback=loopback, api=False) for route in files.routes()),
            *(_guarded(route, loopback=loopback, api=True) for route in api),
        ]

    def close(self) -> None:
        """End all streams."""
        self.hub.close()
        self._waiting.close()
        if self._forgetting is not None:
            self._forgetting.cancel()

    def _has_read(self) -> None:
        """Forget the fleet some time after the last reader: it may be replaced by another, and is large."""
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(self._kept_seconds, self._forget)

    def _forget(self) -> None:
        if not self.hub.viewers:
            self._keeper.forget()

    # Answers.

    async def _respond(
        self, name: str, parameters: Sequence[queries.QueryParameter], request: web.Request
    ) -> web.StreamResponse:
        try:
            query = queries.read(request.query, parameters)
            return respond(request, await self._answer[name](query, request))
        except InputError as error:
            return respond(request, answers.Refusal(str(error), error.field), status=400)
        except _NotFound as error:
            return respond(request, answers.Refusal(str(error)), status=404)
        except _Away:
            return respond(request, answers.Refusal("nothing to show yet: not leading, or not started"), status=503)
        finally:
            self._has_read()

    def _frame(self) -> FleetFrame:
        if (frame := self._keeper.frame()) is None:
            raise _Away
        return frame

    async def _fleet(self, _query: Query, _request: web.Request) -> object:
        return reading.fleet(self._source, self._frame())

    async def _nodes(self, query: Query, request: web.Request) -> object:
        limit, offset = _part(query)
        total, items = reading.nodes(self._source, self._frame(), query, limit=limit, offset=offset)
        return _paged(request, total, offset, items)

    async def _node(self, _query: Query, request: web.Request) -> object:
        name = request.match_info["node"]
        return _found(reading.node_detail(self._source, self._frame(), name), f"no node {name!r}")

    async def _gpus(self, query: Query, request: web.Request) -> object:
        limit, offset = _part(query)
        total, items = reading.gpus(self._source, self._frame(), query, limit=limit, offset=offset)
        return _paged(request, total, offset, items)

    async def _gpu(self, _query: Query, request: web.Request) -> object:
        frame, gpu = self._frame(), request.match_info["gpu"]
        place = _found(frame.layout.place(gpu), f"no GPU {gpu!r}")
        node, first = frame.layout.node_of[place], frame.layout.firsts
        found = reading.gpu_detail(self._source, frame, frame.layout.names[node], place - int(first[node]))
        return _found(found, f"no GPU {gpu!r}")

    async def _node_gpu(self, _query: Query, request: web.Request) -> object:
        name, index = request.match_info["node"], request.match_info["index"]
        queries.INDEX.check(index)
        found = reading.gpu_detail(self._source, self._frame(), name, int(index))
        return _found(found, f"no GPU {index} of node {name!r}")

    async def _pods(self, query: Query, request: web.Request) -> object:
        limit, offset = _part(query)
        self._frame()  # without one there is nothing to ask for
        pending = await self._waiting.current()
        total, items = reading.pods(self._source, self._frame(), pending, query, limit=limit, offset=offset)
        return _paged(request, total, offset, items)

    async def _container_gpus(self, query: Query, request: web.Request) -> object:
        if self._source.away():
            raise _Away
        where = request.match_info
        return pod_pages.of_container(self._source, where["namespace"], where["pod"], query["container"])

    async def _events(self, query: Query, request: web.Request) -> object:
        limit, offset = _part(query)
        newest = reading.events(self._source, query["node"])[::-1]
        return _paged(request, len(newest), offset, newest[offset : offset + limit])

    async def _search(self, query: Query, _request: web.Request) -> object:
        return reading.search(self._source, self._frame(), query)

    # The stream.

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        try:
            query = queries.read(request.query, openapi.STREAM)
            key = tuple(query[name] for name in ("view", *_USED[query["view"]]))
            wanted = channels.WantedPart(blocks.parse(query["blocks"]), query["layout"])
            viewer = self.hub.join(key, lambda: self._channel(query), wanted=wanted)
        except InputError as error:
            return respond(request, answers.Refusal(str(error), error.field), status=400)
        except Busy as busy:
            wait = {"Retry-After": busy.headers["Retry-After"]}
            return respond(request, answers.Refusal("too many viewers"), status=503, headers=wait)
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", **files.SAFE}
        response = web.StreamResponse(headers={**headers, "Content-Encoding": "gzip"} if packed else headers)
        try:
            with contextlib.suppress(ConnectionError):  # the client is gone
                await response.prepare(request)
                if packed:
                    await response.write(compressing.HEADER)
                while not viewer.closed:
                    messages = await viewer.next()
                    await response.write(b"".join(item.packed if packed else item.text for item in messages))
                    if isinstance(request.protocol, Connection):
                        request.protocol.extend()
        finally:
            self.hub.leave(key, viewer)
            self._has_read()
        return response

    def _channel(self, query: Query) -> channels.Channel:
        view, node, index = query["view"], query["node"], int(query["index"])
        if view in ("node", "gpu") and not node:
            raise InputError("node", f"is required by view {view}")
        if view == "fleet":
            return FleetChannel(query["show"], pool=query["pool"], model=query["model"])
        if view == "gpu":
            return channels.GpuChannel(lambda frame: reading.gpu_detail(self._source, frame, node, index))
        if view == "node":
            return channels.DocumentChannel("node", lambda frame: reading.node_detail(self._source, frame, node))
        if view == "pods":
            return channels.DocumentChannel("pods", lambda frame: self._shown_pods(frame, query))
        return channels.DocumentChannel("fleet", lambda frame: reading.fleet(self._source, frame))

    def _shown_pods(self, frame: FleetFrame, query: Query) -> object:
        self._waiting.refresh()
        limit, offset = _part(query)
        asked = {name: query[name] for name in ("q", "namespace", "phase")}
        total, items = reading.pods(self._source, frame, self._waiting.latest, asked, limit=limit, offset=offset)
        return answers.ApiPage(total, offset, items)


def _guarded(route: web.RouteDef, *, loopback: bool, api: bool) -> web.RouteDef:
    """Return a route that refuses what other sites make browsers ask for."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if (refused := origins.refusal(request.headers, loopback=loopback, api=api)) is not None:
            return respond(request, answers.Refusal(refused[1]), status=refused[0])
        response: web.StreamResponse = await route.handler(request)
        return response

    return web.RouteDef(route.method, route.path, handler, route.kwargs)


def _part(query: Query) -> tuple[int, int]:
    return int(query["limit"]), int(query["offset"])


def _found(value: Any, problem: str) -> Any:
    if value is None:
        raise _NotFound(problem)
    return value


def _paged(request: web.Request, total: int, offset: int, items: list[Any]) -> answers.ApiPage[Any]:
    after = offset + len(items)
    more = {**request.query, "offset": str(after)} if items and after < total else None
    return answers.ApiPage(total, offset, items, f"{request.path}?{urllib.parse.urlencode(more)}" if more else None)


def respond(
    request: web.Request, value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return a value as JSON, with an ETag, compressed if it is worth it; 304 if the client has it already."""
    body = encoding.json_bytes(value)
    tag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    sent = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **files.SAFE, **(headers or {})}
    if status == 200 and tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=sent)
    if len(body) > _SMALL and "gzip" in request.headers.get("Accept-Encoding", ""):
        sent["Content-Encoding"] = "gzip"
        body = compressing.compress(body)
    return web.Response(body=body, status=status, headers=sent, content_type="application/json")


async def _openapi(request: web.Request) -> web.StreamResponse:
    return respond(request, openapi.document())
