"""Lets disturbances run at the same time, and stops all of them for a check."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Gate:
    """Many may be inside at once, unless it is closed: then nobody is."""

    def __init__(self) -> None:
        self._inside = 0
        self._closed = False
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        """Wait until the gate is open, and keep it from closing meanwhile."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Let nobody in, and wait until all are out; only one at a time can close it."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            try:
                await self._changed.wait_for(lambda: not self._inside)
            except BaseException:
                self._closed = False
                raise
        try:
            yield
        finally:
            async with self._changed:
                self._closed = False
                self._changed.notify_all()
