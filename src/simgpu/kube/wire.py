"""HTTP to one API server: one connection pool, credentials, retries, and answers as bytes.

A request is tried again when that is safe: always after 429, after a failure that carries `Retry-After`, or where the
server cannot have seen it; after other 5xx and broken connections only if the request can be repeated without harm.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import NamedTuple

import aiohttp
import msgspec

from simgpu.kube import auth, errors
from simgpu.kube.backoff import Backoff
from simgpu.kube.kubeconfig import Target

JSON = "application/json"
MAX_REQUESTS = 64  # at a time; watches do not count, they stay open

_READ_BUFFER = 1024 * 1024
_GATHER_SECONDS = 0.005
_LARGE = 256 * 1024
_LARGE_GATHER_SECONDS = 0.0005

Params = dict[str, str]


class Retries(msgspec.Struct, frozen=True):
    """How patient a client is with failures that may pass."""

    attempts: int = 6
    backoff: Backoff = Backoff(first_seconds=0.1, longest_seconds=10.0)

    def pause(self, failures: int, retry_after: float | None) -> float:
        """Seconds to wait before the next try: what the server asked for, or the back-off."""
        if retry_after is not None:
            return min(retry_after, self.backoff.longest_seconds) * random.uniform(1.0, 1.2)
        return self.backoff.pause(failures)


class Call(NamedTuple):
    """A request. `counted` is the verb and resource that it is counted under."""

    method: str
    path: str
    counted: tuple[str, str]
    params: Params | None = None
    data: bytes | None = None
    content_type: str = JSON
    repeatable: bool = True


class Wire:
    """The connections to one server. Use it as an async context manager."""

    def __init__(self, target: Target, *, retries: Retries, timeout_seconds: float) -> None:
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self._target = target
        self._credentials = auth.Credentials(target)
        self._retries = retries
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=10)
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Get ready to send."""
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
        """One request with its retries; the answer's bytes, or an error of the tree in `errors`."""
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
        with self._reaching():
            async with self._open(call, grant, self._timeout) as response:
                return response.status, await _body(response), response.headers

    async def stream(self, call: Call, *, silence_seconds: float) -> AsyncGenerator[bytes, None]:
        """The chunks of an endless answer. A silence longer than `silence_seconds` is a ConnectError."""
        self.requests[call.counted] += 1
        grant = await self._credentials.current()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence_seconds)
        with self._reaching():
            async with self._open(call, grant, timeout) as response:
                if response.status >= 400:
                    if response.status == 401:
                        self._credentials.rejected(grant)
                    raise errors.from_response(response.status, await response.read(), _retry_after(response.headers))
                async for chunk in response.content.iter_any():
                    yield chunk
                    await _gather(response, _GATHER_SECONDS)

    def _open(
        self, call: Call, grant: auth.Grant, timeout: aiohttp.ClientTimeout
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is closed: use it inside 'async with'")
        headers = grant.headers
        if call.data is not None:
            headers = (*headers, ("Content-Type", call.content_type))
        return self._session.request(
            call.method,
            self._target.server + call.path,
            data=call.data,
            params=call.params,
            headers=headers,
            ssl=grant.ssl if grant.ssl is not None else True,
            server_hostname=self._target.tls_server_name,
            proxy=self._target.proxy_url,
            timeout=timeout,
            read_bufsize=_READ_BUFFER,
        )

    @contextlib.contextmanager
    def _reaching(self) -> Generator[None, None, None]:
        """The library's errors as ours."""
        try:
            yield
        except (aiohttp.ClientError, TimeoutError, ssl.SSLError) as error:
            sent = not isinstance(error, aiohttp.ClientConnectorError)
            message = f"{self._target.server}: {str(error) or type(error).__name__}"
            raise errors.ConnectError(message, sent=sent) from error


def _may_repeat(error: errors.KubeError, call: Call) -> bool:
    if isinstance(error, errors.TooManyRequests):
        return True
    if isinstance(error, errors.ServerError):
        return call.repeatable or error.retry_after is not None
    return isinstance(error, errors.ConnectError) and (call.repeatable or not error.sent)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        return max(0.0, float(headers["Retry-After"]))
    except (KeyError, ValueError):
        return None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """All of an answer. A large one comes in thousands of small pieces, which are better taken together."""
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > _LARGE:
            await _gather(response, _LARGE_GATHER_SECONDS)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _gather(response: aiohttp.ClientResponse, seconds: float) -> None:
    """Let a busy stream's next bytes gather in the kernel: one wake-up for many events costs far less than many."""
    transport = response.connection.transport if response.connection is not None else None
    if not isinstance(transport, asyncio.ReadTransport):
        return
    # Pausing TLS alone still wakes us for every record; the socket below it has no public name.
    socket_transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    paused: asyncio.ReadTransport = socket_transport or transport
    paused.pause_reading()
    try:
        await asyncio.sleep(seconds)
    finally:
        paused.resume_reading()


async def probe(url: str, *, timeout_seconds: float = 1.0) -> bool:
    """Whether a health endpoint answers 200; its certificate is not looked at."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=False) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
