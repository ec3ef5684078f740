"""HTTP to one API server: one connection pool, credentials, retries, and response bodies as bytes.

A request is retried when that is safe: always after 429, after a failure with `Retry-After`, or if the server cannot
have received it or was only starting; after other 5xx and broken connections only if the request is idempotent.

The HTTP library's own timeouts are not relied on: every wait has a timeout here, every response a size limit, and
anything the library raises becomes a ConnectError.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from simgpu.errors import printable
from simgpu.kube import auth, errors
from simgpu.kube.backoff import Backoff
from simgpu.kube.kubeconfig import ClientConfig

JSON = "application/json"
MAX_REQUESTS = 64  # at a time; watches do not count, they stay open

_READ_BUFFER = 1024 * 1024
GATHER_SECONDS = 0.1  # between reads of a watch: what comes first is read at once
_BUSY = 32 * 1024  # bytes that gathered: a longer pause would fill the socket's buffer and hold up the server
_BUSY_GATHER_SECONDS = 0.005
_LARGE = 256 * 1024
_LARGE_GATHER_SECONDS = 0.0005

Params = dict[str, str]


class Retries(msgspec.Struct, frozen=True):
    """How often transient failures are retried, and how long to wait between attempts."""

    attempts: int = 6
    backoff: Backoff = Backoff(first_seconds=0.1, max_seconds=10.0)

    def pause(self, failures: int, retry_after: float | None) -> float:
        """Return seconds to wait before the next attempt: the server's Retry-After, or the back-off."""
        if retry_after is not None:
            return min(retry_after, self.backoff.max_seconds) * random.uniform(1.0, 1.2)
        return self.backoff.pause(failures)


class Sizes(msgspec.Struct, frozen=True):
    """Maximum sizes of response bodies, in bytes.

    Lists are read in pages, but whole if a page token expires: 50,000 nodes or pods of 10 KiB each fit.
    """

    item: int = 32 << 20  # etcd stores no object beyond a few MiB
    listing: int = 512 << 20
    error: int = 64 << 10  # a longer one is truncated


class Call(NamedTuple):
    """A request. `counted` is the verb and resource for the counters; `listing`: the response is a list."""

    method: str
    path: str
    counted: tuple[str, str]
    params: Params | None = None
    data: bytes | None = None
    content_type: str = JSON
    repeatable: bool = True
    listing: bool = False


