"""Writes what controllers want into the API, no more and no faster than needed.

A controller says what it wants of an object, as often as it likes. The writer drops what would change nothing,
folds what waits for the same object into one request, keeps within a rate that urgent writes do not count
against, and tries again what failed for a reason that may pass. `lag` says how far behind it is.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from simgpu.kube import errors
from simgpu.kube.client import Client
from simgpu.kube.queue import Backoff
from simgpu.kube.resources import Resource

_log = logging.getLogger(__name__)

Patch = dict[str, Any]
_REMEMBERED = 200_000


class Target(msgspec.Struct, frozen=True):
    """The object, or the part of it, that a write is about."""

    resource: Resource[Any]
    name: str
    namespace: str = ""
    subresource: str = ""


class _Write(msgspec.Struct):
    """What waits to be written to one target."""

    patches: list[Patch]  # none deletes; more than one where they cannot be folded
    since: float
    urgent: bool
    apply: bool
    failed: Callable[[errors.KubeError], None] | None
    tries: int = 0


class Counters(msgspec.Struct):
    """What became of the writes."""

    wanted: int = 0
    unchanged: int = 0
    folded: int = 0
    written: int = 0
    failed: int = 0


class Writer:
    """One for each client; `run` it beside the controllers."""

    def __init__(
        self,
        client: Client,
        *,
        manager: str,
        per_second: float | None = None,
        burst: int = 1,
        in_flight: int = 16,
        attempts: int = 8,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = Counters()
        self._client = client
        self._manager = manager
        self._rate = _Rate(per_second, burst)
        self._in_flight = in_flight
        self._attempts = attempts
        self._backoff = backoff or Backoff(first_seconds=0.1, longest_seconds=10.0)
        self._clock = clock
        # A write waits in one of four places, each in the order of coming.
        self._urgent: dict[Target, _Write] = {}
        self._normal: dict[Target, _Write] = {}
        self._behind: dict[Target, _Write] = {}  # the same target is being written
        self._failing: dict[Target, tuple[float, _Write]] = {}  # until its next try
        self._writing: dict[Target, float] = {}
        self._last: collections.OrderedDict[Target, Patch] = collections.OrderedDict()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Writes that wait or are on their way."""
        waiting = len(self._urgent) + len(self._normal) + len(self._behind) + len(self._failing)
        return waiting + len(self._writing)

    @property
    def lag(self) -> float:
        """Seconds since the oldest write that is not yet done was asked for."""
        waiting = (*self._urgent.values(), *self._normal.values(), *self._behind.values())
        failing = (write for _, write in self._failing.values())
        ages = [write.since for write in (*waiting, *failing)] + list(self._writing.values())
        return self._clock() - min(ages) if ages else 0.0

    def merge(
        self,
        target: Target,
        patch: Patch,
        *,
        observed: msgspec.Struct | None = None,
        urgent: bool = False,
        failed: Callable[[errors.KubeError], None] | None = None,
    ) -> bool:
        """Merge `patch` into the object. False if that would change nothing of what `observed` shows.

        Without `observed`, a patch equal to the last one written to the target counts as no change.
        """
        return self._want(target, patch, observed, _Write([patch], self._clock(), urgent, apply=False, failed=failed))

    def apply(
        self,
        target: Target,
        body: Patch,
        *,
        observed: msgspec.Struct | None = None,
        urgent: bool = False,
        failed: Callable[[errors.KubeError], None] | None = None,
    ) -> bool:
        """Server-side apply: make the object, or own exactly these fields of it."""
        return self._want(target, body, observed, _Write([body], self._clock(), urgent, apply=True, failed=failed))

    def delete(self, target: Target, *, failed: Callable[[errors.KubeError], None] | None = None) -> None:
        """Delete the object. Outside the rate: what should not be there goes at once."""
        self.counters.wanted += 1
        self._last.pop(target, None)
        self._enqueue(target, _Write([], self._clock(), urgent=True, apply=False, failed=failed))

    def forget(self, target: Target) -> None:
        """The object is gone, or somebody else changed it: do not rely on what was written last."""
        self._last.pop(target, None)

    async def drained(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()

    def _want(self, target: Target, patch: Patch, observed: msgspec.Struct | None, write: _Write) -> bool:
        self.counters.wanted += 1
        if self._waiting(target) is None and target not in self._writing:
            same = self._last.get(target) == patch if observed is None else not differs(observed, patch)
            if same:
                self.counters.unchanged += 1
                return False
        self._enqueue(target, write)
        return True

    def _waiting(self, target: Target) -> _Write | None:
        failing = self._failing.get(target)
        if failing is not None:
            return failing[1]
        return self._urgent.get(target) or self._normal.get(target) or self._behind.get(target)

    def _enqueue(self, target: Target, write: _Write) -> None:
        waiting = self._waiting(target)
        if waiting is not None:
            self.counters.folded += 1
            write.since = waiting.since
            write.urgent = write.urgent or waiting.urgent
            _put_before(waiting, write)
            self._failing.pop(target, None)
        self._line_up(target, write)
        self._idle.clear()
        self._wake.set()

    def _line_up(self, target: Target, write: _Write) -> None:
        if target in self._writing:
            self._behind[target] = write
        elif write.urgent:
            self._normal.pop(target, None)
            self._urgent[target] = write
        else:
            self._normal[target] = write

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            target, write = await self._next()
            self._writing[target] = write.since
            try:
                await self._write(target, write)
            finally:
                del self._writing[target]
                behind = self._behind.pop(target, None)
                if behind is not None:
                    self._line_up(target, behind)
                if not self.pending:
                    self._idle.set()
                self._wake.set()

    async def _next(self) -> tuple[Target, _Write]:
        while True:
            now = self._clock()
            self._retry_due(now)
            wait = self._rate.wait(now)
            if self._urgent:
                return _pop_first(self._urgent)
            if self._normal and wait <= 0:
                self._rate.take(now)
                return _pop_first(self._normal)
            waits = [wait] if self._normal else []
            waits += [due - now for due, _ in self._failing.values()]
            self._wake.clear()
            try:
                async with asyncio.timeout(min(waits) if waits else None):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _retry_due(self, now: float) -> None:
        for target in [target for target, (due, _) in self._failing.items() if due <= now]:
            _, write = self._failing.pop(target)
            self._line_up(target, write)

    async def _write(self, target: Target, write: _Write) -> None:
        try:
            await self._send(target, write)
        except errors.KubeError as error:
            self._failed(target, write, error)
        else:
            self.counters.written += 1
            if len(write.patches) == 1:
                self._remember(target, write.patches[0])
            else:
                self._last.pop(target, None)

    async def _send(self, target: Target, write: _Write) -> None:
        client, resource, name, namespace = self._client, target.resource, target.name, target.namespace
        if not write.patches:
            await client.delete(resource, name, namespace=namespace)
        for patch in write.patches:
            if write.apply:
                await client.apply(
                    resource,
                    name,
                    patch,
                    manager=self._manager,
                    namespace=namespace,
                    subresource=target.subresource,
                    force=True,
                )
            else:
                await client.merge_patch(resource, name, patch, namespace=namespace, subresource=target.subresource)

    def _failed(self, target: Target, write: _Write, error: errors.KubeError) -> None:
        self._last.pop(target, None)
        write.tries += 1
        if _may_pass(error) and write.tries < self._attempts:
            self._try_again(target, write)
            return
        self.counters.failed += 1
        _log.warning("%s %s could not be written: %s", target.resource.kind, target.name, error)
        if write.failed is not None:
            write.failed(error)

    def _try_again(self, target: Target, write: _Write) -> None:
        newer = self._behind.pop(target, None)
        if newer is not None:  # what came meanwhile is what counts, on top of what was not written
            _put_before(write, newer)
            newer.since, newer.tries = write.since, write.tries
            write = newer
        self._failing[target] = (self._clock() + self._backoff.pause(write.tries), write)

    def _remember(self, target: Target, patch: Patch) -> None:
        self._last[target] = patch
        self._last.move_to_end(target)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)


