"""The live page of 40,000 GPUs: what viewers cost the process that serves it, and what a browser makes of it.

The process has a fleet that moves on as the controller's does, its metrics and the page, and no cluster beside it. A
tenth of the GPUs is busy, so that they change with each step.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

from playwright.sync_api import Page, sync_playwright

from benchmarks import bench_fleet_pages, frame
from simgpu.app import responsive
from simgpu.catalog import models
from simgpu.dashboard import files
from simgpu.dashboard.serving import Dashboard
from simgpu.dashboard.sources import ClusterFacts, FleetSource
from simgpu.identities import identity
from simgpu.machines.fleet import Fleet
from simgpu.machines.users import PodRef, Range, User
from simgpu.topology import inline
from simgpu.web import fleet_pages, server
from tests.fixtures.chromium import launched, until

NODES, GPUS = 5000, 8
VIEWERS = 50
PART = 30  # blocks of nodes, of 250, that a viewer sees who has zoomed
SECONDS = 12.0  # of each measurement of processor time
TURNS = 3
INTERVAL = 0.5
AIMED = "what is aimed at"
_TICKS = os.sysconf("SC_CLK_TCK")

Place = tuple[str, int]


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bench_dashboard", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    host, _, port = (await process.stdout.readline()).decode().strip().rpartition(":")
    where = (host, int(port))
    try:
        alone, first, all_of_them, zoomed = [], [], [], []
        sent = 0.0
        for _ in range(TURNS):
            alone.append(await asyncio.to_thread(busy, process.pid))
            with Viewers(where, 1) as viewers:
                first.append(await asyncio.to_thread(busy, process.pid))
                sent = viewers.rate()
            with Viewers(where, VIEWERS + 1):
                all_of_them.append(await asyncio.to_thread(busy, process.pid))
            with Viewers(where, VIEWERS + 1, parts=True):
                zoomed.append(await asyncio.to_thread(busy, process.pid))
        scrape, scrape_alone = await frame.alternate(
            watched(where), bench_fleet_pages.timed(where, "/metrics", bench_fleet_pages.GZIP), chunks=TURNS + 2
        )
        picture, rate = await asyncio.to_thread(seen, f"http://{host}:{port}/")
    finally:
        process.terminate()
        await process.wait()
    one = max(0.0, min(first) - min(alone))
    yield frame.Figure("dashboard.first_viewer", one, 3, "% of a core", AIMED)
    further = max(0.0, min(all_of_them) - min(first)) / VIEWERS
    yield frame.Figure("dashboard.further_viewer", further, 0.2, "% of a core", AIMED)
    part = max(0.0, min(zoomed) - min(first)) / VIEWERS
    yield frame.Figure("dashboard.zoomed_viewer", part, 0.2, "% of a core", AIMED)
    yield frame.Figure("dashboard.stream", sent / 1000, 30, "kB/s", AIMED)
    yield frame.Figure("dashboard.scrape", scrape, scrape_alone, "s", f"without {VIEWERS} viewers")
    yield frame.Figure(
        "dashboard.files", sum(len(file.packed) for file in files.load().values()) / 1000, 300, "kB", AIMED
    )
    yield frame.Figure("dashboard.first_picture", picture, 1.5, "s", AIMED)
    yield frame.Figure("dashboard.panning", rate, 30, "frames/s", AIMED, better="higher")


def busy(pid: int) -> float:
    """Percent of a core that a process uses."""

    def ticks() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

    before, started = ticks(), time.monotonic()
    time.sleep(SECONDS)
    return 100 * (ticks() - before) / _TICKS / (time.monotonic() - started)


class Viewers:
    """Clients of the event stream, read by a thread of this process; all but one see different `parts` if asked."""

    def __init__(self, where: Place, count: int, *, parts: bool = False) -> None:
        self._where, self._count, self._parts = where, count, parts

    def __enter__(self) -> Self:
        self._sockets = [socket.create_connection(self._where) for _ in range(self._count)]
        for number, item in enumerate(self._sockets):
            blocks = f"{((1 << PART) - 1) << 4 * (number - 1):x}" if self._parts and number else ""
            path = f"/api/v1/stream?blocks={blocks}"
            item.sendall(f"GET {path} HTTP/1.1\r\nHost: {self._where[0]}\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        time.sleep(2)  # for the snapshots
        for item in self._sockets:
            item.settimeout(0)
        self._received = 0
        self._since = time.monotonic()
        self._drain(count=False)
        self._stopped = False
        self._reading = asyncio.get_running_loop().run_in_executor(None, self._read)
        return self

    def _drain(self, *, count: bool = True) -> None:
        for number, item in enumerate(self._sockets):
            try:
                while data := item.recv(1 << 18):
                    self._received += len(data) if count and number == 0 else 0
            except BlockingIOError:
                pass

    def _read(self) -> None:
        while not self._stopped:
            self._drain()
            time.sleep(0.1)

    def rate(self) -> float:
        """Bytes a second of the first one."""
        return self._received / (time.monotonic() - self._since)

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        time.sleep(0.3)
        for item in self._sockets:
            item.close()


def watched(where: Place) -> Callable[[], asyncio.Future[float]]:
    """Return a function that measures the seconds of a scrape while many look."""

    async def measure() -> float:
        with Viewers(where, VIEWERS):
            return (await asyncio.to_thread(bench_fleet_pages.read, where, "/metrics", bench_fleet_pages.GZIP))[0]

    return lambda: asyncio.ensure_future(measure())


_PAN = """() => new Promise((done) => {
  const canvas = document.getElementById("cells");
  const send = (kind, x, y) => canvas.dispatchEvent(
    new PointerEvent(kind, {pointerId: 1, clientX: x, clientY: y, bubbles: true}));
  canvas.setPointerCapture = () => {};
  for (let step = 0; step < 6; step++) canvas.dispatchEvent(
    new WheelEvent("wheel", {deltaY: -60, clientX: 600, clientY: 500, cancelable: true}));
  send("pointerdown", 600, 500);
  const began = performance.now();
  let frames = 0;
  const next = () => {
    const passed = performance.now() - began;
    frames += 1;
    send("pointermove", 600 + 200 * Math.sin(passed / 300), 500 + 100 * Math.cos(passed / 300));
    if (passed < 4000) requestAnimationFrame(next);
    else { send("pointerup", 600, 500); done(frames / passed * 1000); }
  };
  requestAnimationFrame(next);
})"""


def seen(url: str) -> tuple[float, float]:
    """Seconds to the first picture, and frames a second while panning, in Chromium."""
    with sync_playwright() as playwright, launched(playwright) as browser:
        pictures, rate = [], 0.0
        for _ in range(TURNS):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(url)
            pictures.append(first_picture(page))
            rate = float(page.evaluate(_PAN))
            page.close()
        return sorted(pictures)[TURNS // 2], rate


def first_picture(page: Page) -> float:
    """Seconds from the start of the navigation to the first picture of all cells."""
    until(page, "performance.getEntriesByName('first picture').length")
    return float(page.evaluate("performance.getEntriesByName('first picture')[0].startTime")) / 1000


async def serve() -> None:
    """A fleet with its page, that moves on as the controller's does."""
    responsive.keep_responsive()
    cards, spec = Fleet(seed=1), inline.parse(f"h200:{GPUS}", models.load(), field="gpus")
    for number in range(NODES):
        node = cards.place(f"node-{number:04d}", spec)
        if number % 10 == 0:
            pods = (
                (gpu, PodRef(f"train-{number}-{at}", "team", "main", f"u-{number}-{at}"))
                for at, gpu in enumerate(node.ids)
            )
            cards.use(node, {gpu: (User(pod, Range(40, 90), 143155),) for gpu, pod in pods})
    cards.step(1e-3, clock=time.time())
    pages = fleet_pages.FleetPages(
        lambda: cards,
        identity.load("dcgm"),
        namespace="gpu-operator",
        plain=False,
        scraped=lambda _page, _seconds: None,
    )
    facts = ClusterFacts(pool_of=lambda node: f"pool-{int(node[-4:]) // 2000}")
    dashboard = Dashboard(FleetSource(lambda: cards, facts))
    made = server.HttpServer([*pages.routes(), *dashboard.routes()])
    begun = time.monotonic()
    await made.start("127.0.0.1", 0, field="listen")
    print(made.address, flush=True)
    while True:
        await asyncio.sleep(INTERVAL)
        cards.step(time.monotonic() - begun + 1e-3, clock=time.time())


if __name__ == "__main__":
    asyncio.run(serve())
