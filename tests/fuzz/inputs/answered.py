"""Raw bytes that servers answer to our own HTTP clients: API servers, mirrors of programs, SimGPU's own, Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable

from simgpu import errors
from simgpu.cluster import fetch
from simgpu.kube import client as kube_client
from simgpu.kube import wire
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.promql import asking
from simgpu.top import feeds
from tests.fuzz.target import Target, awaited, no_error_logged, numbered, scratch, split

_MAX_BYTES = 4096  # of an answer to some of them
_SECONDS = 5.0  # none takes as long, as the server closes each connection
_LIMITS = fetch.FetchLimits(attempts=1, file_bytes=_MAX_BYTES, text_bytes=_MAX_BYTES, stall_seconds=_SECONDS)


class _Server:
    """A server on loopback that answers every connection with the same bytes, and closes it."""

    def __init__(self) -> None:
        self.answer = b""
        self._listener: asyncio.Server | None = None

    async def url(self) -> str:
        """Return its address; it starts with the first call."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._take, "127.0.0.1", 0)
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answer)
            await writer.drain()
        writer.close()


@functools.cache
def _server() -> _Server:
    return _Server()


def _client(url: str) -> kube_client.Client:
    sizes = wire.Sizes(item=_MAX_BYTES)
    return kube_client.Client(
        ClientConfig(url), retries=wire.Retries(attempts=1), sizes=sizes, timeout_seconds=_SECONDS
    )


async def _api(url: str) -> None:
    async with _client(url) as client:
        assert len(await client.raw("/api")) <= _MAX_BYTES


async def _api_stream(url: str) -> None:
    async with _client(url) as client:
        await _drained(client.raw_stream("/api", silence_seconds=_SECONDS))


async def _top(url: str) -> None:
    async with feeds.UrlFeed(url).open() as feed:
        await feed.get("/fleet")


async def _top_stream(url: str) -> None:
    async with feeds.UrlFeed(url).open() as feed:
        async for _ in feeds.events(feed.stream("/stream")):
            pass


async def _prometheus(url: str) -> None:
    await asking.instant(url, "up", timeout_seconds=_SECONDS)


async def _checksum(url: str) -> None:
    async with fetch.Fetcher(_LIMITS) as fetcher:
        assert len(await fetcher.read(url)) <= _MAX_BYTES


async def _download(url: str) -> None:
    partial = fetch.Partial(scratch() / "program.part")
    try:
        async with fetch.Fetcher(_LIMITS) as fetcher:
            for _ in range(2):  # the second one resumes
                await fetcher.save(url, partial, lambda _held, _total: None)
    finally:
        assert partial.size() <= _MAX_BYTES
        partial.discard()


async def _drained(pieces: AsyncGenerator[bytes, None]) -> None:
    async with contextlib.aclosing(pieces) as found:
        async for _ in found:
            pass


_CLIENTS: tuple[Callable[[str], Awaitable[None]], ...] = (
    _api, _api_stream, _top, _top_stream, _prometheus, _checksum, _download,
)  # fmt: skip


async def _answer(data: bytes) -> None:
    """An answer is used, or what is wrong with it is reported; nothing of the connection is left."""
    number, rest = split(data, len(_CLIENTS))
    server = _server()
    server.answer = rest
    with no_error_logged():
        try:
            await _CLIENTS[number](await server.url())
        except errors.SimgpuError as error:
            str(error).encode()
        await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_SECONDS)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


def _http(body: str, *headers: str, status: str = "200 OK") -> str:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", body])


_JSON = "Content-Type: application/json"
_ANSWERS = (
    [_http('{"kind":"APIVersions"}', _JSON), _http('{"code":429}', _JSON, "Retry-After: 1", status="429 Too Many")],
    [_http('{"type":"ADDED"}\n', _JSON), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"],
    [_http("{}", _JSON), _http('{"error":"not leading"}', _JSON, status="503 Service Unavailable")],
    [_http("event: layout\ndata: {}\n\n", "Content-Type: text/event-stream")],
    [_http('{"status":"success","data":{"resultType":"vector","result":[]}}', _JSON)],
    [_http("a" * 64), _http("", "Location: /x", status="302 Found")],
    [_http("abc", 'ETag: "x"'), _http("bc", "Content-Range: bytes 1-2/3", status="206 Partial Content")],
)

TARGETS = (
    Target(
        "http-answers", awaited(_answer), numbered(_ANSWERS), ("Content-Length: ", "\r\n", "Content-Encoding: gzip")
    ),
)
