"""The fleet's pages, served by a process of their own with no cluster beside it: what scrapes of a large fleet cost.

A control plane of this size keeps two cores busy by itself; what it costs the controller is measured with the fleet.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator

from benchmarks import frame
from simgpu.catalog import models
from simgpu.identities import identity
from simgpu.machines.fleet import Fleet
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import inline
from simgpu.web import fleet_pages, server

NODES, GPUS, PODS = 5000, 8, 20_000
INTERVAL = 0.5
AIMED = "what is aimed at"


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bench_fleet_pages", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    host, _, port = (await process.stdout.readline()).decode().strip().rpartition(":")
    try:
        where = (host, int(port))
        await asyncio.to_thread(read, where, "/metrics")
        whole = [await asyncio.to_thread(read, where, "/metrics") for _ in range(7)]
        single = [await asyncio.to_thread(read, where, f"/metrics/nodes/node-{7 * number}") for number in range(300)]
    finally:
        process.terminate()
        await process.wait()
    assert min(size for _, size in whole) > NODES * GPUS * 2000
    yield frame.Figure("fleet.scrape", statistics.median(seconds for seconds, _ in whole), 1.5, "s", AIMED)
    each = statistics.median(seconds for seconds, _ in single)
    yield frame.Figure("fleet.scrape_node", each * 1000, 5, "ms", AIMED)


def read(where: tuple[str, int], path: str) -> tuple[float, int]:
    """Seconds and bytes of an answer; it is read as fast as it comes, and thrown away."""
    buffer = bytearray(1 << 20)
    started, size = time.perf_counter(), 0
    with socket.create_connection(where) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {where[0]}\r\nConnection: close\r\n\r\n".encode())
        while count := connection.recv_into(buffer):
            size += count
    return time.perf_counter() - started, size


async def serve() -> None:
    """A fleet with its pods, that moves on as the controller's does."""
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
    pages = fleet_pages.FleetPages(
        lambda: cards,
        identity.load("dcgm"),
        namespace="gpu-operator",
        plain=False,
        scraped=lambda _page, _seconds: None,
    )
    made = server.HttpServer(pages.routes())
    begun = time.monotonic()
    cards.step(1e-3, clock=time.time())
    await made.start("127.0.0.1", 0, field="listen")
    print(made.address, flush=True)
    while True:
        await asyncio.sleep(INTERVAL)
        cards.step(time.monotonic() - begun + 1e-3, clock=time.time())


if __name__ == "__main__":
    try:
        import uvloop

        uvloop.run(serve())
    except ImportError:
        asyncio.run(serve())
