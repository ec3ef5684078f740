"""The clocks of this machine."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """The `Clock` of the real time."""

    def steady(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Suspend the task for these seconds."""
        await asyncio.sleep(seconds)
