"""ttrpc messages on the logical connections that NRI multiplexes over one unix socket.

A frame of the socket names a connection and carries some of its bytes; on each connection, messages have a header of
their own, and may be split over frames.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Annotated

import msgspec

from simgpu.node.protobuf import Message

REQUEST, RESPONSE = 1, 2

_FRAME = struct.Struct(">II")  # connection, length
_HEADER = struct.Struct(">IIBB")  # length, stream, kind, flags
_MAX_BYTES = 4 << 20  # of a message, as the protocol has it
_PIECE = 4096  # bytes of a frame that we send: the other side reads frames into a buffer of this size


class TtrpcRequest(Message, frozen=True):
    """A call."""

    service: Annotated[str, 1] = ""
    method: Annotated[str, 2] = ""
    payload: Annotated[bytes, 3] = b""
    timeout_nano: Annotated[int, 4] = 0


class TtrpcStatus(Message, frozen=True):
    """Why a call failed; code 0 is success."""

    code: Annotated[int, 1] = 0
    message: Annotated[str, 2] = ""


class TtrpcResponse(Message, frozen=True):
    """The answer of a call."""

    status: Annotated[TtrpcStatus | None, 1] = None
    payload: Annotated[bytes, 2] = b""


class TtrpcMessage(msgspec.Struct, frozen=True):
    """A message on a connection: a request or a response, of one stream."""

    connection: int
    stream: int
    kind: int
    data: bytes


class TtrpcTrunk:
    """A socket with these connections. `ValueError` for what is not the protocol; `EOFError` at its end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, connections: Iterable[int]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._received = {connection: bytearray() for connection in connections}

    async def receive(self) -> TtrpcMessage:
        """Return the next message that is complete, of any connection."""
        while (found := self._complete()) is None:
            connection, size = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
            if (held := self._received.get(connection)) is None:
                raise ValueError(f"a frame of connection {connection}; there are {', '.join(map(str, self._received))}")
            if size > _MAX_BYTES + _HEADER.size:
                raise ValueError(f"a frame of {size} bytes; at most {_MAX_BYTES + _HEADER.size}")
            held.extend(await self._reader.readexactly(size))
        return found

    def _complete(self) -> TtrpcMessage | None:
        for connection, held in self._received.items():
            if len(held) < _HEADER.size:
                continue
            size, stream, kind, _flags = _HEADER.unpack_from(held)
            if size > _MAX_BYTES:
                raise ValueError(f"a message of {size} bytes; at most {_MAX_BYTES}")
            end = _HEADER.size + size
            if len(held) >= end:
                data = bytes(held[_HEADER.size : end])
                del held[:end]
                return TtrpcMessage(connection, stream, kind, data)
        return None

    async def send(self, message: TtrpcMessage) -> None:
        """Send a message."""
        whole = _HEADER.pack(len(message.data), message.stream, message.kind, 0) + message.data
        for at in range(0, len(whole), _PIECE):
            piece = whole[at : at + _PIECE]
            self._writer.write(_FRAME.pack(message.connection, len(piece)) + piece)
        await self._writer.drain()
