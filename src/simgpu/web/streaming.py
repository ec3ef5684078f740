"""Large pages, made in threads beside the event loop, a few pieces ahead of their reader.

One thread renders, for Python runs in one thread at a time anyway; others compress, which needs no interpreter. Pieces
that were the same twice are kept compressed: many families of a fleet change rarely.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import threading
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator
from concurrent import futures
from typing import TypeVar

from aiohttp import web

from simgpu.identities.render import Piece
from simgpu.web import compressing

T = TypeVar("T")

_AHEAD = 3  # pieces that are made and not yet sent, of about 2 MB each
_SMALL = 256 << 10  # bytes up to which small pieces are joined
_MAX_KEPT = 32 << 20  # bytes of compressed pieces


class Threads:
    """The threads that make a server's large pages; they start when they are needed."""

    def __init__(self) -> None:
        self.rendering = futures.ThreadPoolExecutor(1, "render")
        self.compressing = futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1), "compress")

    def close(self) -> None:
        """End the threads after the pieces that they are at."""
        self.rendering.shutdown(wait=False, cancel_futures=True)
        self.compressing.shutdown(wait=False, cancel_futures=True)


THREADS = web.AppKey("threads", Threads)


class Kept:
    """Compressed pieces of a page, each with the state that it shows, within a limit of bytes."""

    def __init__(self, limit: int = _MAX_KEPT) -> None:
        self.size = 0
        self._limit = limit
        self._lock = threading.Lock()
        self._states: dict[Hashable, Hashable] = {}
        self._parts: dict[Hashable, compressing.Deflated] = {}

    def find(self, piece: Piece) -> tuple[compressing.Deflated | None, bool]:
        """Return a piece compressed, if it is kept, and whether its state is that of the last page."""
        with self._lock:
            if self._states.get(piece.key) == piece.state:
                return self._parts.get(piece.key), True
            self._states[piece.key] = piece.state
            if (old := self._parts.pop(piece.key, None)) is not None:
                self.size -= len(old.blocks)
            return None, False

    def add(self, piece: Piece, part: compressing.Deflated) -> None:
        """Keep a piece, unless there is no room or a later page shows another state already."""
        with self._lock:
            room = self.size + len(part.blocks) <= self._limit
            if room and piece.key not in self._parts and self._states.get(piece.key) == piece.state:
                self._parts[piece.key] = part
                self.size += len(part.blocks)


async def plain(threads: Threads, pieces: Iterator[Piece]) -> AsyncGenerator[bytes, None]:
    """Yield a page."""
    batches = _batched(pieces)

    def make() -> futures.Future[bytes] | None:
        piece = next(batches, None)
        return None if piece is None else _done(piece.make())

    async with contextlib.aclosing(_in_order(threads, make)) as texts:
        async for text in texts:
            yield text


async def compressed(threads: Threads, pieces: Iterator[Piece], kept: Kept) -> AsyncGenerator[bytes, None]:
    """Yield a page as gzip."""
    batches = _batched(pieces)

    def make() -> futures.Future[compressing.Deflated] | None:
        piece = next(batches, None)
        if piece is None:
            return None
        part, again = kept.find(piece) if piece.key is not None else (None, False)
        if part is not None:
            return _done(part)
        made = threads.compressing.submit(compressing.part, piece.make())
        if again:
            made.add_done_callback(functools.partial(_keep, kept, piece))
        return made

    trailer = compressing.Trailer()
    yield compressing.HEADER
    async with contextlib.aclosing(_in_order(threads, make)) as parts:
        async for part in parts:
            trailer.add(part)
            yield part.blocks
    yield trailer.end()


async def _in_order(threads: Threads, make: Callable[[], futures.Future[T] | None]) -> AsyncGenerator[T, None]:
    """Yield what futures from the thread that renders lead to, until it makes none."""
    loop = asyncio.get_running_loop()
    rendering: asyncio.Future[futures.Future[T] | None] | None = loop.run_in_executor(threads.rendering, make)
    ahead: collections.deque[asyncio.Future[T]] = collections.deque()
    try:
        while rendering is not None or ahead:
            if rendering is not None and len(ahead) < _AHEAD:
                made = await rendering
                rendering = None
                if made is not None:
                    ahead.append(asyncio.wrap_future(made))
                    rendering = loop.run_in_executor(threads.rendering, make)
            else:
                yield await ahead.popleft()
    finally:
        for future in ahead:
            future.cancel()
        if rendering is not None:
            rendering.cancel()


def _batched(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces that have a key as they are, and others joined."""
    texts: list[bytes] = []
    for piece in pieces:
        if piece.key is None:
            texts.append(piece.make())
        if texts and (piece.key is not None or sum(map(len, texts)) >= _SMALL):
            yield _text(texts)
            texts = []
        if piece.key is not None:
            yield piece
    if texts:
        yield _text(texts)


def _text(texts: list[bytes]) -> Piece:
    text = b"".join(texts)
    return Piece(lambda: text)


def _done(result: T) -> futures.Future[T]:
    found: futures.Future[T] = futures.Future()
    found.set_result(result)
    return found


def _keep(kept: Kept, piece: Piece, made: futures.Future[compressing.Deflated]) -> None:
    if not made.cancelled() and made.exception() is None:
        kept.add(piece, made.result())
