"""File locks between processes: one holder at a time, released by the kernel when the holder ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

_POLL_SECONDS = 0.1


@contextlib.asynccontextmanager
async def exclusive(path: Path, *, waiting: Callable[[], None] | None = None) -> AsyncIterator[None]:
    """Hold an exclusive lock on `path`. `waiting` is called once if another process holds it.

    The holder may delete the file: waiters then lock the new one.
    """
    reported = False
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the holder has just deleted the folder
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waiting is not None and not reported:
                    waiting()
                    reported = True
                await asyncio.sleep(_POLL_SECONDS)
                continue
            if _is_still(path, descriptor):
                yield
                return
        finally:
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
