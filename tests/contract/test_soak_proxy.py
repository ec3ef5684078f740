"""The soak's proxy, between the client of controllers and a server with certificates."""

from __future__ import annotations

import asyncio
import datetime
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from simgpu.cluster import pki
from simgpu.kube import errors
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.kube.wire import Retries
from soak.proxy import FaultProxy


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[FaultProxy]:
    """A proxy to a server that answers with what it is sent."""
    folder = tmp_path / "pki"
    pki.create(folder, addresses=["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path, "body": await request.text()})

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    port = runner.addresses[0][1]
    made = FaultProxy(("127.0.0.1", port), folder, chance=random.Random(1))
    async with made:
        yield made
    await runner.cleanup()


def client(proxy: FaultProxy, tmp_path: Path, *, attempts: int = 1, timeout: float = 20.0) -> Client:
    config = ClientConfig(proxy.url, ca=(tmp_path / "pki" / "ca.crt").read_bytes(), token="t")
    quick = Retries(attempts=attempts, backoff=Backoff(first_seconds=0.001, max_seconds=0.01))
    return Client(config, retries=quick, timeout_seconds=timeout)


async def test_requests_and_answers_pass_as_they_are(proxy: FaultProxy, tmp_path: Path) -> None:
    async with client(proxy, tmp_path) as opened:
        for number in range(3):
            assert f"/path/{number}".encode() in await opened.raw(f"/path/{number}")
    assert proxy.counts["requests"] == 3


@pytest.mark.parametrize(("status", "kind"), [(429, errors.TooManyRequests), (500, errors.ServerError)])
async def test_in_a_storm_requests_fail_and_afterwards_the_same_connection_works(
    proxy: FaultProxy, tmp_path: Path, status: int, kind: type[errors.KubeError]
) -> None:
    proxy.status, proxy.share = status, 1.0
    async with client(proxy, tmp_path) as opened:
        with pytest.raises(kind, match="injected"):
            await opened.raw("/a")
        proxy.status = 0
        assert b"/b" in await opened.raw("/b")
    assert proxy.counts == {"requests": 2, f"answers {status}": 1}


async def test_a_lost_network_says_nothing_until_it_is_back(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.stalled = True
    async with client(proxy, tmp_path) as opened:
        asked = asyncio.create_task(opened.raw("/a"))
        while not proxy.counts["bytes held up"]:
            await asyncio.sleep(0.01)
        assert not asked.done()
        proxy.stalled = False
        assert b"/a" in await asked


async def test_connections_that_are_cut_are_errors_of_the_network(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.stalled = True
    async with client(proxy, tmp_path) as opened:
        asked = asyncio.create_task(opened.raw("/a"))
        while not proxy.counts["bytes held up"]:
            await asyncio.sleep(0.01)
        proxy.cut()
        with pytest.raises(errors.ConnectError):
            await asked
    assert proxy.counts["connections cut"] == 1


async def test_a_slow_network_delays_every_piece(proxy: FaultProxy, tmp_path: Path) -> None:
    proxy.delay = 0.001
    async with client(proxy, tmp_path) as opened:
        assert b"/a" in await opened.raw("/a")
    assert proxy.counts["pieces delayed"] >= 2
