"""Keeps a store equal to a collection of the API server, whatever happens in between.

Three layers. `watching.watch` is one request. `Reflector._follow` is continuous: request after request from the
last version seen, through cut, silent and expired streams and errors. `Reflector.run` is forever: it begins
with all there is, follows, and begins again when the server has forgotten the version (410) or goes on failing.

Beginning uses a streaming list where the server has it, and list then watch where it does not. Either way the
store is compared with what there is now, so that deletions nobody told us of are seen.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator
from typing import Generic

import msgspec

from simgpu.kube import errors, watching
from simgpu.kube.client import Client, Params, selectors
from simgpu.kube.resources import Resource, V
from simgpu.kube.store import Store, key_of

_log = logging.getLogger(__name__)


class Pace(msgspec.Struct, frozen=True):
    """How a reflector spends its patience."""

    first_seconds: float = 0.1
    longest_seconds: float = 5.0
    silence_seconds: float = 150.0  # bookmarks come about once a minute: two missed, and the stream is dead
    request_seconds: int = 300  # the server ends a watch after this long
    failures: int = 5  # in a row, without an event between them: then begin again

    def pause(self, failure: int) -> float:
        """Seconds to wait after the n-th failure in a row."""
        return min(self.first_seconds * 2.0**failure, self.longest_seconds) * random.uniform(0.5, 1.0)


class Counters(msgspec.Struct):
    """What a reflector has been through."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0


class Reflector(Generic[V]):
    """Mirrors one collection, or the part of it that selectors choose."""

    def __init__(
        self,
        client: Client,
        resource: Resource[V],
        store: Store[V],
        *,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        pace: Pace | None = None,
        streaming: bool = True,
    ) -> None:
        self.store = store
        self.counters = Counters()
        self.last_contact = time.monotonic()
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._pace = pace or Pace()
        self._streaming = streaming
        self._version = ""
        self._fruitless = 0

    async def run(self) -> None:
        """Mirror until cancelled."""
        while True:
            try:
                await self._begin()
                await self._follow()
            except errors.Gone:
                _log.info(
                    "%s: the server has forgotten version %s, listing again", self._resource.plural, self._version
                )
            except errors.KubeError as error:
                await self._pause(error)

    async def _begin(self) -> None:
        """Fill the store with all there is now."""
        self.counters.lists += 1
        if self._streaming:
            try:
                await self._stream_list()
            except errors.ConnectError:
                raise
            except errors.ApiError as error:
                # The server may not know streaming lists, or fail in the middle of one.
                _log.info("%s: no streaming list (%s), listing in pages", self._resource.plural, error)
                self._streaming = not isinstance(error, errors.BadRequest | errors.Invalid)
                await self._page_list()
        else:
            await self._page_list()
        self._fruitless = 0

    async def _page_list(self) -> None:
        listing = await self._client.listing(
            self._resource, namespace=self._namespace, labels=self._labels, fields=self._fields
        )
        self.last_contact = time.monotonic()
        self._version = listing.resource_version
        self.store.replace(listing.items)

    async def _stream_list(self) -> None:
        """A watch that first sends all there is, then a bookmark that says so, and then goes on as a watch."""
        params = self._params() | {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        initial: dict[str, V] | None = {}
        try:
            async for batch in self._watch(params):
                for event in batch:
                    initial = self._collect(initial, event)
        except errors.Gone:
            raise
        except errors.KubeError as error:
            if initial is not None:
                raise
            await self._pause(error)  # the list is complete; the watch goes on in a request of its own
        if initial is not None:
            raise errors.ConnectError(f"{self._resource.plural}: the streaming list was cut off")

    def _collect(
        self, initial: dict[str, V] | None, event: watching.WatchEvent[V] | watching.Bookmark
    ) -> dict[str, V] | None:
        """Gather what the server sends first; None once that is complete and in the store."""
        if initial is None:
            self._apply(event)
        elif not isinstance(event, watching.Bookmark):
            if event.type == watching.DELETED:
                initial.pop(key_of(event.object), None)
            else:
                initial[key_of(event.object)] = event.object
        elif event.initial_events_end:
            self._version = event.resource_version
            self.store.replace(initial.values())
            return None
        return initial

    async def _follow(self) -> None:
        """Watch from the last version on, again and again."""
        while True:
            before = self.counters.events
            try:
                async for batch in self._watch(self._params() | {"resourceVersion": self._version}):
                    for event in batch:
                        self._apply(event)
                    self._fruitless = 0
            except errors.Gone:
                raise
            except errors.KubeError as error:
                if self._fruitless >= self._pace.failures and not isinstance(error, errors.ConnectError):
                    raise
                await self._pause(error)
            else:
                if self.counters.events == before:  # an end without an event may be a server that is going away
                    await asyncio.sleep(self._pace.first_seconds)

    async def _pause(self, error: errors.KubeError) -> None:
        self.counters.failures += 1
        wait = self._pace.pause(self._fruitless)
        asked = getattr(error, "retry_after", None)
        self._fruitless += 1
        _log.log(
            logging.INFO if self._fruitless < self._pace.failures else logging.WARNING,
            "%s: %s; trying again in %.1f s",
            self._resource.plural,
            error,
            wait,
        )
        await asyncio.sleep(max(wait, min(asked or 0.0, self._pace.longest_seconds)))

    def _apply(self, event: watching.WatchEvent[V] | watching.Bookmark) -> None:
        if isinstance(event, watching.Bookmark):
            self._version = event.resource_version
            return
        self.counters.events += 1
        view = event.object
        self._version = view.metadata.resource_version
        if event.type == watching.DELETED:
            self.store.remove(key_of(view))
        else:
            self.store.put(view)

    async def _watch(self, params: Params) -> AsyncGenerator[list[watching.WatchEvent[V] | watching.Bookmark], None]:
        self.counters.watches += 1
        events = watching.watch(
            self._client,
            self._resource,
            namespace=self._namespace,
            params=params,
            silence_seconds=self._pace.silence_seconds,
        )
        try:
            async for batch in events:
                self.last_contact = time.monotonic()
                yield batch
        finally:
            await events.aclose()

    def _params(self) -> Params:
        # Spread over time, so that a thousand watches do not all end in one second.
        seconds = round(self._pace.request_seconds * random.uniform(1.0, 2.0))
        return selectors(self._labels, self._fields) | {"timeoutSeconds": str(seconds)}
