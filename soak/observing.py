"""Watches SimGPU's processes during the whole run: counters, memory, open files, lags.

A counter that falls is remembered as a failure, whoever serves it by then. The exporter keeps no state, so its counters
count for one life of the process.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable
from pathlib import Path

import aiohttp

from soak import pages
from soak.results import Sample
from soak.world import World

_SAMPLE_SECONDS = 1.0
_PAGE_SIZE = 4096
_COUNTED = ("controller", "agent", "exporter")
_TIMEOUT = aiohttp.ClientTimeout(total=20)
_MAX_FALLS = 50
_ENERGY = "ENERGY"  # in the names of counters that grow with time


class Observer:
    """Scrapes and samples until cancelled."""

    def __init__(self, world: World, since: Callable[[], float]) -> None:
        self._world = world
        self._since = since
        self._counters: dict[tuple[str, str, str], float] = {}
        self._places: dict[str, pages.Place] = {}  # of GPUs
        self._may_fall: set[tuple[str, str, str]] = set()
        self._exporter = 0
        self._lags = (0.0, 0.0)  # sum and count
        self.scrapes: collections.Counter[str] = collections.Counter()
        self.grown: set[tuple[str, str, str]] = set()
        self.falls: list[str] = []
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Scrape and sample until cancelled."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                for role in _COUNTED:
                    await self._scrape(session, role)
                await self._sample(session)
                await asyncio.sleep(_SAMPLE_SECONDS)

    def replaced(self, *nodes: str) -> None:
        """Let each counter of these nodes' GPUs fall once: they are those of other GPUs, whenever that is seen."""
        gone = {gpu for gpu, place in self._places.items() if place[0] in nodes}
        self._may_fall |= {key for key in self._counters if key[2] in gone}

    def failed(self, node: str, index: int) -> None:
        """Let counters of a GPU's errors fall once: a controller that ends before it can save them takes them along."""
        gone = {gpu for gpu, place in self._places.items() if place == (node, index)}
        self._may_fall |= {key for key in self._counters if key[2] in gone and _ENERGY not in key[1]}

    async def page(self, session: aiohttp.ClientSession, role: str) -> pages.Page | None:
        """Return the page of a role; None if it does not serve one now."""
        text = await self.text(session, role, "/metrics")
        return await asyncio.to_thread(pages.read, text) if text else None

    async def text(self, session: aiohttp.ClientSession, role: str, path: str) -> str:
        """Return a page's text; empty if the role does not answer."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.get(f"{self._world.url(role)}{path}") as answer:
                return await answer.text() if answer.status == 200 else ""
        return ""

    async def _scrape(self, session: aiohttp.ClientSession, role: str) -> None:
        before = self._world.pids().get(role, 0)
        page = await self.page(session, role)
        if page is None or self._world.pids().get(role, 0) != before:
            return
        if role == "exporter" and before != self._exporter:
            self._exporter = before
            self._counters = {key: value for key, value in self._counters.items() if key[0] != role}
        self.scrapes[role] += 1
        self._places |= page.gpus
        for (family, gpu), value in page.counters.items():
            key = (role, family, gpu)
            last = self._counters.get(key, value)
            if value < last and key in self._may_fall:
                self._may_fall.discard(key)
            elif value < last and len(self.falls) < _MAX_FALLS:
                self.falls.append(f"{self._since():.1f} s: {role} {family} {self._places.get(gpu)}: {last} -> {value}")
            if value > last:
                self.grown.add(key)
            self._counters[key] = value

    async def _sample(self, session: aiohttp.ClientSession) -> None:
        memory, files = {}, {}
        for name, pid in self._world.pids().items():
            with contextlib.suppress(OSError):
                memory[name] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_SIZE / 1024**2
                files[name] = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        own = pages.values(await self.text(session, "controller", "/metrics/controller"))
        total = own.get("simgpu_controller_event_lag_seconds_sum", 0.0)
        count = own.get("simgpu_controller_event_lag_seconds_count", 0.0)
        before, self._lags = self._lags, (total, count)
        recent = count - before[1]
        lag = (total - before[0]) / recent if recent > 0 and total >= before[0] else 0.0
        self.samples.append(
            Sample(
                at=round(self._since(), 1),
                memory={name: round(value, 1) for name, value in memory.items()},
                files=files,
                event_lag=round(max(0.0, lag), 4),
                write_lag=round(own.get("simgpu_controller_write_lag_seconds", 0.0), 4),
                restarts=sum(self._world.restarts.values()),
                faults=sum(self._world.faults.values()),
            )
        )
