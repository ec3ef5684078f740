"""Writes the desired state of objects to the API: deduplicated, joined, rate-limited and retried.

A controller requests writes as often as it likes. The writer drops those that change nothing, joins pending writes of
the same object into few requests, limits their rate (urgent ones are exempt), and retries transient failures.
Requests for one object and its sub-resources are sent one after the other: each sub-resource in the order of requests,
though a later write may be joined with one that is pending. `lag` is how far behind it is.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from simgpu.kube import client as kube_client
from simgpu.kube import errors, patches
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.last_writes import LastWrites
from simgpu.kube.operations import Failed, Operation, Render, Target, add_operation
from simgpu.kube.patches import Patch
from simgpu.kube.token_bucket import TokenBucket
from simgpu.kube.views import Object

_log = logging.getLogger(__name__)


class _Write(msgspec.Struct):
    """The pending operations on one object, in order."""

    operations: list[Operation]
    since: float
    urgent: bool
    tries: int = 0
    due: float = 0.0


class WriterCounters(msgspec.Struct):
    """How many writes were requested, and what became of them."""

    wanted: int = 0  # requested
    unchanged: int = 0  # dropped: no change
    folded: int = 0  # joined with a pending write
    written: int = 0
    failed: int = 0  # given up


class Writer:
    """Writes objects through one client while `run` runs.

    At most `per_second` writes a second (None: no limit) with a burst of `burst`, `in_flight` requests at a time, and
    `attempts` per operation. It counts in `counters`, which may be replaced by those of a writer before it.
    """

    def __init__(
        self,
        client: Client,
        *,
        manager: str,
        per_second: float | Callable[[], float] | None = None,
        burst: int = 1,
        in_flight: int = 16,
        attempts: int = 8,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = WriterCounters()
        self._client = client
        self._manager = manager
        self._rate = TokenBucket(per_second, burst) if per_second is not None else None
        self._in_flight = in_flight
        self._attempts = attempts
        self._backoff = backoff or Backoff(first_seconds=0.1, max_seconds=10.0)
        self._clock = clock
        self._last_writes = LastWrites()
        # A pending write is in one of four lanes, each in order of arrival.
        self._urgent: dict[Target, _Write] = {}
        self._normal: dict[Target, _Write] = {}
        self._behind: dict[Target, _Write] = {}  # the same object is being written now
        self._failing: dict[Target, _Write] = {}  # until the next attempt
        self._attempts_due: list[tuple[float, int, Target]] = []  # a heap; entries may be outdated
        self._sequence = 0
        self._writing: dict[Target, _Write] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """How many objects have writes that wait or are in flight."""
        waiting = len(self._urgent) + len(self._normal) + len(self._behind) + len(self._failing)
        return waiting + len(self._writing)

    @property
    def lag(self) -> float:
        """Seconds since the oldest unfinished write was requested."""
        lanes = (self._urgent, self._normal, self._behind, self._failing, self._writing)
        ages = [write.since for lane in lanes for write in lane.values()]
        return self._clock() - min(ages) if ages else 0.0

    def merge(
        self,
        target: Target,
        patch: Patch,
        *,
        observed: Object | None = None,
        urgent: bool = False,
        failed: Failed | None = None,
    ) -> bool:
        """Merge `patch` into the object. False if that would not change `observed`.

        Without `observed`, or with one from before our last write, a patch equal to the last one written to the target
        counts as no change.
        """
        return self._want(target, "merge", patch, observed=observed, urgent=urgent, failed=failed)

    def apply(self, target: Target, body: Patch, *, urgent: bool = False, failed: Failed | None = None) -> bool:
        """Server-side apply: create the object, or own exactly these fields. False if this was the last body applied.

        Only the server knows which fields we own, so a view cannot show whether an apply changes anything.
        """
        return self._want(target, "apply", body, observed=None, urgent=urgent, failed=failed)

    def apply_rendered(
        self, target: Target, render: Render, *, urgent: bool = False, failed: Failed | None = None
    ) -> None:
        """Server-side apply of a body that is made when its turn to be sent has come.

        As long as it waits, requesting it again costs next to nothing.
        """
        self.counters.wanted += 1
        write = self._waiting(target.object)
        if write is not None and (urgent <= write.urgent) and write.operations[-1].render is not None:
            self.counters.folded += 1
            return
        failures = [failed] if failed else []
        self._enqueue(target.object, Operation("apply", target.subresource, {}, failures, render), urgent=urgent)

    def delete(self, target: Target, *, failed: Failed | None = None) -> None:
        """Delete the object. Not rate-limited."""
        self.counters.wanted += 1
        self._last_writes.forget(target.object)
        self._enqueue(target.object, Operation("delete", "", {}, [failed] if failed else []), urgent=True)

    def forget(self, target: Target) -> None:
        """Forget the last write to an object, because it was deleted or changed by another client."""
        self._last_writes.forget(target.object)

    def settled(self, target: Target, observed: Object | None) -> bool:
        """Return whether no write of an object is pending and `observed`, unless None, includes the last one."""
        key = target.object
        waits = self._waiting(key) is not None or key in self._writing
        return not waits and (observed is None or not self._last_writes.is_newer(key, observed))

    async def drained(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()

    # Wanting

    def _want(
        self,
        target: Target,
        kind: Literal["merge", "apply"],
        body: Patch,
        *,
        observed: Object | None,
        urgent: bool,
        failed: Failed | None,
    ) -> bool:
        self.counters.wanted += 1
        key = target.object
        last = self._last(key, target.subresource)
        if last is not None:
            same = last.kind == kind and last.body == body
        elif observed is None or self._last_writes.is_newer(key, observed):
            same = self._last_writes.knows(target, kind, body)
        else:
            same = not patches.differs(observed, body)
        if same:
            self.counters.unchanged += 1
            return False
        body = msgspec.json.decode(msgspec.json.encode(body))  # a copy, and certain to be JSON
        self._enqueue(key, Operation(kind, target.subresource, body, [failed] if failed else []), urgent=urgent)
        return True

    def _last(self, key: Target, subresource: str) -> Operation | None:
        """Return the newest unfinished operation on an object's sub-resource; a delete is on all of them."""
        for write in (self._waiting(key), self._writing.get(key)):
            for operation in reversed(write.operations if write is not None else ()):
                if operation.subresource == subresource or operation.kind == "delete":
                    return operation
        return None

    def _waiting(self, key: Target) -> _Write | None:
        for lane in (self._urgent, self._normal, self._behind, self._failing):
            if key in lane:
                return lane[key]
        return None

    def _enqueue(self, key: Target, operation: Operation, *, urgent: bool) -> None:
        write = self._waiting(key)
        if write is None:
            write = _Write([operation], self._clock(), urgent)
            self._put_in_lane(key, write)
        else:
            before = len(write.operations)
            add_operation(write.operations, operation)
            self.counters.folded += before + 1 - len(write.operations)
            write.tries = min(write.tries, self._attempts // 2)  # the new operation gets attempts of its own
            if urgent and not write.urgent:
                write.urgent = True
                if self._normal.pop(key, None) is not None:
                    self._urgent[key] = write
        self._idle.clear()
        if write.urgent or self._rate is None or len(self._normal) <= 1:  # others wait for their turn in any case
            self._wake.set()

    def _put_in_lane(self, key: Target, write: _Write) -> None:
        if key in self._writing:
            self._behind[key] = write
        elif write.due > self._clock():
            self._failing[key] = write
            self._sequence += 1
            heapq.heappush(self._attempts_due, (write.due, self._sequence, key))
        elif write.urgent:
            self._urgent[key] = write
        else:
            self._normal[key] = write

    # Writing

    async def run(self) -> None:
        """Write until cancelled. Unfinished writes stay pending for the next `run`."""
        slots = asyncio.Semaphore(self._in_flight)
        async with asyncio.TaskGroup() as group:
            while True:
                await slots.acquire()
                key, write = await self._next()
                self._writing[key] = write
                group.create_task(self._finish(key, write)).add_done_callback(lambda _task: slots.release())

    async def _finish(self, key: Target, write: _Write) -> None:
        """Send a write, and put back what is left of it."""
        try:
            await self._write(key, write)
        finally:
            del self._writing[key]
            self._put_back(key, write)
            if not self.pending:
                self._idle.set()
            self._wake.set()

    def _put_back(self, key: Target, write: _Write) -> None:
        """Enqueue the unfinished operations of a write, followed by those requested meanwhile."""
        newer = self._behind.pop(key, None)
        if newer is not None:
            if not write.operations:
                write.since = newer.since
            for operation in newer.operations:
                add_operation(write.operations, operation)
            write.urgent = write.urgent or newer.urgent
        if write.operations:
            self._put_in_lane(key, write)

    async def _next(self) -> tuple[Target, _Write]:
        while True:
            now = self._clock()
            self._promote(now)
            if self._urgent:
                return _pop_first(self._urgent)
            wait = self._rate.wait(now) if self._rate is not None and self._normal else 0.0
            if self._normal and wait <= 0:
                if self._rate is not None:
                    self._rate.take(now)
                return _pop_first(self._normal)
            waits = [wait] if self._normal else []
            waits += [self._attempts_due[0][0] - now] if self._attempts_due else []
            self._wake.clear()
            try:
                async with asyncio.timeout(min(waits) if waits else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _promote(self, now: float) -> None:
        """Put writes whose next attempt is due back into their lanes."""
        while self._attempts_due and self._attempts_due[0][0] <= now:
            due, _, key = heapq.heappop(self._attempts_due)
            write = self._failing.get(key)
            if write is not None and write.due == due:
                self._put_in_lane(key, self._failing.pop(key))

    async def _write(self, key: Target, write: _Write) -> None:
        """Send the operations in order; finished ones are removed from the list."""
        while write.operations:
            operation = write.operations[0]
            target = msgspec.structs.replace(key, subresource=operation.subresource)
            if operation.render is not None:
                try:
                    body = operation.render()
                except Exception as error:  # noqa: BLE001 - what one object cannot be made of must not stop others
                    _log.exception("%s %s could not be made", target.resource.kind, target.name)
                    self._give_up(target, operation, errors.KubeError(str(error)))
                    body = None
                if body is None:
                    self.counters.unchanged += 1
                    if self._rate is not None and not write.urgent:
                        self._rate.give_back()
                    write.operations.pop(0)
                    continue
                operation.body = body
            self._last_writes.note(target, operation.kind, operation.body)
            try:
                await self._send(target, operation)
            except errors.KubeError as error:
                self._last_writes.forget(key)
                if _may_pass(error) and write.tries + 1 < self._attempts:
                    write.tries += 1
                    write.due = self._clock() + self._backoff.pause(write.tries)
                    return
                self._give_up(target, operation, error)
            else:
                self.counters.written += 1
            write.operations.pop(0)
            write.tries, write.due = 0, 0.0

    def _give_up(self, target: Target, operation: Operation, error: errors.KubeError) -> None:
        self.counters.failed += 1
        _log.warning("%s %s could not be written: %s", target.resource.kind, target.name, error)
        for failed in operation.failed:
            try:
                failed(error)
            except Exception:  # noqa: BLE001 - the other callbacks still have to run
                _log.exception("the failure callback raised")

    async def _send(self, target: Target, operation: Operation) -> None:
        client, resource, name, namespace = self._client, target.resource, target.name, target.namespace
        if operation.kind == "delete":
            await client.delete(resource, name, namespace=namespace)
            return
        params, data = None, msgspec.json.encode(operation.body)
        if operation.kind == "apply":
            params = {"fieldManager": self._manager, "force": "true"}
            data = kube_client.encode_apply(resource, name, operation.body)
        answer = await client.patch(
            resource,
            name,
            data,
            kind=operation.kind,
            namespace=namespace,
            subresource=target.subresource,
            params=params,
        )
        self._last_writes.written(target.object, answer)


def _pop_first(lane: dict[Target, _Write]) -> tuple[Target, _Write]:
    key = next(iter(lane))
    return key, lane.pop(key)


def _may_pass(error: errors.KubeError) -> bool:
    return isinstance(error, (*errors.TRANSIENT, errors.Conflict))
