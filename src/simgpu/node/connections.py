"""Connections of gRPC, with grpclib: one whose other end sends what is not the protocol is closed.

grpclib by itself raises an error of its own into the event loop then, or logs one as a failure of the server, and a
client waits. It also leaves it to clients to disconnect.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from typing import Any

from grpclib import client, protocol, server
from grpclib.metadata import decode_metadata
from h2.events import UnknownFrameReceived

_REQUIRED = {":method", ":path"}

_log = logging.getLogger(__name__)


class GrpcListener(server.Server):
    """A server that can close connections itself."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.connections: weakref.WeakSet[GrpcConnection] = weakref.WeakSet()

    def _protocol_factory(self) -> GrpcConnection:
        made = super()._protocol_factory()
        handler = _Requests(self._mapping, self._codec, self._status_details_codec, self.__dispatch__)
        self._handlers.discard(made.handler)
        self._handlers.add(handler)
        found = GrpcConnection(handler, self._config, self._h2_config)
        self.connections.add(found)
        return found

    async def close_connections(self) -> None:
        """Close every connection."""
        for found in list(self.connections):
            if hasattr(found, "connection"):
                found.connection.close()
        await asyncio.sleep(0)  # transports end in the loop's next turn


class GrpcChannel(client.Channel):
    """A client's connection to a server."""

    def _protocol_factory(self) -> GrpcConnection:
        made = super()._protocol_factory()
        return GrpcConnection(made.handler, made.config, made.h2_config)


class GrpcConnection(protocol.H2Protocol):
    """The connection of a client or of a server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and ignore frames of unknown types, as HTTP/2 demands."""
        super().connection_made(transport)
        self.processor.processors[UnknownFrameReceived] = lambda _event: None

    def data_received(self, data: bytes) -> None:
        """Process the next bytes."""
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - of any kind: frames in no order, headers that are not text
            detailed = _log.isEnabledFor(logging.DEBUG)
            _log.info("closing a connection of gRPC: %s: %s", type(error).__name__, error, exc_info=detailed)
            self.processor.close("Protocol error")


class _Requests(server.Handler):
    """The requests of a connection."""

    def accept(self, stream: protocol.Stream, headers: Any, release_stream: Callable[[], None]) -> None:
        """Start to answer a request; raises for headers that are none of gRPC."""
        if missing := _REQUIRED - dict(headers).keys():
            raise ValueError(f"a request without {', '.join(sorted(missing))}")
        decode_metadata(headers)
        super().accept(stream, headers, release_stream)
