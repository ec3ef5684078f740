"""The ticker of a box: the only clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from simgpu.box import Box


def stale(interval: float) -> float:
    """Seconds after which a page that nobody wrote has lost its writer."""
    return max(10.0, 5 * interval)


def go_ahead(box: Box, seconds: float) -> None:
    """Let that much time have passed before anybody looks, in steps as fine as those of a box that is watched."""
    for step in range(1, round(seconds * 10) + 1):
        box.step(step / 10, clock=time.time() - seconds + step / 10)


async def tick(
    box: Box,
    interval: float,
    ready: Callable[[], None],
    after: Callable[[], None] | None = None,
    *,
    since: float = 0.0,
) -> None:
    """Step at regular times; a step that comes late is as long as it was late. `after` is called after each.

    `since` is how long the box has been there already.
    """
    start = time.monotonic() - since
    box.step(since + 1e-3, clock=time.time())
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
