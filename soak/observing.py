"""Watches SimGPU's processes during the whole run: counters, memory, open files, lags."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable
from pathlib import Path

import aiohttp

from soak import fleet, pages, plan
from soak.counters import Counters
from soak.results import Sample
from soak.world import World

_SAMPLE_SECONDS = 1.0
_PAGE_SIZE = 4096
_TIMEOUT = aiohttp.ClientTimeout(total=20)


class Observer:
    """Scrapes and samples until cancelled."""

    def __init__(self, world: World, since: Callable[[], float]) -> None:
        self._world = world
        self._since = since
        self._reading = asyncio.Lock()  # pages are compared in the order in which they were served
        self._lags = (0.0, 0.0)  # sum and count
        self.scrapes: collections.Counter[str] = collections.Counter()
        self.counters = Counters()
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Scrape and sample until cancelled."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while True:
                for role in plan.OURS:
                    await self._scrape(session, role)
                await self.sample(session)
                await asyncio.sleep(_SAMPLE_SECONDS)

    async def settle(self, session: aiohttp.ClientSession) -> list[str]:
        """Read the counters at rest: after that, none may fall for what was replaced before.

        Return the roles that do not serve them.
        """
        silent = []
        for role in plan.OURS:
            if await self._scrape(session, role):
                self.counters.settled(role)
            else:
                silent.append(role)
        return silent

    async def page(self, session: aiohttp.ClientSession, role: str) -> pages.Page | None:
        """Return the page of a role; None if it does not serve one now."""
        text = await self.text(session, role, "/metrics")
        return await asyncio.to_thread(pages.read, text, node=fleet.AGENTS.get(role, "")) if text else None

    async def nodes(self, session: aiohttp.ClientSession) -> pages.Page | None:
        """Return the pages of all nodes as one; None if a role does not serve one now."""
        found = [await self.page(session, role) for role in ("controller", *fleet.AGENTS)]
        served = [page for page in found if page is not None]
        return pages.together(served) if len(served) == len(found) else None

    async def text(self, session: aiohttp.ClientSession, role: str, path: str) -> str:
        """Return a page's text; empty if the role does not answer."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with session.get(f"{self._world.url(role)}{path}") as answer:
                return await answer.text() if answer.status == 200 else ""
        return ""

    async def _scrape(self, session: aiohttp.ClientSession, role: str) -> bool:
        """Read the counters of a role; return whether it served them."""
        async with self._reading:
            before = self._world.pids().get(role, 0)
            page = await self.page(session, role)
            if page is None or self._world.pids().get(role, 0) != before:
                return False
            self.scrapes[role] += 1
            self.counters.add(role, page, pid=before, at=self._since())
            return True

    async def _scrape_own(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Read the controller's series of itself, and compare its counters."""
        async with self._reading:
            before = self._world.pids().get("controller", 0)
            own = pages.values(await self.text(session, "controller", "/metrics/controller"))
            if own and self._world.pids().get("controller", 0) == before:
                self.counters.add_own(own, pid=before, at=self._since())
            return own

    async def sample(self, session: aiohttp.ClientSession) -> Sample:
        """Take a sample now."""
        memory, files, pids = {}, {}, self._world.pids()
        for name, pid in pids.items():
            with contextlib.suppress(OSError):
                used = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_SIZE / 1024**2
                files[name] = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
                memory[name] = used
        own = await self._scrape_own(session)
        total = own.get("simgpu_controller_event_lag_seconds_sum", 0.0)
        count = own.get("simgpu_controller_event_lag_seconds_count", 0.0)
        before, self._lags = self._lags, (total, count)
        recent = count - before[1]
        lag = (total - before[0]) / recent if recent > 0 and total >= before[0] else 0.0
        sample = Sample(
            at=round(self._since(), 1),
            pids={name: pids[name] for name in memory},
            memory={name: round(value, 1) for name, value in memory.items()},
            files=files,
            event_lag=round(max(0.0, lag), 4),
            write_lag=round(own.get("simgpu_controller_write_lag_seconds", 0.0), 4),
            restarts=sum(self._world.restarts.values()),
            faults=sum(self._world.faults.values()),
        )
        self.samples.append(sample)
        return sample
