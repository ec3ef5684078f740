"""The Kubernetes layer over a network that corrupts, loses, repeats, holds back and cuts off bytes: it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from aiohttp import web

from simgpu.cluster import fetch, pki
from simgpu.kube import errors, kubeconfig, resources, scraping, wire
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.leading import Election, Terms
from simgpu.kube.reflector import Pace, Reflector
from simgpu.kube.store import Store
from simgpu.kube.views import Pod
from simgpu.kube.wire import Retries
from tests.fixtures.proxy import FAULTS, MistreatingProxy

PACE = Pace(backoff=Backoff(first_seconds=0.001, max_seconds=0.01), silence_seconds=0.2, failures=3)
ONCE = Retries(attempts=1)
CONNECTIONS = 5  # that are mistreated, one after the other
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network") / "pki"
    pki.create(folder, addresses=["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    return folder


class Truth:
    """An API server of one pod and one lease; it forgets all versions when it is told to."""

    def __init__(self) -> None:
        self.version = 1000
        self.lease: dict[str, Any] | None = None
        self.done = asyncio.Event()

    def forget(self) -> None:
        self.version += 1000

    def pod(self, version: int) -> dict[str, Any]:
        meta = {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": str(version)}
        return {"metadata": meta, "spec": {"containers": [{"name": "c"}]}}

    async def pods(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            listed = {"metadata": {"resourceVersion": str(self.version)}, "items": [self.pod(self.version)]}
            return web.json_response(listed)
        seen = request.query.get("resourceVersion", "")
        known = seen.isdecimal() and len(seen) < 10 and self.version <= int(seen) < self.version + 1000
        if not known:
            return web.json_response({"kind": "Status", "code": 410, "reason": "Expired"}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        for version in range(int(seen) + 1, self.version + 10):
            line = json.dumps({"type": "MODIFIED", "object": self.pod(version)}, separators=(",", ":")).encode() + b"\n"
            for start in range(0, len(line), 16):  # in small chunks, so that faults often meet their framing
                await response.write(line[start : start + 16])
        await self.done.wait()
        return response

    async def leases(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and self.lease is None:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.method != "GET":
            self.version += 1
            spec = {**(self.lease or {}).get("spec", {}), **(await request.json())["spec"]}
            meta = {"name": "leader", "namespace": "d", "resourceVersion": str(self.version)}
            self.lease = {"metadata": meta, "spec": spec}
        return web.json_response(self.lease)


@contextlib.asynccontextmanager
async def network(
    fault: str, certificates: Path | None, seed: int = 7
) -> AsyncIterator[tuple[Truth, MistreatingProxy, kubeconfig.ClientConfig]]:
    """A server behind a proxy that mistreats what it sends."""
    truth = Truth()
    application = web.Application()
    application.router.add_route("*", "/api/v1/pods", truth.pods)
    application.router.add_route("*", "/apis/coordination.k8s.io/v1/{rest:.*}", truth.leases)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    context = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    # A TLS handshake is about 1500 bytes; answers are about 1700.
    proxy = MistreatingProxy(
        "127.0.0.1", runner.addresses[0][1], fault=fault, seed=seed, within=3000 if certificates else 1500
    )
    try:
        async with proxy as port:
            target = kubeconfig.ClientConfig(server=f"http://127.0.0.1:{port}")
            if certificates is not None:
                ca = (certificates / "ca.crt").read_bytes()
                target = msgspec.structs.replace(target, server=f"https://127.0.0.1:{port}", ca=ca)
            yield truth, proxy, target
    finally:
        truth.done.set()
        await runner.cleanup()


def run(loop: str, work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(asyncio.wait_for(work, 30))


GOOD = b'{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"d","resourceVersion":"10"}}}\n'
GARBAGE = {
    "letters": b"zz\r\nno chunk\r\n",
    "a size without end": b"f" * 40,
    "a chunk that is longer than its size": b"2\r\n123456789\r\n",
    "control characters": b"\x00\x01\xff\xfe\r\n",
    "another answer": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a negative size": b"-5\r\nabc\r\n",
}


@contextlib.asynccontextmanager
async def garbled(garbage: bytes) -> AsyncIterator[tuple[kubeconfig.ClientConfig, list[asyncio.StreamWriter]]]:
    """A server whose every answer is a good event, then garbage in place of the next chunk, then nothing more."""
    opened: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, RuntimeError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%s\r\n" % (len(GOOD), GOOD))
            await asyncio.sleep(0.002)  # the client waits for more, or gathers it: either is met
            writer.write(garbage)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield kubeconfig.ClientConfig(server=f"http://127.0.0.1:{port}"), opened
        for writer in opened:
            writer.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_framing_of_a_watch_is_a_lost_connection(garbage: bytes, loop: str) -> None:
    async def work() -> None:
        async with garbled(garbage) as (target, opened), Client(target, retries=ONCE) as client:
            store: Store[Pod] = Store()
            # Silence alone would be noticed only after the test's time is over.
            pace = msgspec.structs.replace(PACE, silence_seconds=600.0)
            task = asyncio.create_task(Reflector(client, resources.PODS, store, pace=pace).run())
            while len(opened) < CONNECTIONS and not task.done():
                await asyncio.sleep(0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_framing_of_a_download_is_a_broken_connection(garbage: bytes, loop: str) -> None:
    async def work() -> None:
        limits = fetch.FetchLimits(attempts=2, pause_seconds=0.001, stall_seconds=600.0)
        async with garbled(garbage) as (target, _opened), fetch.Fetcher(limits) as fetcher:
            with pytest.raises(fetch.FetchError, match=r"/file: .*, after 2 attempts"):
                await fetcher.read(f"{target.server}/file")

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_in_the_framing_of_a_components_page_is_a_lost_connection(garbage: bytes, loop: str) -> None:
    async def work() -> None:
        async with garbled(garbage) as (target, _opened):
            with pytest.raises(errors.ConnectError):
                await scraping.page(f"{target.server}/metrics", timeout_seconds=600.0)

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_reflector_outlives_every_fault_and_shows_the_truth_once_they_are_over(
    fault: str, secure: bool, loop: str, certificates: Path
) -> None:
    async def work() -> None:
        async with (
            network(fault, certificates if secure else None) as (truth, proxy, target),
            Client(target, retries=ONCE, timeout_seconds=0.5) as client,
        ):
            store: Store[Pod] = Store()
            task = asyncio.create_task(Reflector(client, resources.PODS, store, pace=PACE).run())
            while proxy.connections < CONNECTIONS and not task.done():
                await asyncio.sleep(0.002)
            proxy.fault = ""
            proxy.cut()
            truth.forget()
            wanted = {"a": str(truth.version + 9)}
            while not task.done() and {item.metadata.name: item.metadata.resource_version for item in store} != wanted:
                await asyncio.sleep(0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_over_a_bad_network_is_answered_or_an_error_of_ours(
    fault: str, secure: bool, loop: str, certificates: Path
) -> None:
    async def work() -> None:
        async with network(fault, certificates if secure else None) as (_truth, proxy, target):
            for _ in range(CONNECTIONS):
                async with Client(target, retries=ONCE, timeout_seconds=0.3) as client:
                    with contextlib.suppress(errors.KubeError):
                        await client.listing(resources.PODS)
                await wire.probe(f"{target.server}/api/v1/pods", timeout_seconds=0.3)
            proxy.fault = ""
            async with Client(target, retries=ONCE) as client:
                assert [pod.metadata.name for pod in await client.list(resources.PODS)] == ["a"]
            assert await wire.probe(f"{target.server}/api/v1/pods", timeout_seconds=10)

    run(loop, work())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_candidate_leads_once_the_network_is_good_again(fault: str, loop: str, certificates: Path) -> None:
    async def work() -> None:
        async with (
            network(fault, certificates) as (_truth, proxy, target),
            Client(target, retries=ONCE, timeout_seconds=0.3) as client,
        ):
            terms = Terms(lease_seconds=1, renew_seconds=0.02, give_up_seconds=0.3, retry_seconds=0.01)
            candidate = Election(client, "leader", namespace="d", identity="us", terms=terms)
            task = asyncio.create_task(candidate.run(asyncio.Event().wait))  # type: ignore[arg-type]
            while proxy.connections < CONNECTIONS and not task.done():
                proxy.cut()
                await asyncio.sleep(0.02)
            proxy.fault = ""
            while not candidate.leading and not task.done():
                await asyncio.sleep(0.002)
            assert not task.done()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(loop, work())
