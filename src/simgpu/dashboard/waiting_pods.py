"""Pending pods, asked for only while somebody looks at pods, and no more often than every two seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from simgpu.dashboard.sources import DashboardSource
from simgpu.kube.errors import KubeError
from simgpu.kube.views import Pod

EVERY_SECONDS = 2.0

_log = logging.getLogger(__name__)


class WaitingPods:
    """The pods that the API server listed last."""

    def __init__(self, source: DashboardSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.latest: Sequence[Pod] = ()
        self._source = source
        self._clock = clock
        self._asked = -EVERY_SECONDS
        self._task: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """Ask in the background, if the last answer is old and no request is in flight."""
        if self._task is None and self._clock() - self._asked >= EVERY_SECONDS:
            self._task = asyncio.get_running_loop().create_task(self._ask())

    async def current(self) -> Sequence[Pod]:
        """Return the pods, after a request if the last answer is old."""
        self.refresh()
        if self._task is not None:
            await asyncio.shield(self._task)
        return self.latest

    async def _ask(self) -> None:
        self._asked = self._clock()
        try:
            self.latest = await self._source.pending()
        except KubeError as error:
            _log.info("pending pods are unknown: %s", error)
        finally:
            self._task = None

    def close(self) -> None:
        """End a request in flight."""
        if self._task is not None:
            self._task.cancel()
