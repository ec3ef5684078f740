"""Requests that are repeated while the API server is away, or not able to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from simgpu.kube import errors

T = TypeVar("T")
_PAUSE_SECONDS = 0.2
_NEVER = (errors.BadRequest, errors.Forbidden, errors.MethodNotAllowed, errors.Unsupported, errors.Invalid)


async def insist(call: Callable[[], Awaitable[T]]) -> T | None:
    """Repeat a request until it is answered; None for what exists already, or no longer. A wrong one raises."""
    while True:
        try:
            return await call()
        except (errors.AlreadyExists, errors.NotFound):
            return None
        except _NEVER:
            raise
        except errors.KubeError:
            await asyncio.sleep(_PAUSE_SECONDS)
