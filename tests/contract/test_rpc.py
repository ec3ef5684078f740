"""gRPC on unix sockets, as kubelets and plugins speak it."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from pathlib import Path

import pytest

from simgpu.node import messages, rpc


@pytest.mark.parametrize("turns", range(4))
async def test_a_server_that_is_cancelled_while_it_starts_leaves_no_socket_open(tmp_path: Path, turns: int) -> None:
    starting = asyncio.create_task(rpc.serve(tmp_path / "s", {}))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    (outcome,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(outcome, rpc.RpcServer):
        await outcome.stop()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        del starting, outcome
        gc.collect()
    assert [str(item.message) for item in found if item.category is ResourceWarning] == []


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    "frame",
    [
        bytes([0, 0, 1, 1, 5, 0, 0, 0, 1, 0x83]),  # a request with a method alone
        bytes([0, 0, 6, 1, 5, 0, 0, 0, 1, 0x40, 1, 0xFF, 1, 0x61, 0x83]),  # a name that is not ASCII
    ],
)
async def test_what_is_not_the_protocol_closes_its_connection_and_is_no_failure_of_the_server(
    tmp_path: Path, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(_request: messages.Empty) -> messages.Empty:
        return messages.Empty()

    server = await rpc.serve(tmp_path / "s", {"a": {"b": rpc.unary(messages.Empty, answer)}})
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(PREFACE + frame)
    async with asyncio.timeout(5.0):
        await reader.read()
    writer.close()
    assert await rpc.call(tmp_path / "s", "a/b", messages.Empty(), messages.Empty, seconds=5.0) == messages.Empty()
    await server.stop()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_frames_of_unknown_types_are_ignored(tmp_path: Path) -> None:
    server = await rpc.serve(tmp_path / "s", {})
    reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
    unknown, ping = bytes([0, 0, 1, 0x7F, 0, 0, 0, 0, 1, 0]), bytes([0, 0, 8, 6, 0, 0, 0, 0, 0])
    writer.write(PREFACE + unknown + ping + b"question")
    async with asyncio.timeout(5.0):
        await reader.readuntil(bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + b"question")
    writer.close()
    await server.stop()


async def test_a_message_that_cannot_be_read_is_rejected_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(_request: messages.RegisterRequest) -> messages.Empty:
        return messages.Empty()

    class Rubbish(messages.Empty, frozen=True):
        def encode(self) -> bytes:
            return b"\xff"

    server = await rpc.serve(tmp_path / "s", {"a": {"b": rpc.unary(messages.RegisterRequest, answer)}})
    with pytest.raises(rpc.RpcError, match="an unreadable message"):
        await rpc.call(tmp_path / "s", "a/b", Rubbish(), messages.Empty, seconds=5.0)
    await server.stop()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
