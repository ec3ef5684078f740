"""Gzip, in one piece or as a stream that is compressed in a thread beside the event loop."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_LEVEL = 1
_GZIP_WINDOW = 31  # bits of the window, and 16 for gzip's header

try:
    from isal import igzip, isal_zlib

    def compress(page: bytes) -> bytes:
        """Return a page compressed."""
        return bytes(igzip.compress(page, _LEVEL))

    def _compressor() -> Any:
        return isal_zlib.compressobj(_LEVEL, isal_zlib.DEFLATED, _GZIP_WINDOW)
except ImportError:  # pragma: no cover - the extra is not installed

    def compress(page: bytes) -> bytes:
        """Return a page compressed."""
        return gzip.compress(page, _LEVEL)

    def _compressor() -> Any:
        return zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)


async def compressed(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield a compressed stream: while one piece is compressed in a thread, the next is made."""
    loop, compressor = asyncio.get_running_loop(), _compressor()
    with ThreadPoolExecutor(1) as thread:  # one, so that pieces keep their order
        before: asyncio.Future[bytes] | None = None
        for piece in pieces:
            now = loop.run_in_executor(thread, compressor.compress, piece)
            if before is not None:
                yield await before
            before = now
        if before is not None:
            yield await before
        yield compressor.flush()
