"""Pending pods, asked for only while somebody looks at pods, and no more often than every two seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from simgpu.dashboard.sources import DashboardSource
from simgpu.kube.errors import KubeError
from simgpu.kube.views import Pod

EVERY_SECONDS = 2.0
WAIT_SECONDS = 2.0  # that an answer of ours waits for the API server: pods that have GPUs are known without it
KEPT_SECONDS = 30.0  # after which pods of the last answer may long have GPUs, or be gone

_log = logging.getLogger(__name__)


class WaitingPods:
    """The pods that the API server listed last; none once the last answer is too old to be true."""

    def __init__(self, source: DashboardSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._latest: Sequence[Pod] = ()
        self._answered = 0.0
        self._asked = -EVERY_SECONDS
        self._task: asyncio.Task[None] | None = None

    @property
    def latest(self) -> Sequence[Pod]:
        """The pods of the last answer."""
        return self._latest if self._clock() - self._answered < KEPT_SECONDS else ()

    def refresh(self) -> None:
        """Ask in the background, if the last answer is old and no request is in flight."""
        if self._task is None and self._clock() - self._asked >= EVERY_SECONDS:
            self._task = asyncio.get_running_loop().create_task(self._ask())

    async def current(self, *, wait_seconds: float = WAIT_SECONDS) -> Sequence[Pod]:
        """Return the pods, after a request if the last answer is old; the last ones if that takes too long."""
        self.refresh()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await asyncio.shield(self._task)
        return self.latest

    async def _ask(self) -> None:
        self._asked = self._clock()
        try:
            self._latest = await self._source.pending()
            self._answered = self._clock()
        except KubeError as error:
            _log.info("pending pods are unknown: %s", error)
        finally:
            self._task = None

    def close(self) -> None:
        """End a request in flight."""
        if self._task is not None:
            self._task.cancel()
