"""Reads the API of a controller, exporter or agent: by its URL, or through the API server of its cluster."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import NamedTuple, Protocol, TypeVar

import aiohttp
import msgspec

from simgpu import errors
from simgpu.kube import errors as kube_errors
from simgpu.kube.client import Client
from simgpu.vocabulary import MAX_API_ITEMS

API = "/api/v1"
MAX_BYTES = 64 << 20
SILENCE_SECONDS = 12.0  # the stream has a ping every few seconds
_CONNECT_SECONDS = 5.0

T = TypeVar("T")


class FeedError(errors.SimgpuError):
    """The fleet cannot be read."""


class NotServed(FeedError):
    """Somebody answers, but not this."""


class NothingYet(FeedError):
    """It has nothing to show: it starts, or another one leads."""


class StreamEvent(NamedTuple):
    """A server-sent event."""

    name: str
    data: bytes


class Feed(Protocol):
    """Where a fleet is read from; `label` names it to people."""

    label: str

    async def get(self, path: str) -> bytes:
        """Return the answer to a path below the API; raises `FeedError`."""

    def stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a stream; raises `FeedError` when it breaks, or is silent for too long."""


class UrlFeed:
    """A server by its URL."""

    def __init__(self, url: str) -> None:
        self.label = url
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[UrlFeed]:
        """Open connections, and close them at the end."""
        connect = aiohttp.ClientTimeout(total=30.0, sock_connect=_CONNECT_SECONDS)
        async with aiohttp.ClientSession(timeout=connect, cookie_jar=aiohttp.DummyCookieJar()) as self._session:
            yield self

    async def get(self, path: str) -> bytes:
        """Return the answer to a path."""
        assert self._session is not None  # noqa: S101 - it is used inside `open`
        with self._failures():
            async with self._session.get(f"{self.label}{API}{path}") as response:
                body = await _bounded(response, self.label)
                self._check(response, body)
                return body

    async def stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a stream."""
        assert self._session is not None  # noqa: S101
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        with self._failures():
            async with self._session.get(f"{self.label}{API}{path}", timeout=timeout) as response:
                if response.status != 200:
                    self._check(response, await _bounded(response, self.label))
                async for piece in response.content.iter_any():
                    yield piece
        raise FeedError(f"{self.label}: the stream ended")

    def _check(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        if response.status != 200:
            raise _refused(self.label, response.status, body)
        if "json" not in response.content_type and "event-stream" not in response.content_type:
            raise NotServed(f"{self.label}: not SimGPU's: it answers with {response.content_type}")

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn anything the HTTP library raises into a FeedError: it raises more than its own errors."""
        try:
            yield
        except errors.SimgpuError:
            raise
        except Exception as error:
            reason = errors.printable(str(error)) or type(error).__name__
            raise FeedError(f"{self.label}: {errors.clipped(reason)}") from error


class ProxyFeed:
    """A server in a cluster, through the API server's proxy to its Service."""

    def __init__(self, client: Client, service: str, *, label: str) -> None:
        self.label = label
        self._client, self._path = client, f"{service}/proxy{API}"

    async def get(self, path: str) -> bytes:
        """Return the answer to a path."""
        with self._failures():
            return await self._client.raw(f"{self._path}{path}")

    async def stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a stream."""
        with self._failures():
            async with contextlib.aclosing(
                self._client.raw_stream(f"{self._path}{path}", silence_seconds=SILENCE_SECONDS)
            ) as pieces:
                async for piece in pieces:
                    yield piece
        raise FeedError(f"{self.label}: the stream ended")

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except kube_errors.NotFound as error:
            raise NotServed(f"{self.label}: {error}; is its dashboard enabled?") from None
        except kube_errors.KubeError as error:
            starts = isinstance(error, kube_errors.ApiError) and error.code == 503  # also while no pod is ready
            raise (NothingYet if starts else FeedError)(f"{self.label}: {error}") from None


def base_of(url: str, *, field: str) -> str:
    """Return the address of a server from any of its URLs, such as that of its metrics."""
    try:
        parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    except ValueError as error:
        raise errors.InputError(field, f"{url!r}: {error}") from None
    try:
        port = parts.port
    except ValueError:
        raise errors.InputError(field, f"{url!r}: the port must be a number up to 65535") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise errors.InputError(field, f"{url!r}: must be http://HOST:PORT or https://HOST:PORT")
    path = parts.path.split("/metrics")[0].split(API)[0].rstrip("/")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{path}"


async def read(feed: Feed, path: str, kind: type[T]) -> T:
    """Return an answer as a struct."""
    body = await feed.get(path)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotServed(f"{feed.label}: not an answer of SimGPU: {error}") from None


async def read_all(feed: Feed, path: str, kind: type[T], *, most: int) -> list[T]:
    """Return the parts of a list, until there are no more or `most` items are read."""
    found: list[T] = []
    for offset in range(0, most, MAX_API_ITEMS):
        mark = "&" if "?" in path else "?"
        part = await read(feed, f"{path}{mark}limit={MAX_API_ITEMS}&offset={offset}", kind)
        found.append(part)
        if offset + MAX_API_ITEMS >= part.total:  # type: ignore[attr-defined]
            break
    return found


async def events(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a stream; raises `FeedError` for one that is too large."""
    rest = b""
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            rest += piece
            *whole, rest = rest.split(b"\n\n")
            if len(rest) > MAX_BYTES:
                raise FeedError("an event of the stream is too large")
            for block in whole:
                fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
                yield StreamEvent(fields.get(b"event", b"message").decode(errors="replace"), fields.get(b"data", b""))


async def _bounded(response: aiohttp.ClientResponse, label: str) -> bytes:
    body = bytearray()
    async with asyncio.timeout(30.0):
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > MAX_BYTES:
                raise FeedError(f"{label}: an answer of more than {MAX_BYTES >> 20} MiB")
    return bytes(body)


class _Refusal(msgspec.Struct):
    error: str = ""


def _refused(label: str, status: int, body: bytes) -> FeedError:
    try:
        reason = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        reason = ""
    if status == 404:
        hint = "its dashboard is off (--dashboard enables it), or this is not SimGPU"
        return NotServed(f"{label}: no API here: {hint}" + (f" ({errors.clipped(reason)})" if reason else ""))
    kind = NothingYet if status == 503 else FeedError
    return kind(f"{label}: {errors.clipped(reason) or f'HTTP {status}'}")
