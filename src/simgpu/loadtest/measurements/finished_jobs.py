"""WaitForFinishedJobs: waits until all jobs that were seen have ended, also those that were removed after that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from simgpu.kube import resources
from simgpu.kube.store import Change, Store
from simgpu.loadtest import watched
from simgpu.loadtest.measurements import bench
from simgpu.loadtest.measurements.bench import Bench, Measured, MeasurementError
from simgpu.loadtest.scenario import durations, fields
from simgpu.loadtest.watched import Selection, WatchedController

NAME = "WaitForFinishedJobs"
PARAMETERS = {"action": fields.choice("start", "gather"), **bench.SELECTORS, "timeout": durations.parse}
_DEFAULT_SECONDS = 600.0
_MAX_NAMES = 10
_JOBS = watched.controllers(resources.JOBS)


class WaitForFinishedJobs:
    """Keeps the names of jobs that have not ended."""

    def __init__(self, run: Bench) -> None:
        self._bench = run
        self._store: Store[WatchedController] | None = None
        self._selection = Selection()
        self._open: set[str] = set()
        self._seen = 0
        self._changed = asyncio.Event()

    async def execute(self, identifier: str, params: Mapping[str, Any]) -> Measured:
        """Start, or gather."""
        if params["action"] == "start":
            if self._store is None:
                self._selection = self._bench.selection(params)
                self._store = await self._bench.follow(_JOBS, self._selection, self._job)
            return Measured()
        if self._store is None:
            raise MeasurementError(f"{identifier}: gather without start")
        await self._gather(identifier, bench.duration(params, "timeout", _DEFAULT_SECONDS))
        return Measured()

    def _job(self, change: Change[WatchedController]) -> None:
        if change.old is None:
            self._seen += 1
            self._open.add(change.key)
        # A job that is gone has ended or was deleted: it is not waited for.
        if change.new is None or change.new.finished:
            self._open.discard(change.key)
        self._changed.set()

    async def _gather(self, identifier: str, seconds: float) -> None:
        assert self._store is not None  # noqa: S101 - gather is after start
        deadline = time.monotonic() + seconds
        listed = await self._bench.list(_JOBS, self._selection)
        missing = set(listed) - set(self._store.keys())
        if not self._seen and not listed:
            raise MeasurementError(f"{identifier}: no job of the selection was seen")
        while self._open or missing:
            self._changed.clear()
            left = deadline - time.monotonic()
            if left <= 0:
                names = ", ".join(sorted(self._open | missing)[:_MAX_NAMES])
                raise MeasurementError(f"{identifier}: {len(self._open | missing)} jobs did not end: {names}")
            self._bench.progress.update(identifier, f"{self._seen - len(self._open)} of {self._seen} jobs have ended")
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await self._changed.wait()
            except TimeoutError:
                pass
            missing -= set(self._store.keys())
        self._bench.progress.done(identifier, f"{self._seen} jobs have ended")