class Wire:
    """The connections to one API server."""

    def __init__(self, config: ClientConfig, *, retries: Retries, sizes: Sizes, timeout_seconds: float) -> None:
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self._config = config
        self._credentials = auth.Credentials(config)
        self._retries = retries
        self._sizes = sizes
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=10)
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Open the connection pool."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
            headers={"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": "simgpu"},
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: Call) -> bytes:
        """Send a request with retries. Return the response body, or raise an exception from `errors`."""
        for attempt in range(self._retries.attempts):
            self.requests[call.counted] += 1
            try:
                async with self._slots:
                    return await self._once(call)
            except (errors.ApiError, errors.ConnectError) as error:
                if attempt + 1 == self._retries.attempts or not _may_repeat(error, call):
                    raise
                await asyncio.sleep(self._retries.pause(attempt, getattr(error, "retry_after", None)))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _once(self, call: Call) -> bytes:
        grant = await self._credentials.current()
        status, answer, headers = await self._exchange(call, grant)
        if status == 401 and self._credentials.rejected(grant):
            status, answer, headers = await self._exchange(call, await self._credentials.current())
        if status >= 400:
            raise errors.from_response(status, answer, _retry_after(headers))
        return answer

    async def _exchange(self, call: Call, grant: auth.Grant) -> tuple[int, bytes, Mapping[str, str]]:
        request = self._request(call, grant, self._timeout)
        with lost_connection(self._config.server):
            async with asyncio.timeout(self._timeout.total), request as response:
                with ends_with_connection(response):
                    return response.status, await self._body(response, call), response.headers

    async def stream(
        self, call: Call, *, silence_seconds: float, gather_seconds: float = GATHER_SECONDS
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a streaming response, as they gather in the time between reads.

        Silence longer than `silence_seconds` is a ConnectError.
        """
        self.requests[call.counted] += 1
        grant = await self._credentials.current()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_seconds)
        request = self._request(call, grant, timeout)
        with lost_connection(self._config.server):
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(silence_seconds):
                    response = await stack.enter_async_context(request)
                    stack.enter_context(ends_with_connection(response))
                    if response.status >= 400:
                        if response.status == 401:
                            self._credentials.rejected(grant)
                        answer = await self._body(response, call)
                        raise errors.from_response(response.status, answer, _retry_after(response.headers))
                while chunk := await _chunk(response, silence_seconds):
                    yield chunk
                    busy = len(chunk) >= _BUSY
                    await _gather(response, min(gather_seconds, _BUSY_GATHER_SECONDS) if busy else gather_seconds)

    async def _body(self, response: aiohttp.ClientResponse, call: Call) -> bytes:
        """Return a response body within its size limit; the body of a failure is truncated."""
        if response.status >= 400:
            return (await _read(response, self._sizes.error))[: self._sizes.error]
        max_bytes = self._sizes.listing if call.listing else self._sizes.item
        body = await _read(response, max_bytes)
        if len(body) > max_bytes:
            raise errors.UnreadableAnswer(f"{self._config.server}: a response of more than {max_bytes} bytes")
        return body

    def _request(
        self, call: Call, grant: auth.Grant, timeout: aiohttp.ClientTimeout
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is closed: use it inside 'async with'")
        headers = grant.headers
        if call.data is not None:
            headers = (*headers, ("Content-Type", call.content_type))
        return self._session.request(
            call.method,
            self._config.server + call.path,
            data=call.data,
            params=call.params,
            headers=headers,
            ssl=grant.ssl if grant.ssl is not None else True,
            server_hostname=self._config.tls_server_name,
            proxy=self._config.proxy_url,
            timeout=timeout,
            read_bufsize=_READ_BUFFER,
        )


@contextlib.contextmanager
def lost_connection(server: str) -> Generator[None, None, None]:
    """Turn anything the HTTP library raises into a ConnectError; a KubeError passes through.

    It raises more than its own exceptions: those of sockets, TLS, URLs and headers, and RuntimeError if a connection
    breaks between two of its steps.
    """
    try:
        yield
    except errors.KubeError:
        raise
    except Exception as error:
        sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        raise errors.ConnectError(f"{server}: {_reason(error)}", sent=sent) from error


def _reason(error: Exception) -> str:
    """Return what went wrong; the library's text of a failed connection has the address of an object in memory."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause = error.os_error
        number = cause.errno or 0  # negative if the name of the host cannot be resolved
        return f"cannot connect: {os.strerror(number) if number > 0 else cause.strerror or cause}"
    return printable(str(error)) or type(error).__name__


def _may_repeat(error: errors.KubeError, call: Call) -> bool:
    if isinstance(error, errors.TooManyRequests | errors.Starting):
        return True
    if isinstance(error, errors.ServerError):
        return call.repeatable or error.retry_after is not None
    return isinstance(error, errors.ConnectError) and (call.repeatable or not error.sent)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return a whole body, or more than `max_bytes` of it.

    A large one arrives in thousands of small chunks; reading them in larger batches costs less.
    """
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            break
        if size > _LARGE:
            await _gather(response, _LARGE_GATHER_SECONDS)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _chunk(response: aiohttp.ClientResponse, seconds: float) -> bytes:
    """Return the next bytes of a response; empty at its end."""
    async with asyncio.timeout(seconds):
        return await response.content.readany()


@contextlib.contextmanager
def ends_with_connection(response: aiohttp.ClientResponse) -> Generator[None, None, None]:
    """Wake the reader of a response when its connection is closed.

    After a framing error the library closes the connection and leaves its reader waiting.
    """
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:
        yield
        return

    def end(_closed: asyncio.Future[None]) -> None:
        if not response.content.is_eof() and response.content.exception() is None:
            response.content.set_exception(aiohttp.ClientPayloadError("the connection was closed within a response"))

    closed.add_done_callback(end)
    try:
        yield
    finally:
        closed.remove_done_callback(end)
        closed.remove_done_callback(_retrieve)  # a connection serves many requests: once is enough
        closed.add_done_callback(_retrieve)


def _retrieve(closed: asyncio.Future[None]) -> None:
    """Retrieve the exception of an idle connection, so that asyncio does not log it."""
    if not closed.cancelled():
        closed.exception()


async def _gather(response: aiohttp.ClientResponse, seconds: float) -> None:
    """Let the next bytes of a busy stream gather in the kernel: one wake-up for many events costs far less."""
    transport = response.connection.transport if response.connection is not None else None
    if not isinstance(transport, asyncio.ReadTransport):
        return
    # Pausing TLS alone still wakes up for every record; the socket below it has no public name.
    socket_transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    paused: asyncio.ReadTransport = socket_transport or transport
    # A closing transport may reject either call. That must not hide a cancellation; the next read raises the reason.
    with contextlib.suppress(RuntimeError):
        paused.pause_reading()
    try:
        await asyncio.sleep(seconds)
    finally:
        with contextlib.suppress(RuntimeError):
            paused.resume_reading()


async def probe(url: str, *, timeout_seconds: float = 1.0, certificate: tuple[Path, Path] | None = None) -> bool:
    """Return whether a health endpoint answers 200; its certificate is not verified.

    `certificate` is the client's, with its key.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        with lost_connection(url):
            async with (
                asyncio.timeout(timeout_seconds),
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, ssl=_unverified(*certificate) if certificate is not None else False) as response,
            ):
                return response.status == 200
    except errors.ConnectError:
        return False


def _unverified(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    return context
