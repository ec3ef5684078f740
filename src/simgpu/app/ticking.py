"""The ticker of a box: the only clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from simgpu.box import Box


def stale(interval: float) -> float:
    """Seconds after which a page that nobody wrote has lost its writer."""
    return max(10.0, 5 * interval)


async def tick(box: Box, interval: float, ready: Callable[[], None], after: Callable[[], None] | None = None) -> None:
    """Step at regular times; a step that comes late is as long as it was late. `after` is called after each."""
    start = time.monotonic()
    box.step(1e-3, clock=time.time())
    if after is not None:
        after()
    ready()
    loop = asyncio.get_running_loop()
    next_at = loop.time()
    while True:
        next_at = max(next_at + interval, loop.time())
        await asyncio.sleep(next_at - loop.time())
        box.step(time.monotonic() - start + 1e-3, clock=time.time())
        if after is not None:
            after()
