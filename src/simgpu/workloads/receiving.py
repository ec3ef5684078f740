"""Reading a document: one JSON value without a delimiter, bounded in size, time and work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from simgpu import errors

MAX_BYTES = 1 << 20  # of a document
MAX_SILENCE = 0.15  # seconds between two chunks
MAX_SECONDS = 5.0  # for a whole document

_CHUNK = 1 << 16  # bytes
_MAX_WORK = 4  # times the limit may be parsed, to find the end of a document that comes in chunks


Read = Callable[[int], Awaitable[bytes]]  # returns at most so many bytes; none at the end


async def receive(
    read: Read,
    limit: int = MAX_BYTES,
    *,
    working: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Any:
    """Return one JSON value of at most `limit` bytes. `working` is entered to decode it, not to wait for it."""
    buffer, parsed = b"", 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + MAX_SECONDS
    while True:
        try:
            async with asyncio.timeout(min(MAX_SILENCE, deadline - loop.time())):
                chunk = await read(min(_CHUNK, limit + 1 - len(buffer)))
        except TimeoutError:
            raise errors.InputError("workload", "no complete document arrived in time") from None
        if not chunk:
            raise errors.InputError("workload", "the connection closed before a complete document arrived")
        buffer += chunk
        if len(buffer) > limit:
            raise errors.InputError("workload", f"the document is larger than {limit} bytes")
        if len(buffer) == len(chunk) or chunk.rstrip().endswith(b"}"):  # an object cannot end otherwise
            parsed += len(buffer)
            if parsed > _MAX_WORK * limit:
                raise errors.InputError("workload", "the document arrives in too many chunks")
            with contextlib.suppress(Incomplete), working():
                return decode(buffer)


class Incomplete(Exception):
    """The buffer holds the beginning of a JSON value."""


def decode(buffer: bytes) -> Any:
    """Return the JSON value in the buffer; raises `Incomplete`, or `InputError` if it can never become one."""
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
