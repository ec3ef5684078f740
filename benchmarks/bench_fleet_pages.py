"""The fleet's pages, served by a process of their own with no cluster beside it: what scrapes of a large fleet cost.

A control plane of this size keeps two cores busy by itself; what it costs the controller is measured with the fleet.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from benchmarks import frame
from simgpu.app import responsive
from simgpu.catalog import models
from simgpu.identities import identity, render
from simgpu.machines.fleet import Fleet
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import inline
from simgpu.web import fleet_pages, server

NODES, GPUS, PODS = 5000, 8, 20_000
INTERVAL = 0.5
TURNS = 7
GZIP = "Accept-Encoding: gzip\r\n"
AIMED = "what is aimed at"
HEARTBEAT = 0.001

Place = tuple[str, int]


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bench_fleet_pages", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    host, _, port = (await process.stdout.readline()).decode().strip().rpartition(":")
    where = (host, int(port))
    try:
        _, size = await asyncio.to_thread(read, where, "/metrics")  # to warm up
        assert size > NODES * GPUS * 2000
        plain, plain_bare = await frame.alternate(timed(where, "/metrics"), timed(where, "/bare"), chunks=TURNS)
        packed, packed_bare = await frame.alternate(
            timed(where, "/metrics", GZIP), timed(where, "/bare", GZIP), chunks=TURNS
        )
        pause, resting = await frame.alternate(paused(where, scrape=True), paused(where, scrape=False), chunks=TURNS)
        single = [await asyncio.to_thread(read, where, f"/metrics/nodes/node-{7 * number}") for number in range(300)]
    finally:
        process.terminate()
        await process.wait()
    yield frame.Figure("fleet.scrape", plain, plain_bare, "s", "the same bytes, sent from memory")
    yield frame.Figure("fleet.scrape_gzip", packed, packed_bare, "s", "the same bytes, compressed by zlib and sent")
    yield frame.Figure("fleet.scrape_pause", pause, resting, "ms", "the longest while no page is made")
    each = statistics.median(seconds for seconds, _ in single)
    yield frame.Figure("fleet.scrape_node", each * 1000, 5, "ms", AIMED)


def timed(where: Place, path: str, encoding: str = "") -> Callable[[], asyncio.Future[float]]:
    """Return a function that measures the seconds of an answer."""
    return lambda: asyncio.ensure_future(asyncio.to_thread(lambda: read(where, path, encoding)[0]))


def paused(where: Place, *, scrape: bool) -> Callable[[], asyncio.Future[float]]:
    """Return a function that measures the longest delay of the event loop, in ms, in about a second."""

    def measure() -> float:
        body(where, "/pause")
        if scrape:
            read(where, "/metrics", GZIP)
        else:
            time.sleep(1)
        return float(body(where, "/pause"))

    return lambda: asyncio.ensure_future(asyncio.to_thread(measure))


def read(where: Place, path: str, encoding: str = "") -> tuple[float, int]:
    """Seconds and bytes of an answer; it is read as fast as it comes, and thrown away."""
    buffer = bytearray(1 << 20)
    started, size = time.perf_counter(), 0
    with socket.create_connection(where) as connection:
        request = f"GET {path} HTTP/1.1\r\nHost: {where[0]}\r\nConnection: close\r\n{encoding}\r\n"
        connection.sendall(request.encode())
        while count := connection.recv_into(buffer):
            size += count
    return time.perf_counter() - started, size


def body(where: Place, path: str) -> bytes:
    """The body of a short answer."""
    with socket.create_connection(where) as connection, connection.makefile("rb") as answer:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {where[0]}\r\nConnection: close\r\n\r\n".encode())
        return answer.read().partition(b"\r\n\r\n")[2]


class Bare:
    """Sends as much as a page has, of one piece that is in memory already."""

    def __init__(self, renderer: render.Renderer) -> None:
        pieces = list(renderer.pieces(renderer.machine))
        self._piece, self._count = pieces[0].make(), len(pieces)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Answer plain, or compressed as it is sent."""
        packed = "gzip" in request.headers.get("Accept-Encoding", "")
        compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"} if packed else {})
        await response.prepare(request)
        for _ in range(self._count):
            text = self._piece
            await response.write(await asyncio.to_thread(compressor.compress, text) if packed else text)
        if packed:
            await response.write(compressor.flush())
        await response.write_eof()
        return response


class Heartbeat:
    """Measures by how much the event loop is late."""

    def __init__(self) -> None:
        self._longest = 0.0

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            due = time.perf_counter() + HEARTBEAT
            await asyncio.sleep(HEARTBEAT)
            self._longest = max(self._longest, time.perf_counter() - due)

    async def __call__(self, _request: web.Request) -> web.Response:
        """Answer with the longest delay since the last time, in ms."""
        longest, self._longest = self._longest, 0.0
        return web.Response(text=f"{longest * 1000:.3f}")


async def serve() -> None:
    """A fleet with its pods, that moves on as the controller's does."""
    responsive.keep_responsive()
    cards, spec = Fleet(seed=1), inline.parse(f"h200:{GPUS}", models.load(), field="gpus")
    each = PODS // NODES
    for number in range(NODES):
        node = cards.place(f"node-{number}", spec)
        uses = {
            gpu: (
                User(PodRef(f"train-{number}-{place}", "team", "main", f"u-{number}-{place}"), Range(40, 90), 143155),
            )
            for place, gpu in enumerate(node.ids[:each])
        }
        cards.use(node, uses)
    cards.step(1e-3, clock=time.time())
    known, namespace = identity.load("dcgm"), "gpu-operator"
    pages = fleet_pages.FleetPages(
        lambda: cards, known, namespace=namespace, plain=False, scraped=lambda _page, _seconds: None
    )
    bare = Bare(render.Renderer(cards.machine(), fleet_pages.with_target_labels(known, namespace)))
    heartbeat = Heartbeat()
    made = server.HttpServer([*pages.routes(), server.get("/pause", heartbeat), server.get("/bare", bare)])
    begun = time.monotonic()
    await made.start("127.0.0.1", 0, field="listen")
    print(made.address, flush=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(heartbeat.run())
        while True:
            await asyncio.sleep(INTERVAL)
            cards.step(time.monotonic() - begun + 1e-3, clock=time.time())


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(serve())
    except ImportError:
        asyncio.run(serve())
