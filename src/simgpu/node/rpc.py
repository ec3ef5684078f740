"""gRPC over unix sockets with messages of ours: a server's methods, and single calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from simgpu.node.protobuf import Message

M = TypeVar("M", bound=Message)

_CLIENT = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
# A socket that the kubelet removed is ours to make again, also while another process of ours still has the old one.
_SERVER = (("grpc.so_reuseport", 0),)

Context = grpc.aio.ServicerContext[Any, Any]
Refused = grpc.aio.AioRpcError


def unary(request: type[M], method: Callable[[M, Context], Awaitable[Message]]) -> grpc.RpcMethodHandler[Any, Any]:
    """A method with one answer."""
    return grpc.unary_unary_rpc_method_handler(
        method,
        request_deserializer=request.decode,
        response_serializer=Message.encode,
    )


def stream(request: type[M], method: Callable[[M, Context], AsyncIterator[Message]]) -> grpc.RpcMethodHandler[Any, Any]:
    """A method with many answers."""
    return grpc.unary_stream_rpc_method_handler(
        method,
        request_deserializer=request.decode,
        response_serializer=Message.encode,
    )


async def serve(path: Path, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> grpc.aio.Server:
    """A server on a new socket at that path."""
    path.unlink(missing_ok=True)
    server = grpc.aio.server(options=_SERVER)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def call(path: Path, method: str, request: Message, answer: type[M], *, seconds: float) -> M:
    """Ask once. `Refused` if nobody answers, or with what was answered instead."""
    async with grpc.aio.insecure_channel(f"unix:{path}", options=_CLIENT) as channel:
        ask = channel.unary_unary(f"/{method}", request_serializer=Message.encode, response_deserializer=answer.decode)
        found: M = await ask(request, timeout=seconds)
        return found
