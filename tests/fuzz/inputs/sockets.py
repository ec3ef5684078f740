"""Bytes that arrive on the agent's gRPC sockets, as HTTP/2 or none, and on its own connections to the kubelet's."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, TrailersReceived
from h2.exceptions import ProtocolError

from simgpu.node import connections, dra_messages, messages, rpc
from simgpu.node.protobuf import Message
from tests.fuzz.inputs import kubelets
from tests.fuzz.target import Target, awaited, loop, no_error_logged, scratch, split

_TURNS, _IDLE_TURNS = 200, 12  # of the event loop: at most, and without an answer
_ENDING_TURNS = 50
_PREFIX = 5  # bytes before a message
_SECONDS = 5.0  # of a call: none takes as long
_CALLS: tuple[tuple[int, str, Message], ...] = (
    (0, f"{messages.DEVICE_PLUGIN}/Allocate", kubelets._ALLOCATE),
    (0, f"{messages.DEVICE_PLUGIN}/GetPreferredAllocation", kubelets._PREFER),
    (0, f"{messages.DEVICE_PLUGIN}/ListAndWatch", messages.Empty()),
    (0, f"{messages.DEVICE_PLUGIN}/GetDevicePluginOptions", messages.Empty()),
    *((1, f"{service}/NodePrepareResources", kubelets._CLAIMS) for service in dra_messages.PLUGIN_SERVICES.values()),
    *((1, f"{service}/NodeWatchResources", messages.Empty()) for service in dra_messages.HEALTH_SERVICES.values()),
    (2, f"{dra_messages.REGISTRATION}/GetInfo", messages.Empty()),
    (2, f"{dra_messages.REGISTRATION}/NotifyRegistrationStatus", kubelets._STATUS),
)


@functools.cache
def _listeners() -> tuple[connections.GrpcListener, ...]:
    """Return the servers of the device plugin and of the DRA plugin; clients are connected without a path."""
    services = (kubelets._plugin().services(), *kubelets._dra().services().values())
    return tuple(rpc.RpcServer(item)._server for item in services)


async def _request(data: bytes) -> bytes:
    """Whatever bytes arrive, none of our code fails on them, and nothing of the connection is left after its client."""
    number, rest = split(data, len(_listeners()))
    listener = _listeners()[number]
    answer = await _exchange(listener, rest)
    if len(data) % 16 == 0:
        good = await _exchange(listener, _GOOD[number])
        assert _is_success(good), good
    return answer


async def _exchange(listener: connections.GrpcListener, data: bytes) -> bytes:
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    ours.setblocking(False)
    with no_error_logged(), ours:
        _, made = await loop().connect_accepted_socket(listener._protocol_factory, theirs)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await loop().sock_sendall(ours, data)
        answer = await _answer(ours)
        ours.close()
        for _ in range(_ENDING_TURNS):
            await asyncio.sleep(0)
            if _has_ended(made):
                break
        assert _has_ended(made)
        listener.__gc_collect__()
        assert not listener._handlers
    return answer


def _has_ended(made: Any) -> bool:
    return bool(made.connection.is_closing() and made.handler.closing and made.handler.check_closed())


async def _answer(ours: socket.socket) -> bytes:
    found, idle = bytearray(), 0
    for _ in range(_TURNS):
        await asyncio.sleep(0)
        idle += 1
        with contextlib.suppress(BlockingIOError):
            piece = ours.recv(1 << 16)
            if not piece:
                break
            found += piece
            idle = 0
        if idle > _IDLE_TURNS:
            break
    return bytes(found)


def _called(method: str, message: Message) -> bytes:
    """Return what a client sends for a call."""
    return _client(method, message).data_to_send()


def _client(method: str, message: Message) -> H2Connection:
    """Return a client that has made a call, as stream 1."""
    made = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
    made.initiate_connection()
    headers = {
        ":method": "POST", ":scheme": "http", ":path": f"/{method}", ":authority": "localhost", "te": "trailers",
        "content-type": "application/grpc", "grpc-timeout": "5S", "user-agent": "grpc-go/1", "x-bin": "YQ",
    }  # fmt: skip
    made.send_headers(1, list(headers.items()))
    body = message.encode()
    made.send_data(1, b"\0" + len(body).to_bytes(4, "big") + body, end_stream=True)
    return made


def _is_success(answer: bytes) -> bool:
    """Return whether a server answered a client's only call: with a message, or with none and the status of success."""
    try:
        found = _client(_LIST, messages.Empty()).receive_data(answer)
    except ProtocolError:
        return False
    return any(map(_is_start, found)) and any(map(_is_message_or_end, found))


def _is_start(event: Event) -> bool:
    return isinstance(event, ResponseReceived) and event.stream_id == 1 and _header(event.headers, ":status") == "200"


def _is_message_or_end(event: Event) -> bool:
    if isinstance(event, DataReceived):
        return event.stream_id == 1 and len(event.data) >= _PREFIX
    return isinstance(event, TrailersReceived) and event.stream_id == 1 and _header(event.headers, "grpc-status") == "0"


def _header(headers: Iterable[Any], name: str) -> str:
    return str(dict(headers).get(name))


async def _call(data: bytes) -> None:
    """Whatever a kubelet answers, a call returns a message or raises `RpcError`."""
    kubelet = _kubelet()
    path = await kubelet.start()
    kubelet.answer = data
    with no_error_logged():
        try:
            await rpc.call(path, _LIST, messages.Empty(), messages.ListPodResourcesResponse, seconds=_SECONDS)
        except rpc.RpcError as error:
            str(error).encode()
        await kubelet.ended.wait()


class _Kubelet:
    """A server that answers every connection with the same bytes, and closes it."""

    def __init__(self) -> None:
        self.answer, self.ended = b"", asyncio.Event()
        self._listener: asyncio.Server | None = None

    async def start(self) -> Path:
        """Return its path; it starts with the first call."""
        self.ended.clear()
        path = scratch() / "kubelet.sock"
        if self._listener is None:
            self._listener = await asyncio.start_unix_server(self._take, path)
        return path

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
            writer.write(self.answer)
            await reader.read(1 << 16)
        writer.close()
        self.ended.set()


@functools.cache
def _kubelet() -> _Kubelet:
    return _Kubelet()


def _answered(message: Message) -> bytes:
    """Return what a server sends for an answer."""
    made = H2Connection(H2Configuration(client_side=False, header_encoding="ascii"))
    made.initiate_connection()
    made.receive_data(_called(_LIST, messages.Empty()))
    body = message.encode()
    made.send_headers(1, [(":status", "200"), ("content-type", "application/grpc+proto")])
    made.send_data(1, b"\0" + len(body).to_bytes(4, "big") + body)
    made.send_headers(1, [("grpc-status", "0"), ("grpc-message", "x")], end_stream=True)
    return made.data_to_send()


_LIST = f"{messages.POD_RESOURCES}/List"
_REQUESTS = tuple(bytes([number]) + _called(method, message) for number, method, message in _CALLS)
_GOOD = {item[0]: item[1:] for item in _REQUESTS}  # the last one of each socket

_ANSWERS = tuple(_answered(message) for message in (messages.Empty(), kubelets._PODS))

TARGETS = (
    Target("grpc-requests", awaited(_request), _REQUESTS),
    Target("grpc-answers", awaited(_call), _ANSWERS),
)
