"""Reading a document: one JSON value whose end is the end of the message, bounded in size, time and work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Protocol

from simgpu import errors

LARGEST = 1 << 20
SILENCE = 0.15
SLOWEST = 5.0

_PIECE = 1 << 16
_MOST_WORK = 4  # times the largest document that may be looked at, to find the end of one that comes in pieces


class Reader(Protocol):
    """Where bytes come from."""

    async def read(self, n: int, /) -> bytes:
        """So many at most; none at the end."""


async def receive(
    reader: Reader,
    largest: int = LARGEST,
    *,
    working: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Any:
    """One JSON value of so many bytes at most. `working` is entered while it is decoded, not while it is awaited."""
    buffer, looked_at = b"", 0
    loop = asyncio.get_running_loop()
    latest = loop.time() + SLOWEST
    while True:
        try:
            async with asyncio.timeout(min(SILENCE, latest - loop.time())):
                piece = await reader.read(min(_PIECE, largest + 1 - len(buffer)))
        except TimeoutError:
            raise errors.InputError("workload", "no whole document came in time") from None
        if not piece:
            raise errors.InputError("workload", "the connection closed before a whole document came")
        buffer += piece
        if len(buffer) > largest:
            raise errors.InputError("workload", f"the document is larger than {largest} bytes")
        if len(buffer) == len(piece) or piece.rstrip().endswith(b"}"):  # an object cannot end otherwise
            looked_at += len(buffer)
            if looked_at > _MOST_WORK * largest:
                raise errors.InputError("workload", "the document comes in too many pieces")
            with contextlib.suppress(Incomplete), working():
                return decode(buffer)


class Incomplete(Exception):
    """More has to come."""


def decode(buffer: bytes) -> Any:
    """The JSON value in the buffer. What can never become one is an error."""
    try:
        text = buffer.decode()
    except UnicodeDecodeError as error:
        if error.end == len(buffer) and len(buffer) - error.start < 4:
            raise Incomplete from None
        raise errors.InputError("workload", "not JSON: not UTF-8") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise errors.InputError("workload", "not JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
            if "\0" in text:
                raise errors.InputError("workload", "not JSON: NUL bytes") from None
            raise Incomplete from None
        raise errors.InputError("workload", f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise errors.InputError("workload", f"not JSON: {error}") from None
