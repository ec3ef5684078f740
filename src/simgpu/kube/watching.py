"""One watch request: from bytes to typed events.

The envelope is decoded first and the object second, straight into its view, so the bytes are parsed once. The limit on
a line's length is far above any object: it bounds memory if a stream has no line ends.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, Generic, NamedTuple

import msgspec

from simgpu.kube import errors, views
from simgpu.kube.client import Client, decode, decoder
from simgpu.kube.resources import Resource, V
from simgpu.kube.wire import GATHER_SECONDS, Params

_log = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 << 20
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
BOOKMARK: Final = "BOOKMARK"

# The API server writes events without spaces and type first. Other servers may not: see `_envelope`.
_LETTER = len('{"type":"')
_BY_LETTER = {ord(kind[0]): (f'{{"type":"{kind}","object":'.encode(), kind) for kind in (ADDED, MODIFIED)}


class WatchEvent(NamedTuple, Generic[V]):
    """An object that was added or modified."""

    type: str
    object: V


class Deleted(NamedTuple):
    """An object that was deleted or cannot be decoded any more; only its identity is known."""

    metadata: views.ObjectIdentity


class Bookmark(NamedTuple):
    """The resource version that the watch has reached, and whether the initial events are complete."""

    resource_version: str
    initial_events_end: bool


class _Envelope(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _BookmarkObject(msgspec.Struct):
    metadata: _BookmarkMeta


async def lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[list[memoryview], None]:
    """Yield complete lines of a stream of chunks, in batches as they arrive, without line ends.

    An incomplete line at the end of the stream is dropped.
    """
    pending: list[bytes] = []
    size = 0
    async for chunk in chunks:
        last = chunk.rfind(b"\n")
        size = size + len(chunk) if last < 0 else len(chunk) - last - 1
        if size > MAX_LINE_BYTES:
            raise errors.UnreadableAnswer(f"an event of more than {MAX_LINE_BYTES} bytes")
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
    return [line for line in found if len(line) > 1]  # neither blank nor a lone carriage return


class EventDecoder(Generic[V]):
    """Decodes the lines of one watch."""

    def __init__(self, resource: Resource[V]) -> None:
        self._kind = resource.kind
        self._decode = decoder(resource.view).decode

    def __call__(self, line: memoryview) -> WatchEvent[V] | Deleted | Bookmark:
        """Return the event of a line; an ERROR event is raised as its exception."""
        expected = _BY_LETTER.get(line[_LETTER]) if len(line) > _LETTER else None
        if expected is not None:
            prefix, kind = expected
            if line[: len(prefix)] == prefix:
                try:
                    return WatchEvent(kind, self._decode(line[len(prefix) : -1]))
                except errors.DECODING:
                    pass  # may only be formatted differently
        return self._envelope(line)

    def _envelope(self, line: memoryview) -> WatchEvent[V] | Deleted | Bookmark:
        envelope = decode(bytes(line), _Envelope)
        if envelope.type == BOOKMARK:
            meta = decode(envelope.object, _BookmarkObject).metadata
            return Bookmark(meta.resource_version, (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true")
        if envelope.type == "ERROR":
            raise errors.from_status(_status(envelope.object))
        if envelope.type == DELETED:
            return Deleted(decode(envelope.object, views.Identified).metadata)
        return self._event(envelope)

    def _event(self, envelope: _Envelope) -> WatchEvent[V] | Deleted:
        try:
            return WatchEvent(envelope.type, self._decode(envelope.object))
        except errors.DECODING as error:
            # As in a list, an object that does not fit its view is skipped; its earlier version must not stay.
            _log.warning("a %s was skipped, it does not fit its view: %s", self._kind, error)
            return Deleted(decode(envelope.object, views.Identified).metadata)


def _status(body: Any) -> errors.Status:
    status = errors.read_status(body)
    status.code = status.code or 500
    return status


async def watch(
    client: Client,
    resource: Resource[V],
    *,
    namespace: str,
    params: Params,
    silence_seconds: float,
    gather_seconds: float = GATHER_SECONDS,
) -> AsyncGenerator[list[WatchEvent[V] | Deleted | Bookmark], None]:
    """Yield the events of one request, in batches as they arrive, until the stream ends."""
    read = EventDecoder(resource)
    query = {**params, "watch": "true", "allowWatchBookmarks": "true"}
    chunks = client.stream(
        resource, query, namespace=namespace, silence_seconds=silence_seconds, gather_seconds=gather_seconds
    )
    async with contextlib.aclosing(chunks), contextlib.aclosing(lines(chunks)) as batches:
        async for batch in batches:
            events: list[WatchEvent[V] | Deleted | Bookmark] = []
            try:
                for line in batch:
                    events.append(read(line))  # noqa: PERF401 - what came before an error is kept
            except errors.KubeError:
                if events:
                    yield events
                raise
            yield events
