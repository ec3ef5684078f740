"""HTTP requests to our servers, and the answers and streams that `simgpu top` reads from one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import socket
from collections.abc import AsyncGenerator

import numpy as np
from aiohttp import web

from simgpu.dashboard import openapi
from simgpu.dashboard.serving import API
from simgpu.fakedev import exporter
from simgpu.identities import identity, render
from simgpu.top import feeds, fleet_state
from simgpu.top.choosing import VIEWS, Choice
from simgpu.top.picture import FleetPicture
from simgpu.web import fleet_pages, health, limits, metering, pages, server
from tests.fixtures import boxes
from tests.fixtures.dashboards import ServedFleet
from tests.fuzz.inputs import watchers
from tests.fuzz.target import Target, awaited, encoded, loop, no_error_logged

_TURNS = 400  # of the event loop: enough for any answer that no thread makes
_IDLE_TURNS = 8  # in which a server that waits does not begin to answer: it never will
_STATUS = re.compile(rb"HTTP/\d\.\d (\d{3}) ")
_NODE = "training-0000"


class _Served:
    """Routes of controller, agent and exporter in one, of a small fleet: each request has a connection of its own."""

    def __init__(self) -> None:
        shown = _shown()
        metrics = fleet_pages.FleetPages(
            lambda: shown.fleet, identity.load("dcgm"), namespace="ns", plain=False, scraped=lambda *_: None
        )
        topology = fleet_pages.topology_routes(
            lambda: True, lambda: {"NodePools": {}}, lambda name: {"name": name} if name == _NODE else None
        )
        box = boxes.busy("h200")
        page = pages.Page(render.Renderer(box.machine, identity.load("dcgm")))
        routes = [
            *metrics.routes(), *topology, *shown.dashboard.routes(), server.get("/box", page.__call__),
            server.get(f"{API}/devices", server.view(box.describe_devices)),
            server.get(f"{API}/workloads", server.view(box.describe_workloads)),
            web.route("*", "/fakedev", exporter.route(page).handler),
            server.get("/own", metering.Meters(_no_state, dict).page()),
            server.get("/healthz", health.liveness(lambda: ["a problem"])),
            server.get("/readyz", health.readiness(str)),
        ]  # fmt: skip
        self.shown = shown
        self.http = server.HttpServer(routes, [server.json_errors])


@functools.cache
def _shown() -> ServedFleet:
    made = ServedFleet(4)
    made.step()
    return made


def _no_state() -> dict[str, float]:
    return dict.fromkeys((*metering.GAUGES, *metering.COUNTERS), 0.0)


@functools.cache
def _served() -> _Served:
    return _Served()


async def _connections() -> web.Server:
    """Return the server of the connections, set up at the first of them."""
    runner = _served().http._runner
    if runner.server is None:
        await runner.setup()
    assert runner.server is not None
    return runner.server


async def _request(data: bytes) -> bytes:
    """Whatever bytes arrive, none of our code fails on them, and the connection ends with its client."""
    connections = await _connections()
    theirs, ours = socket.socketpair()
    ours.setblocking(False)
    with no_error_logged(), ours:
        _, protocol = await loop().connect_accepted_socket(lambda: limits.accept(connections, limits.Limits()), theirs)
        answer = await _answer(ours, protocol, data)
        ours.close()
        await _ended(connections)
    for status in _STATUS.findall(answer):
        assert status != b"500", answer[:2000]
    assert not answer or _STATUS.match(answer)
    return answer


async def _ended(connections: web.Server) -> None:
    """Let the server notice that its client is gone: for the rest of a body, the library waits some seconds more."""
    for _ in range(_TURNS):
        if not connections.connections:
            return
        await asyncio.sleep(0)
    await connections.shutdown(0.001)  # seconds; 0 would wait for as long as a stream does
    assert not connections.connections


async def _answer(ours: socket.socket, protocol: asyncio.BaseProtocol, data: bytes) -> bytes:
    """Send a request, and return what was answered until the server waits for more or has closed the connection."""
    await loop().sock_sendall(ours, data)
    found, idle = bytearray(), 0
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        with contextlib.suppress(BlockingIOError):
            piece = ours.recv(1 << 16)
            found += piece
            if not piece:
                break
        idle = idle + 1 if getattr(protocol, "_waiter", None) is not None else 0  # it waits for a request
        if idle > _IDLE_TURNS:
            break
    return bytes(found)


def _query(data: bytes) -> object:
    """A request whose path, query and headers are hostile, but which is one."""
    target, *headers = data.replace(b"\r", b"").replace(b"\0", b"").split(b"\n")
    lines = [b"GET /" + target.lstrip(b"/").replace(b" ", b"%20") + b" HTTP/1.1", b"Host: localhost"]
    return loop().run_until_complete(_request(b"\r\n".join([*lines, *headers[:8], b"", b""])))


async def _events(data: bytes) -> None:
    """A stream of our API is followed, or `simgpu top` reports that it cannot be read."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        for piece in data.split(b"\0|\0"):
            yield piece

    picture = FleetPicture("here")
    found = picture.state
    with contextlib.suppress(feeds.FeedError):
        async for event in feeds.events(pieces()):
            found.apply(fleet_state.COLUMNS[0], event)
            assert all(len(cells) == found.order.gpus for cells in found.columns.values())
            assert np.isfinite(found.order.means(found.columns[fleet_state.COLUMNS[0]])).all()
    if len(data) % 16 == 0:  # drawing takes longer than reading
        for view in VIEWS:
            watchers.check_drawn(picture, Choice(view=view, still=True), (120, 40))


def _stream(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + json.dumps(value).encode() + b"\n\n"


def _paths() -> list[str]:
    """Return all paths of the API, with a node, a GPU and a pod that are there."""
    first = _shown().pods()[0]
    there = {
        "node": _NODE, "index": "0", "gpu": _shown().fleet.nodes[_NODE].ids[0],
        "namespace": first.metadata.namespace, "pod": first.metadata.name,
    }  # fmt: skip
    return [f"{API}{path.path}".lstrip("/").format_map(there) for path in openapi.PATHS]


_OTHERS = (
    "metrics",
    f"metrics/nodes/{_NODE}",
    "sd",
    "topology",
    f"topology/nodes/{_NODE}",
    "box",
    "fakedev",
    "api/v1/devices",
    "api/v1/workloads",
    "own",
    "healthz?verbose",
    "",
)
_ASKED = "api/v1/gpus?q=train&limit=5&offset=2&health=lost&pool=training&namespace=vision\nAccept-Encoding: gzip"
_LAYOUT = {"names": ["a", "b"], "pools": ["p"], "pool_of": [0, 0], "counts": [1, 2]}

_REQUESTS = (
    "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n\r\n",
    "POST /topology HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
    "POST /fakedev HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "GET /fakedev HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "GET /healthz HTTP/1.0\r\n\r\nGET /api/v1/fleet HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /api/v1/fleet HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)

TARGETS = (
    Target("http-requests", awaited(_request), encoded(_REQUESTS)),
    Target("http-queries", _query, encoded([*_paths(), *_OTHERS, _ASKED])),
    Target("fleet-streams", awaited(_events), (_stream("layout", _LAYOUT) + _stream("away", {}),)),
)
