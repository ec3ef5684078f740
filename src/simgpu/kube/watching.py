"""One watch request: from bytes on the wire to typed events.

The envelope is read first and the object second, straight into its view: the bytes are gone over once.
Lines are split here from the chunks as they come, so there is no limit to their length.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, Generic, NamedTuple

import msgspec

from simgpu.kube import errors
from simgpu.kube.client import Client, Params, decoder
from simgpu.kube.resources import Resource, V

_log = logging.getLogger(__name__)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
BOOKMARK: Final = "BOOKMARK"

# The API server writes events without spaces and with the type first. Other servers may not: see `_envelope`.
_LETTER = len('{"type":"')
_BY_LETTER = {ord(kind[0]): (f'{{"type":"{kind}","object":'.encode(), kind) for kind in (ADDED, MODIFIED, DELETED)}


class WatchEvent(NamedTuple, Generic[V]):
    """An event with its object."""

    type: str
    object: V


class Bookmark(NamedTuple):
    """How far the watch has come, and whether all that was there at its start has been sent."""

    resource_version: str
    initial_events_end: bool


class _Envelope(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _BookmarkObject(msgspec.Struct):
    metadata: _BookmarkMeta


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_bookmark = msgspec.json.Decoder(_BookmarkObject).decode


async def lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[list[memoryview], None]:
    """Whole lines of a stream of chunks, in the batches that they came in, without their ends.

    What is left of a line when the stream ends was cut off, and is dropped.
    """
    pending: list[bytes] = []
    async for chunk in chunks:
        last = chunk.rfind(b"\n")
        if last < 0:
            pending.append(chunk)
            continue
        whole = b"".join([*pending, chunk[:last]]) if pending else chunk[:last]
        pending = [chunk[last + 1 :]] if last + 1 < len(chunk) else []
        yield _split(whole)


def _split(whole: bytes) -> list[memoryview]:
    view, start, found = memoryview(whole), 0, []
    while (end := whole.find(b"\n", start)) >= 0:
        found.append(view[start:end])
        start = end + 1
    found.append(view[start:])
    return [line for line in found if line]


class EventDecoder(Generic[V]):
    """Turns the lines of one watch into events. Objects that do not fit the view are skipped and counted."""

    def __init__(self, view: type[V]) -> None:
        self.skipped = 0
        self._decode = decoder(view).decode

    def __call__(self, line: memoryview) -> WatchEvent[V] | Bookmark | None:
        """The event of a line; an ERROR event is raised as what it says."""
        expected = _BY_LETTER.get(line[_LETTER]) if len(line) > _LETTER else None
        if expected is not None:
            prefix, kind = expected
            if line[: len(prefix)] == prefix:
                return self._event(kind, line[len(prefix) : -1])
        return self._envelope(line)

    def _envelope(self, line: memoryview) -> WatchEvent[V] | Bookmark | None:
        try:
            envelope = _decode_envelope(line)
        except msgspec.DecodeError as error:
            raise errors.ConnectError(f"the watch sent what is no event: {error}") from None
        if envelope.type == BOOKMARK:
            meta = _decode_bookmark(envelope.object).metadata
            return Bookmark(meta.resource_version, meta.annotations.get(INITIAL_EVENTS_END) == "true")
        if envelope.type == "ERROR":
            raise errors.from_status(_status(envelope.object))
        return self._event(envelope.type, envelope.object)

    def _event(self, kind: str, body: Any) -> WatchEvent[V] | None:
        try:
            return WatchEvent(kind, self._decode(body))
        except msgspec.ValidationError as error:
            self.skipped += 1
            _log.warning("an object was skipped, it does not fit its view: %s", error)
            return None
        except msgspec.DecodeError as error:
            raise errors.ConnectError(f"the watch sent what is no event: {error}") from None


def _status(body: msgspec.Raw) -> errors.Status:
    try:
        return msgspec.json.decode(body, type=errors.Status)
    except msgspec.DecodeError:
        return errors.Status(code=500, message="the watch ended with an error that says nothing")


async def watch(
    client: Client, resource: Resource[V], *, namespace: str, params: Params, silence_seconds: float
) -> AsyncGenerator[list[WatchEvent[V] | Bookmark], None]:
    """The events of one request, in batches as they arrive, until the stream ends."""
    decode = EventDecoder(resource.view)
    path = resource.path(namespace=namespace)
    asked = {**params, "watch": "true", "allowWatchBookmarks": "true"}
    chunks = client.stream(path, asked, silence_seconds=silence_seconds, count=("watch", resource.plural))
    try:
        async for batch in lines(chunks):
            events: list[WatchEvent[V] | Bookmark] = []
            try:
                for line in batch:
                    event = decode(line)
                    if event is not None:
                        events.append(event)
            except errors.KubeError:
                if events:  # what came before the error is good
                    yield events
                raise
            yield events
    finally:
        await chunks.aclose()
