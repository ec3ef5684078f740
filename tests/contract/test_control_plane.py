"""Whether a component is ready: its port alone does not show it."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from pathlib import Path

import pytest

from simgpu.cluster import pki
from simgpu.kube import wire


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probing") / "pki"
    pki.create(folder, addresses=["127.0.0.1"], now=datetime.datetime.now(datetime.UTC))
    return folder


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    await writer.drain()
    writer.close()


async def test_etcd_is_ready_once_it_serves_to_its_client_and_not_when_it_listens(keys: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(keys / "etcd-ca.crt"))
    context.load_cert_chain(keys / "etcd-server.crt", keys / "etcd-server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    client = (keys / "etcd-client.crt", keys / "etcd-client.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/readyz"
        assert not await wire.probe(url, timeout_seconds=0.05, certificate=client)
        async with await asyncio.start_server(answer, sock=listening, ssl=context):
            assert await wire.probe(url, timeout_seconds=30.0, certificate=client)
            assert not await wire.probe(url, timeout_seconds=30.0)