class _Rate:
    """A token bucket."""

    def __init__(self, per_second: float | None, burst: int) -> None:
        self._per_second = per_second
        self._burst = float(max(burst, 1))
        self._tokens = self._burst
        self._at: float | None = None

    def wait(self, now: float) -> float:
        """Seconds until a token is there."""
        if self._per_second is None:
            return 0.0
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        return 0.0 if self._tokens >= 1.0 - 1e-9 else (1.0 - self._tokens) / self._per_second

    def take(self, now: float) -> None:
        """Use a token up."""
        self.wait(now)
        self._tokens -= 1.0


def _pop_first(lane: dict[Target, _Write]) -> tuple[Target, _Write]:
    target = next(iter(lane))
    return target, lane.pop(target)


def _may_pass(error: errors.KubeError) -> bool:
    return isinstance(error, errors.ConnectError | errors.ServerError | errors.TooManyRequests | errors.Conflict)


def _put_before(earlier: _Write, later: _Write) -> None:
    """Let `later` do what `earlier` was to do as well; an apply or a delete makes what came before it void."""
    if later.apply or earlier.apply or not later.patches or not earlier.patches:
        return
    folded = fold(earlier.patches[-1], later.patches[0])
    joint = [earlier.patches[-1], later.patches[0]] if folded is None else [folded]
    later.patches = [*earlier.patches[:-1], *joint, *later.patches[1:]]


def fold(first: Patch, second: Patch) -> Patch | None:
    """One merge patch that does what `first` and then `second` do; None where no single patch can.

    That is where the first removes or overwrites what the second then merges into: "make it empty, then add" has
    no words in a merge patch.
    """
    folded = dict(first)
    for name, value in second.items():
        if isinstance(value, dict) and name in folded:
            before = folded[name]
            inner = fold(before, value) if isinstance(before, dict) else None
            if inner is None:
                return None
            value = inner  # noqa: PLW2901 - the folded value is the value
        folded[name] = value
    return folded


def differs(observed: msgspec.Struct, patch: Patch) -> bool:
    """Whether a merge patch would change what a view shows; fields that the view does not show count as changed."""
    return _differs(msgspec.to_builtins(observed), patch)


def _differs(observed: Any, patch: Patch) -> bool:
    if not isinstance(observed, dict):
        return True
    for name, value in patch.items():
        if value is None:
            if observed.get(name) is not None:
                return True
        elif isinstance(value, dict):
            if not value and observed.get(name) == {}:
                continue
            if name not in observed or _differs(observed[name], value):
                return True
        elif observed.get(name, _ABSENT) != value:
            return True
    return False


_ABSENT = object()
