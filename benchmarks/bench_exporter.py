"""The exporter: what a page costs to render, to serve and to start, and what a device takes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from benchmarks import frame, scratch
from simgpu.catalog import models
from simgpu.identities import identity, render
from simgpu.machines import box
from simgpu.topology import devices

DEVICES, FAMILIES = 80_000, 20
MANY = 100_000
WORKLOADS = 1000


def make(model: str, count: int) -> box.Box:
    wanted = devices.BoxConfig((devices.GpuEntry(model, count),))
    return box.Box(devices.build(wanted, models.load(), node="bench"), seed=1, hostname="bench")


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    yield rendering()
    yield streaming()
    yield per_device()
    async for figure in serving():
        yield figure


def rendering() -> frame.Figure:
    """Series in a second, against prometheus_client's."""
    made = make("h200", DEVICES)
    whole = identity.load("dcgm")
    families = whole.families[:FAMILIES]
    renderer = render.Renderer(made.machine, msgspec.structs.replace(whole, families=families))
    registry = CollectorRegistry()
    theirs_devices = 2000
    for family in families:
        gauge = Gauge(family.name, family.help, list("abcdefg"), registry=registry)
        for index in range(theirs_devices):
            gauge.labels(*(f"value-{index}",) * 7).set(index)
    pairs = []
    for turn in range(5):
        made.step(turn + 1.0, clock=0.0)
        start = time.perf_counter()
        for _ in renderer.chunks():
            pass
        ours = DEVICES * FAMILIES / (time.perf_counter() - start)
        start = time.perf_counter()
        generate_latest(registry)
        pairs.append((ours, theirs_devices * FAMILIES / (time.perf_counter() - start)))
    ours, theirs = (statistics.median(pair[side] for pair in pairs[1:]) for side in (0, 1))
    return frame.Figure("exporter.render", ours, theirs, "series/s", "prometheus_client", "higher")


def streaming() -> frame.Figure:
    """Resident memory while a page of hundreds of MiB is streamed, against before."""
    made = make("h200", DEVICES)
    renderer = render.Renderer(made.machine, identity.load("dcgm"))
    made.step(1.0, clock=0.0)
    for _ in renderer.chunks():
        pass
    gc.collect()
    before = highest = scratch.resident_mib()
    made.step(2.0, clock=0.0)
    for number, _ in enumerate(renderer.chunks()):
        if number % 20 == 0:
            highest = max(highest, scratch.resident_mib())
    return frame.Figure("exporter.streaming", highest, before, "MiB", "before")


def per_device() -> frame.Figure:
    """Memory for each device of a large box, its page's labels included."""
    gc.collect()
    before = scratch.resident_mib()
    made = make("h200", MANY)
    made.step(1.0, clock=0.0)
    renderer = render.Renderer(made.machine, identity.load("dcgm"))
    for _ in renderer.chunks():
        pass
    gc.collect()
    each = (scratch.resident_mib() - before) * 2**20 / MANY
    return frame.Figure("exporter.memory", each, 2048, "B/device", "two kilobytes")


async def serving() -> AsyncIterator[frame.Figure]:
    """Start to first scrape; scrapes in a second over four connections, alone and with workloads connected."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        started = time.perf_counter()
        async with running(home) as url, aiohttp.ClientSession() as session:
            async with session.get(url) as answer:
                await answer.read()
            start = time.perf_counter() - started
            alone = statistics.median([await scrape(url, 2.0) for _ in range(3)])
        loaded, baseline = await beside_workloads(home)
    yield frame.Figure("exporter.start", start, 0.9, "s", "what is aimed at")
    yield frame.Figure("exporter.scrapes", alone, 1700, "pages/s", "the Go original's figure", "higher")
    against = f"without {WORKLOADS} workloads"
    yield frame.Figure("exporter.scrapes_loaded", loaded, baseline, "pages/s", against, "higher")


async def beside_workloads(home: Path) -> tuple[float, float]:
    """Scrapes with workloads connected and without; the cards are busy in both, as busy pages compress less well."""
    base = home / "base.json"
    base.write_text('{"Name": "base", "Profile": [{"Load": 8, "Seconds": 0}]}')
    async with running(home, "--base-workload", base) as url:

        async def connected() -> float:
            clients = [await connect(home, number) for number in range(WORKLOADS)]
            await asyncio.sleep(1.5)
            rate = await scrape(url, 2.0)
            for _, writer in clients:
                writer.close()
            await asyncio.sleep(1.5)
            return rate

        return await frame.alternate(connected, lambda: scrape(url, 2.0), chunks=3)


@contextlib.asynccontextmanager
async def running(home: Path, *options: str | Path) -> AsyncIterator[str]:
    program = Path(sys.executable).parent / "simgpu"
    address = f"127.0.0.1:{scratch.free_port()}"
    process = await asyncio.create_subprocess_exec(
        program, "exporter", "--model", "dg1", "--count", "128", "--identity", "xpum", "--listen", address,
        "--socket", home / "s", *options, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    while b"Ready" not in await process.stderr.readline():
        pass
    try:
        yield f"http://{address}/metrics"
    finally:
        process.terminate()
        await process.wait()


async def scrape(url: str, seconds: float) -> float:
    """Pages in a second over four connections, compressed as Prometheus takes them, read but not unpacked."""
    host = url.split("/")[2]
    name, port = host.split(":")
    request = f"GET /metrics HTTP/1.1\r\nHost: {host}\r\nAccept-Encoding: gzip\r\n\r\n".encode()
    until = time.perf_counter() + seconds

    async def one() -> int:
        reader, writer = await asyncio.open_connection(name, int(port), limit=1 << 22)
        count = 0
        while time.perf_counter() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            count += 1
        writer.close()
        return count

    start = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(4)))
    return sum(counts) / (time.perf_counter() - start)


async def connect(home: Path, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(home / "s")
    document = f'{{"Name":"w{number}","Profile":[{{"Load":1,"Seconds":0}}],"Devices":["card{number % 128}"]}}'
    writer.write(document.encode())
    await writer.drain()
    return reader, writer
