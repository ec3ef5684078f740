"""Downloads files over HTTP: resumed, retried, and limited in size, time and redirects.

The one module of this package that uses HTTP itself; API servers are reached through `simgpu.kube`. Callers verify
checksums.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

import aiohttp
import msgspec

from simgpu import errors, units
from simgpu.kube import wire

T = TypeVar("T")
Follow = Callable[[int, int | None], None]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_CHUNK_BYTES = 1024**2


class FetchError(errors.SimgpuError):
    """A file could not be downloaded; the message holds its URL and the reason."""


class _Transient(Exception):
    """A failure that may be transient."""


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts, attempts and maximum sizes of downloads."""

    answer_seconds: float = 5.0  # for the first response of a host, redirects included
    connect_seconds: float = 5.0  # for a connection
    stall_seconds: float = 30.0  # without a byte
    attempts: int = 4  # per file
    pause_seconds: float = 0.5  # after the first failure; doubles
    redirects: int = 5  # per request
    file_bytes: int = 512 * 1024**2  # of a release file, and unpacked from it
    text_bytes: int = 4 * 1024**2  # of a checksum file
    at_once: int = 4  # concurrent downloads


class Partial:
    """A partly downloaded file, and the version of the file that it is of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._version = path.with_name(f"{path.name}.version")

    def size(self) -> int:
        """Return the bytes downloaded so far."""
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str:
        """Return the ETag or date of this version; empty if the server gave none."""
        found = self._version.read_text(errors="replace") if self._version.exists() else ""
        return found if found.isascii() and found.isprintable() else ""  # it becomes a header

    def restart(self, version: str) -> None:
        """Start over with a version of the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        self._version.write_text(version)

    def discard(self) -> None:
        """Delete the partial file."""
        self.path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)


class Fetcher:
    """Downloads files with one connection pool, through the proxies of the environment."""

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self._limits.connect_seconds, sock_read=self._limits.stall_seconds
        )
        self._session = aiohttp.ClientSession(
            trust_env=True,
            timeout=timeout,
            auto_decompress=False,  # checksums are of the bytes as they are published
            headers={"Accept-Encoding": "identity", "User-Agent": "simgpu"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def problem(self, url: str) -> str | None:
        """Return why a host does not respond; None if it responds, with any status."""
        seconds = self._limits.answer_seconds
        try:
            async with asyncio.timeout(seconds), self._open(url, method="HEAD"):
                return None
        except FetchError:
            return None
        except TimeoutError:
            return f"no response within {seconds:g} s"
        except (aiohttp.ClientError, _Transient) as error:
            return _explain(error)

    async def read(self, url: str) -> bytes:
        """Return the content of a small file."""
        return await self._retry(url, lambda: self._read(url))

    async def save(self, url: str, partial: Partial, follow: Follow) -> bool:
        """Download a file, resuming a partial one. Return whether it was resumed.

        `follow` is called with the bytes downloaded so far, and with the total if it is known.
        """
        return await self._retry(url, lambda: self._save(url, partial, follow))

    async def _retry(self, url: str, attempt: Callable[[], Awaitable[T]]) -> T:
        why = ""
        for number in range(self._limits.attempts):
            if number:
                await asyncio.sleep(self._limits.pause_seconds * 2 ** (number - 1))
            try:
                return await attempt()
            except (aiohttp.ClientError, TimeoutError, _Transient) as error:
                why = _explain(error)
        raise FetchError(f"{shown(url)}: {why}, after {self._limits.attempts} attempts")

    async def _read(self, url: str) -> bytes:
        content = bytearray()
        async with self._open(url) as response:
            _check(response, url)
            async for chunk in self._chunks(response):
                content += chunk
                _check_size(len(content), self._limits.text_bytes, url)
        return bytes(content)

    async def _save(self, url: str, partial: Partial, follow: Follow) -> bool:
        held = partial.size()
        headers = {"Range": f"bytes={held}-"} if held else {}
        if held and partial.version():
            headers["If-Range"] = partial.version()
        async with self._open(url, headers=headers) as response:
            if response.status == 416:
                if response.headers.get("Content-Range") == f"bytes */{held}":
                    return True
                partial.discard()
                raise _Transient(f"HTTP 416 from byte {held} on")
            _check(response, url)
            if response.status != 206 or not held:
                partial.restart(_version(response))
                held = 0
            resumed = held > 0
            total = None if response.content_length is None else held + response.content_length
            try:
                _check_size(total or 0, self._limits.file_bytes, url)
                with partial.path.open("ab") as file:
                    async for chunk in self._chunks(response):
                        held += len(chunk)
                        _check_size(held, self._limits.file_bytes, url)
                        file.write(chunk)
                        file.flush()  # so that it can be resumed if this process is killed
                        follow(held, total)
            except FetchError:
                partial.discard()
                raise
        return resumed

    @contextlib.asynccontextmanager
    async def _open(
        self, url: str, *, method: str = "GET", headers: dict[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        place = url
        for _ in range(self._limits.redirects + 1):
            async with contextlib.AsyncExitStack() as stack:
                with _broken_connection():
                    request = self._session.request(method, place, headers=headers, allow_redirects=False)
                    response = await stack.enter_async_context(request)
                if response.status not in _REDIRECTS:
                    with wire.ends_with_connection(response):
                        yield response
                    return
                place = _redirected(place, response.headers.get("Location", ""))
        raise FetchError(f"{shown(url)}: more than {self._limits.redirects} redirects")

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        while True:
            with _broken_connection():
                async with asyncio.timeout(self._limits.stall_seconds):
                    chunk = await response.content.read(_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


@contextlib.contextmanager
def _broken_connection() -> Iterator[None]:
    """Turn what the HTTP library raises besides its own errors, for malformed responses, into a transient failure."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError):
        raise
    except Exception as error:
        raise _Transient(str(error) or type(error).__name__) from error


def shown(url: str) -> str:
    """Return a URL for messages: without credentials and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _redirected(place: str, location: str) -> str:
    """Return the URL of a redirect; from https only to https."""
    allowed = {"http", "https"} if place.startswith("http:") else {"https"}
    try:
        target = urllib.parse.urljoin(place, location)
        if location and urllib.parse.urlsplit(target).scheme in allowed:
            return target
    except ValueError:
        target = location
    raise FetchError(f"{shown(place)}: redirected to {target.partition('?')[0]!r}, which is not an https URL")


def _check(response: aiohttp.ClientResponse, url: str) -> None:
    if response.status in {200, 206}:
        return
    answer = errors.printable(f"HTTP {response.status} {response.reason or ''}".rstrip())
    if response.status in _TRANSIENT:
        raise _Transient(answer)
    raise FetchError(f"{shown(url)}: {answer}")


def _check_size(size: int, max_bytes: int, url: str) -> None:
    if size > max_bytes:
        raise FetchError(f"{shown(url)}: larger than {units.format_bytes(max_bytes)}, the maximum")


def _version(response: aiohttp.ClientResponse) -> str:
    """Return the value for If-Range: the ETag unless it is weak, else the date."""
    tag = response.headers.get("ETag", "")
    version = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
    return version if version.isascii() and version.isprintable() else ""


def _explain(error: Exception) -> str:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "connecting timed out"
    if isinstance(error, TimeoutError):
        return "the server stopped sending"
    if isinstance(error, aiohttp.ClientSSLError):
        reason = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
        return f"no secure connection: {reason} (certificates of your own: SSL_CERT_FILE)"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0  # negative where a name was not found
        return os.strerror(number) if number > 0 else error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the connection was closed"
    return errors.printable(str(error)) or type(error).__name__
