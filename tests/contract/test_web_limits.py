"""The HTTP server and clients that stall, dribble, or come in numbers: on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NamedTuple, Self

import pytest
import uvloop
from aiohttp import web

from simgpu import errors
from simgpu.catalog import models
from simgpu.identities import identity
from simgpu.machines.fleet import Fleet
from simgpu.topology import inline
from simgpu.web import fleet_pages, health, pages, server
from simgpu.web.limits import Limits

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
PATIENT = Limits(streams=2, idle_seconds=600.0, answer_seconds=600.0)
HASTY = Limits(streams=2, idle_seconds=600.0, answer_seconds=0.3)


class Place(NamedTuple):
    """Where a server listens, and its connections."""

    address: str
    server: web.Server


@contextlib.asynccontextmanager
async def served(limits: Limits) -> AsyncIterator[Place]:
    """Pages of 1024 GPUs, 10 MB: more than the kernel keeps for a client."""
    cards = Fleet(seed=1)
    cards.place("n1", inline.parse("h200:1024", models.load(), field="x"))
    cards.step(1.0, clock=0.0)
    shown = fleet_pages.FleetPages(
        lambda: cards, identity.load("dcgm"), namespace="x", plain=False, scraped=lambda _page, _seconds: None
    )
    made = server.HttpServer([*shown.routes(), server.get("/healthz", health.liveness())], limits=limits)
    await made.start("127.0.0.1", 0, field="x")
    assert made._runner.server is not None
    try:
        yield Place(made.address, made._runner.server)
    finally:
        await made.stop()


class Client:
    """A connection that takes what it is sent only when it is asked to."""

    def __init__(self, place: Place, *, buffer: int = 4096) -> None:
        self._socket = socket.socket()
        if buffer:  # so that the kernel does not take the page in its place
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        host, _, port = place.address.rpartition(":")
        self._socket.connect((host, int(port)))
        self._socket.setblocking(False)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def get(self, path: str) -> None:
        await self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def head(self) -> bytes:
        """The beginning of an answer."""
        received = b""
        while b"\r\n\r\n" not in received and (piece := await self._take()):
            received += piece
        return received

    async def rest(self) -> int:
        """How many bytes come until the connection is closed."""
        count = 0
        while piece := await self._take():
            count += len(piece)
        return count

    async def take(self, count: int) -> None:
        """The next `count` bytes."""
        while count:
            piece = await self._take(count)
            assert piece, "the connection was closed"
            count -= len(piece)

    async def _take(self, most: int = 65536) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, most)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._socket.close()


async def status(place: Place, path: str = "/metrics") -> tuple[int, bytes]:
    """The status of an answer, which is not read further, and its head."""
    client = Client(place)
    try:
        await client.get(path)
        head = await client.head()
        return int(head.split()[1]) if head else 0, head
    finally:
        client.close()


def run(loop: str, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(work, 20))


@pytest.mark.parametrize("loop", LOOPS)
def test_large_pages_go_to_few_at_a_time_and_others_are_told_when_to_come_again(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_CACHED_SERIES", 0)

    async def work() -> None:
        async with served(PATIENT) as place:
            stalled = [Client(place) for _ in range(2)]
            for client in stalled:
                await client.get("/metrics")
                assert (await client.head()).startswith(b"HTTP/1.1 200")
            code, head = await status(place)
            assert code == 503
            assert b"Retry-After: 5" in head
            assert (await status(place, "/healthz"))[0] == 200, "small answers are not held up"
            stalled[0].close()
            while (await status(place))[0] != 200:
                await asyncio.sleep(0.01)
            stalled[1].close()

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("streamed", [0, 10**9], ids=["streamed", "kept"])
def test_a_client_that_does_not_take_its_page_is_disconnected(
    streamed: int, loop: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pages, "MAX_CACHED_SERIES", streamed)

    async def work() -> None:
        async with served(HASTY) as place:
            with contextlib.closing(Client(place, buffer=0)) as reading:
                await reading.send(b"GET /metrics HTTP/1.0\r\n\r\n")
                size = await reading.rest()
            with contextlib.closing(Client(place)) as one, contextlib.closing(Client(place)) as other:
                for client in (one, other):
                    await client.get("/metrics")
                    assert await client.head()
                while place.server.connections:
                    await asyncio.sleep(0.01)
                for client in (one, other):
                    assert await client.rest() < size
            assert (await status(place))[0] == 200
        assert not [item for item in caplog.records if item.levelname == "ERROR"]

    run(loop, work())


class Body(bytes):
    """A body that is counted for as long as anybody holds it."""

    alive = 0

    def __new__(cls, size: int) -> Self:
        cls.alive += 1
        return super().__new__(cls, size)

    def __del__(self) -> None:
        type(self).alive -= 1


@contextlib.asynccontextmanager
async def serving_bodies(size: int, *, most: int, middlewares: tuple[Any, ...] = ()) -> AsyncIterator[Place]:
    """Bodies of `size`, each made for one client, and at most `most` bytes of them under way."""

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(body=Body(size))

    limits = Limits(idle_seconds=600.0, answer_seconds=600.0, unsent_bytes=most)
    routes = [server.get("/large", handler), server.get("/healthz", health.liveness())]
    made = server.HttpServer(routes, middlewares, limits=limits)
    await made.start("127.0.0.1", 0, field="x")
    assert made._runner.server is not None
    try:
        yield Place(made.address, made._runner.server)
    finally:
        await made.stop()


def buffered(place: Place) -> int:
    """Bytes that all connections of a server have yet to pass to the kernel."""
    transports = (item.transport for item in place.server.connections)
    return sum(item.get_write_buffer_size() for item in transports if item is not None)


LARGE = 8 << 20  # more than the kernel keeps for a client


@pytest.mark.parametrize("loop", LOOPS)
def test_clients_that_do_not_read_hold_no_more_bodies_than_the_server_has_room_for(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with serving_bodies(LARGE, most=2 * LARGE) as place, contextlib.AsyncExitStack() as stack:
            stalled = [stack.enter_context(contextlib.closing(Client(place))) for _ in range(12)]
            heads = []
            for client in stalled:
                await client.get("/large")
                heads.append(await client.head())
            assert [int(head.split()[1]) for head in heads] == [200] * 2 + [503] * 10
            assert all(b"Retry-After: 5" in head for head in heads[2:])
            assert Body.alive == 2, "those who were turned away are still connected"
            assert buffered(place) < LARGE
            assert (await status(place, "/healthz"))[0] == 200, "small answers are not held up"
            stalled[0].close()
            while (await status(place, "/large"))[0] != 200:
                await asyncio.sleep(0.01)
            for client in stalled[1:]:
                client.close()
            while place.server.connections or Body.alive:
                await asyncio.sleep(0.01)
        assert not [item for item in caplog.records if item.levelname == "ERROR"]

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_has_taken_its_answer_and_stays_connected_holds_none_of_it(loop: str) -> None:
    async def work() -> None:
        async with serving_bodies(LARGE, most=2 * LARGE) as place:
            for request in ("GET /large HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD /large HTTP/1.1\r\nHost: x\r\n\r\n"):
                with contextlib.closing(Client(place, buffer=0)) as client:
                    await client.send(request.encode())
                    head, _, body = (await client.head()).partition(b"\r\n\r\n")
                    assert f"Content-Length: {LARGE}".encode() in head
                    left = LARGE - len(body) if request.startswith("GET") else 0
                    await client.take(left)
                    while Body.alive:
                        await asyncio.sleep(0.01)
                    await client.get("/healthz")
                    assert (await client.head()).startswith(b"HTTP/1.1 200"), "the answer ended where it should"

    run(loop, work())


async def test_a_body_beyond_the_whole_budget_is_sent_when_it_is_the_only_one() -> None:
    async with asyncio.timeout(60), serving_bodies(LARGE, most=1) as place:
        with contextlib.closing(Client(place)) as stalled:
            await stalled.get("/large")
            assert (await stalled.head()).startswith(b"HTTP/1.1 200")
            assert (await status(place, "/large"))[0] == 503
        while (await status(place, "/large"))[0] != 200:
            await asyncio.sleep(0.01)


async def test_where_errors_are_json_a_server_that_is_busy_says_so_in_json() -> None:
    async with asyncio.timeout(60), serving_bodies(LARGE, most=1, middlewares=(server.json_errors,)) as place:
        with contextlib.closing(Client(place)) as stalled:
            await stalled.get("/large")
            assert (await stalled.head()).startswith(b"HTTP/1.1 200")
            code, head = await status(place, "/large")
            assert code == 503
            assert b"Retry-After: 5" in head
            assert b'{"error":"GET /large: Service Unavailable"}' in head


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"G"])
async def test_a_client_that_sends_no_whole_request_is_disconnected(sent: bytes) -> None:
    async with asyncio.timeout(60), served(Limits(idle_seconds=0.2)) as place:
        client = Client(place)
        await client.send(sent)
        assert await client.rest() == 0
        client.close()
        dribbling = Client(place)
        with contextlib.suppress(ConnectionError):
            for byte in b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 100_000:
                await dribbling.send(bytes([byte]))
                await asyncio.sleep(0.01)
            pytest.fail("it could go on for ever")
        dribbling.close()
        assert (await status(place, "/healthz"))[0] == 200


async def test_connections_beyond_the_limit_are_told_when_to_come_again() -> None:
    async with asyncio.timeout(60), served(Limits(connections=3, idle_seconds=600.0)) as place:
        idle = [Client(place) for _ in range(3)]
        for client in idle:
            await client.get("/healthz")
            assert (await client.head()).startswith(b"HTTP/1.1 200")
        turned_away = Client(place)
        assert b"503 Service Unavailable\r\nRetry-After: 5\r\n" in await turned_away.head()
        turned_away.close()
        idle[0].close()
        while (await status(place, "/healthz"))[0] != 200:
            await asyncio.sleep(0.01)
        for client in idle[1:]:
            client.close()


@pytest.mark.parametrize(
    "request_text",
    [
        f"GET /{'x' * 20_000} HTTP/1.1\r\n\r\n",
        f"GET / HTTP/1.1\r\nX-Long: {'x' * 20_000}\r\n\r\n",
        "GET / HTTP/1.1\r\n" + "".join(f"X-{number}: y\r\n" for number in range(1000)) + "\r\n",
        "\x00\x01\x02\r\n\r\n",
    ],
    ids=["url", "header", "headers", "garbage"],
)
async def test_a_request_that_is_too_large_or_none_is_rejected(
    request_text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(60), served(PATIENT) as place:
        client = Client(place)
        with contextlib.suppress(ConnectionError):
            await client.send(request_text.encode())
        head = await client.head()
        client.close()
        assert not head or head.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
        assert (await status(place, "/healthz"))[0] == 200
    assert not caplog.records, "anyone could fill the log"


async def test_an_address_that_is_in_use_is_an_error_that_names_it() -> None:
    async with served(PATIENT) as place:
        host, _, port = place.address.rpartition(":")
        again = server.HttpServer([])
        with pytest.raises(errors.InputError, match=rf"--listen: {place.address}: address already in use"):
            await again.start(host, int(port), field="--listen")
