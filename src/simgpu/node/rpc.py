"""gRPC over unix sockets: servers, and unary calls."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from grpclib import GRPCError, Status
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import ProtocolError, StreamTerminatedError
from grpclib.server import Stream

from simgpu.node import connections
from simgpu.node.protobuf import Message

M = TypeVar("M", bound=Message)

Services = Mapping[str, Mapping[str, Handler]]  # methods by service and name

_STOP_SECONDS = 1.0


class RpcError(Exception):
    """A call failed or was rejected; the message is the reason. Raised in a handler, it rejects the call."""


class _Codec(CodecBase):
    """Connects grpclib with the `encode` and `decode` of our messages."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:  # noqa: ARG002 - grpclib's
        encoded: bytes = message.encode()
        return encoded

    def decode(self, data: bytes, message_type: Any) -> Any:
        return message_type.decode(data)


# What grpclib and the codec raise for bytes that are no message, compressed ones included.
_UNREADABLE = (ValueError, NotImplementedError, AssertionError, LookupError, struct.error)


async def _received(stream: Stream[M, Message]) -> M:
    """Return the message of a request; `GRPCError` if it has none that can be read."""
    try:
        received = await stream.recv_message()
    except _UNREADABLE as error:
        raise GRPCError(Status.INVALID_ARGUMENT, f"an unreadable message: {error}") from None
    if received is None:
        raise GRPCError(Status.INVALID_ARGUMENT, "no message")
    return received


def unary(request: type[M], method: Callable[[M], Awaitable[Message]]) -> Handler:
    """Return the handler of a unary method. A caller gets the message of an `RpcError` with status UNAVAILABLE."""

    async def answer(stream: Stream[M, Message]) -> None:
        received = await _received(stream)
        try:
            await stream.send_message(await method(received))
        except RpcError as error:
            raise GRPCError(Status.UNAVAILABLE, str(error)) from None

    return Handler(answer, Cardinality.UNARY_UNARY, request, Message)


def stream(request: type[M], method: Callable[[M], AsyncGenerator[Message, None]]) -> Handler:
    """Return the handler of a server-streaming method."""

    async def answer(stream: Stream[M, Message]) -> None:
        received = await _received(stream)
        try:
            async with contextlib.aclosing(method(received)) as messages:
                async for message in messages:
                    await stream.send_message(message)
        except asyncio.CancelledError:  # the server stops: clients would not learn of it otherwise
            with contextlib.suppress(Exception):
                await stream.send_trailing_metadata(status=Status.UNAVAILABLE)
            raise

    return Handler(answer, Cardinality.UNARY_STREAM, request, Message)


class RpcServer:
    """A gRPC server on a unix socket, with the methods of each service by name."""

    def __init__(self, services: Services) -> None:
        self._handlers = {
            f"/{service}/{name}": handler for service, methods in services.items() for name, handler in methods.items()
        }
        self._server = connections.GrpcListener([self], codec=_Codec())

    def __mapping__(self) -> dict[str, Handler]:
        return self._handlers

    async def start(self, path: Path) -> None:
        """Listen on a new socket at this path."""
        path.unlink(missing_ok=True)
        starting = asyncio.ensure_future(self._server.start(path=str(path)))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                await starting  # a turn of the loop; the socket of one that is cancelled would stay open
                self._server.close()
            raise

    async def stop(self) -> None:
        """End calls in progress and close all connections."""
        self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._server.wait_closed()
        await self._server.close_connections()


async def serve(path: Path, services: Services) -> RpcServer:
    """Start a server on a new socket at this path, and return it."""
    server = RpcServer(services)
    await server.start(path)
    return server


async def call(path: Path, method: str, request: Message, answer: type[M], *, seconds: float) -> M:
    """Call a unary method once, and return its response; raises `RpcError`."""
    channel = connections.GrpcChannel(path=str(path), codec=_Codec())
    try:
        ask: UnaryUnaryMethod[Message, M] = UnaryUnaryMethod(channel, f"/{method}", Message, answer)
        return await ask(request, timeout=seconds)
    except GRPCError as error:
        raise RpcError(error.message or error.status.name) from None
    except TimeoutError:
        raise RpcError(f"no answer within {seconds:g} s") from None
    except (OSError, StreamTerminatedError, ProtocolError, *_UNREADABLE) as error:
        raise RpcError(f"{path}: {error}") from None
    finally:
        channel.close()
