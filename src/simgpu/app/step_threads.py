"""Runs independent jobs on all processors that this process may use."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Sequence


class StepThreads:
    """Threads for the steps of large fleets, started when there is more than one job for them."""

    def __init__(self, count: int | None = None) -> None:
        self._count = count or len(os.sched_getaffinity(0))
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def __call__(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Run jobs and wait for all of them."""
        if len(jobs) == 1 or self._count == 1:
            for job in jobs:
                job()
            return
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self._count, thread_name_prefix="step")
        for done in [self._pool.submit(job) for job in jobs]:
            done.result()
