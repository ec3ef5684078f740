"""Keeps a store in sync with a collection of the API server, through any failure.

Three layers. `watching.watch` is one request. `Reflector._follow` watches continuously: request after request from the
last resource version, through broken, silent and expired streams and errors. `Reflector.run` never ends: it lists,
follows, and lists again when the resource version has expired (410) or watches keep failing.

The list is a streaming list if the server supports it, else list and watch. Either way the store is compared with the
list, so that deletions missed by the watch are applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Generic

import msgspec

from simgpu.kube import errors, watching
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client, selectors
from simgpu.kube.resources import Resource, V
from simgpu.kube.store import Store, key_of, key_of_identity
from simgpu.kube.wire import GATHER_SECONDS, Params

_log = logging.getLogger(__name__)


class Pace(msgspec.Struct, frozen=True):
    """Timeouts and retries of a reflector."""

    backoff: Backoff = Backoff(first_seconds=0.1, max_seconds=5.0)
    silence_seconds: float = 150.0  # without an event; bookmarks come once a minute, so two were missed
    request_seconds: int = 300  # the least time after which the server ends a watch; at most twice as long
    gather_seconds: float = GATHER_SECONDS  # between reads; a shorter time makes events known earlier, at more CPU time
    failures: int = 5  # watches that fail in a row before listing again


class ReflectorCounters(msgspec.Struct):
    """How many requests, events and failures a reflector had."""

    lists: int = 0
    events: int = 0
    failures: int = 0


class Reflector(Generic[V]):
    """Mirrors one collection, or the objects that match its selectors, into a store."""

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
        self.counters = ReflectorCounters()
        self.problem = ""  # the last failure
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._pace = pace or Pace()
        self._streaming = streaming
        self._broken_streams = 0
        self._version = ""
        self._fruitless = 0  # failures since the last event: for the back-off
        self._since_list = 0  # failures since the last list: for when to list again

    async def run(self) -> None:
        """Mirror until cancelled."""
        while True:
            try:
                await self._begin()
                await self._follow()
            except errors.KubeError as error:
                await self._pause(error)

    async def _begin(self) -> None:
        """List the collection into the store."""
        self.counters.lists += 1
        if not self._streaming or not await self._stream_list():
            await self._page_list()
        self._since_list = 0

    async def _page_list(self) -> None:
        listing = await self._client.listing(
            self._resource, namespace=self._namespace, labels=self._labels, fields=self._fields
        )
        self._version = listing.resource_version
        self.store.replace(listing.items)

    async def _stream_list(self) -> bool:
        """Watch with initial events: all objects, a bookmark that ends them, then changes.

        False if the list was not complete: the server rejected the request, failed, or sent no such bookmark.
        """
        params = self._params() | {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        initial = _Initial[V]()
        try:
            await self._watch(params, initial)
        except (errors.ConnectError, errors.TooManyRequests):
            if not initial.complete:
                self._broken_streams += 1
                self._streaming = self._broken_streams < self._pace.failures
                raise
        except errors.ApiError as error:
            if initial.complete:
                if isinstance(error, errors.Gone):
                    raise
                await self._pause(error)  # the list is complete; the next watch is a request of its own
            else:
                _log.info("%s: no streaming list (%s), listing in pages", self._resource.plural, error)
                self._streaming = not isinstance(error, errors.BadRequest | errors.Invalid)
        return initial.complete

    async def _follow(self) -> None:
        """Watch from the last resource version, request after request."""
        while True:
            before = self.counters.events
            try:
                await self._watch(self._params() | {"resourceVersion": self._version})
            except errors.Gone:
                _log.info("%s: resource version %s has expired, listing again", self._resource.plural, self._version)
                raise
            except errors.KubeError as error:
                self._since_list += 1
                if self._since_list >= self._pace.failures and not isinstance(error, errors.ConnectError):
                    raise
                await self._pause(error)
            else:
                if self.counters.events == before:  # no events: the server may be shutting down
                    await self._pause(None)

    async def _watch(self, params: Params, initial: _Initial[V] | None = None) -> None:
        """Apply the events of one request until it ends."""
        events = watching.watch(
            self._client,
            self._resource,
            namespace=self._namespace,
            params=params,
            silence_seconds=self._pace.silence_seconds,
            gather_seconds=self._pace.gather_seconds,
        )
        async with contextlib.aclosing(events):
            async for batch in events:
                for event in batch:
                    if initial is None or initial.complete:
                        self._apply(event)
                    elif initial.collect(event):
                        self._version = initial.version
                        self.store.replace(initial.objects.values())

    def _apply(self, event: watching.WatchEvent[V] | watching.Deleted | watching.Bookmark) -> None:
        self._fruitless = self._since_list = 0
        if isinstance(event, watching.Bookmark):
            self._version = event.resource_version
            return
        self.counters.events += 1
        if isinstance(event, watching.Deleted):
            self._version = event.metadata.resource_version
            self.store.remove(key_of_identity(event.metadata))
        else:
            self._version = event.object.metadata.resource_version
            self.store.put(event.object)

    async def _pause(self, error: errors.KubeError | None) -> None:
        """Wait before a retry; the first 410 after a success is retried at once."""
        if isinstance(error, errors.Gone) and self._fruitless == 0:
            self._fruitless += 1
            return
        wait = max(self._pace.backoff.pause(self._fruitless), getattr(error, "retry_after", None) or 0.0)
        wait = min(wait, self._pace.backoff.max_seconds)
        self._fruitless += 1
        if error is not None:
            self.counters.failures += 1
            self.problem = str(error)
            level = logging.WARNING if self._fruitless >= self._pace.failures else logging.INFO
            _log.log(level, "%s: %s; retry in %.1f s", self._resource.plural, error, wait)
        await asyncio.sleep(wait)

    def _params(self) -> Params:
        # Jitter, so that a thousand watches do not all end in the same second.
        seconds = round(self._pace.request_seconds * random.uniform(1.0, 2.0))
        return selectors(self._labels, self._fields) | {"timeoutSeconds": str(seconds)}


class _Initial(Generic[V]):
    """The initial events of a streaming list, before its bookmark."""

    def __init__(self) -> None:
        self.objects: dict[str, V] = {}
        self.version = ""
        self.complete = False

    def collect(self, event: watching.WatchEvent[V] | watching.Deleted | watching.Bookmark) -> bool:
        """Add an event. True if it was the bookmark that ends the list."""
        if isinstance(event, watching.WatchEvent):
            self.objects[key_of(event.object)] = event.object
        elif isinstance(event, watching.Deleted):
            self.objects.pop(key_of_identity(event.metadata), None)
        elif event.initial_events_end:
            self.version = event.resource_version
            self.complete = True
        return self.complete
