"""Raw bytes that servers answer to our own HTTP clients: API servers, mirrors of programs, SimGPU's own, Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence

import aiohappyeyeballs

from simgpu import errors
from simgpu.cluster import fetch
from simgpu.kube import client as kube_client
from simgpu.kube import scraping, wire
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.promql import asking
from simgpu.top import feeds
from tests.fuzz.target import Target, awaited, loop, no_error_logged, numbered, scratch, split

_MAX_BYTES = 4096  # of an answer to some of them
_SECONDS = 5.0  # none takes as long, as the server closes each connection
_LIMITS = fetch.FetchLimits(attempts=1, file_bytes=_MAX_BYTES, text_bytes=_MAX_BYTES, stall_seconds=_SECONDS)


class _Server:
    """A server that answers every connection with the same bytes, and closes it: the only one that can be reached.

    No name is resolved, and no address connected: connections are pairs of sockets, which is faster, too.
    """

    url = "http://127.0.0.1:9"
    _ADDRESS = ("127.0.0.1", 9)

    def __init__(self) -> None:
        self.answer = b""
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            del os.environ[name]
        os.environ["NETRC"] = os.devnull

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let clients reach nothing else meanwhile."""
        connect, resolve = aiohappyeyeballs.start_connection, loop().getaddrinfo
        aiohappyeyeballs.start_connection = self._connect  # type: ignore[assignment]
        loop().getaddrinfo = self._resolve  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            aiohappyeyeballs.start_connection = connect
            loop().getaddrinfo = resolve  # type: ignore[method-assign]

    async def _resolve(self, *_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "no name is resolved")

    async def _connect(self, *, addr_infos: Sequence[aiohappyeyeballs.AddrInfoType], **_: object) -> socket.socket:
        if addr_infos[0][4] != self._ADDRESS:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "only the server is there")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        await loop().connect_accepted_socket(lambda: _Answering(self.answer), theirs)
        return ours


class _Answering(asyncio.Protocol):
    """The server's end of a connection; what it is asked makes no difference."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, _data: bytes) -> None:
        self._transport.write(self._answer)
        self._transport.close()


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


async def _component(url: str) -> None:
    (await scraping.page(url, timeout_seconds=_SECONDS)).encode()


async def _mirror(url: str) -> None:
    async with fetch.Fetcher(_LIMITS) as fetcher:
        problem = await fetcher.problem(url)
    assert problem is None or problem.encode()


async def _probe(url: str) -> None:
    assert await wire.probe(url, timeout_seconds=_SECONDS) in (True, False)


async def _drained(pieces: AsyncGenerator[bytes, None]) -> None:
    async with contextlib.aclosing(pieces) as found:
        async for _ in found:
            pass


_CLIENTS: tuple[Callable[[str], Awaitable[None]], ...] = (
    _api, _api_stream, _top, _top_stream, _prometheus, _checksum, _download, _component, _mirror,
    _probe,
)  # fmt: skip


async def _answer(data: bytes) -> None:
    """An answer is used, or what is wrong with it is reported; nothing of the connection is left."""
    number, rest = split(data, len(_CLIENTS))
    server = _server()
    server.answer = rest
    with no_error_logged(), server.alone():
        try:
            await _CLIENTS[number](server.url)
        except errors.SimgpuError as error:
            str(error).encode()
        await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_SECONDS)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


def _http(body: str, *headers: str, status: str = "200 OK") -> str:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", body])


def _elsewhere(host: str) -> str:
    return _http("", f"Location: http://{host}/", status="307 Temporary Redirect")


_JSON = "Content-Type: application/json"
_ANSWERS = (
    [_http('{"kind":"APIVersions"}', _JSON), _http('{"code":429}', _JSON, "Retry-After: 1", status="429 Too Many")],
    [_http('{"type":"ADDED"}\n', _JSON), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"],
    [
        _http("{}", _JSON),
        _elsewhere("localhost:1"),
        _elsewhere("[::]:9@"),
        _http('{"error":"not leading"}', _JSON, status="503 Service Unavailable"),
    ],
    [_http("event: layout\ndata: {}\n\n", "Content-Type: text/event-stream")],
    [_http('{"status":"success","data":{"resultType":"vector","result":[]}}', _JSON), _elsewhere("[::]:9@")],
    [_http("a" * 64), _http("", "Location: /x", status="302 Found"), _elsewhere("[::1]:9"), _elsewhere("127.0.0.1:1")],
    [_http("abc", 'ETag: "x"'), _http("bc", "Content-Range: bytes 1-2/3", status="206 Partial Content")],
    [
        _http("x 1\n"),
        _http("no", status="403 Forbidden"),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
    ],
    [_http(""), _elsewhere("[::]:9@"), _http("", status="500 Error")],
    [_http("ok"), _elsewhere("127.0.0.1:9")],
)

TARGETS = (
    Target(
        "http-answers", awaited(_answer), numbered(_ANSWERS), ("Content-Length: ", "\r\n", "Content-Encoding: gzip")
    ),
)
