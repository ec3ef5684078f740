"""Leader election with a Lease: of several processes one leads, and another takes over when it goes.

A leader that stops hands the lease back, and whoever waits is woken by a watch, so a clean hand-over takes
moments; after a crash it takes as long as the lease lasts. Clocks of different machines are never compared: what
counts is how long we ourselves have not seen the lease change.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from simgpu.kube import errors, resources, watching
from simgpu.kube.client import Client
from simgpu.kube.views import Lease

_log = logging.getLogger(__name__)


class Terms(msgspec.Struct, frozen=True):
    """The times of an election."""

    lease_seconds: int = 15
    renew_seconds: float = 5.0
    give_up_seconds: float = 10.0  # a leader that could not renew for this long stops leading
    retry_seconds: float = 2.0

    @classmethod
    def lasting(cls, seconds: int) -> Terms:
        """The terms of a lease that lasts so long, in the usual proportions."""
        return cls(seconds, renew_seconds=seconds / 3, give_up_seconds=seconds * 2 / 3, retry_seconds=seconds * 2 / 15)


class Election:
    """One candidate."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        identity: str,
        terms: Terms | None = None,
        utc_now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self.leading = False
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._terms = terms or Terms()
        self._utc_now = utc_now
        self._seen_version = ""
        self._seen_at = 0.0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to be elected, then `lead` until it returns. Losing the lease cancels it and waits again."""
        while True:
            try:
                lease, since = await self._acquire()
            except asyncio.CancelledError:
                await self._release()  # a request of ours may have come through all the same
                raise
            _log.info("%s leads %s", self._identity, self._name)
            self.leading = True
            try:
                if await self._lead(lead, lease, since):
                    return
            finally:
                self.leading = False
            _log.warning("%s lost %s", self._identity, self._name)

    async def _lead(self, lead: Callable[[], Awaitable[None]], lease: Lease, since: float) -> bool:
        """Lead and renew side by side. True if the work ended by itself, False if the lease was lost."""
        work = asyncio.ensure_future(lead())
        renewing = asyncio.ensure_future(self._renew_until_lost(lease, since))
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            elif renewing.done() and renewing.exception() is not None:
                renewing.result()
            return work.done()
        finally:
            lost = renewing.done()
            self.leading = not lost  # who is told to stop, and still leads, may finish what only a leader may
            for task in (work, renewing):
                task.cancel()
            await asyncio.gather(work, renewing, return_exceptions=True)
            if not lost:
                await self._release()

    # Waiting

    async def _acquire(self) -> tuple[Lease, float]:
        """The lease once it is ours, and since when: from before we asked, as the answer may have taken long."""
        loop = asyncio.get_running_loop()
        while True:
            asked = loop.time()
            try:
                async with asyncio.timeout(self._terms.give_up_seconds):
                    lease = await self._client.find(resources.LEASES, self._name, namespace=self._namespace)
                    if lease is None:
                        return await self._create(), asked
                    wait = self._seconds_left(lease)
                    if wait <= 0:
                        return await self._take(lease), asked
            except (errors.KubeError, TimeoutError) as error:
                # A conflict means that somebody was faster: look again soon, but not at once.
                _log.info("%s does not lead %s: %s", self._identity, self._name, error)
                factor = 0.25 if isinstance(error, errors.Conflict) else 1.0
                await asyncio.sleep(self._jittered(self._terms.retry_seconds * factor))
                continue
            await self._until_free(lease, wait)

    def _seconds_left(self, lease: Lease) -> float:
        """How long the holder may still be alive, judged by when we last saw the lease change."""
        if not lease.spec.holder_identity or lease.spec.holder_identity == self._identity:
            return 0.0  # ours: the answer to taking it was lost
        now = asyncio.get_running_loop().time()
        if lease.metadata.resource_version != self._seen_version:
            self._seen_version, self._seen_at = lease.metadata.resource_version, now
        lasts = lease.spec.lease_duration_seconds or self._terms.lease_seconds
        return self._seen_at + lasts - now

    async def _until_free(self, lease: Lease, seconds: float) -> None:
        """Sleep until the lease may be free: it is handed back or deleted, or its time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.05)):
                try:
                    free = await self._handed_back(lease)
                except errors.KubeError:
                    free = False
                if not free:  # the watch ended early
                    await asyncio.sleep(self._jittered(self._terms.retry_seconds))

    async def _handed_back(self, lease: Lease) -> bool:
        params = {
            "fieldSelector": f"metadata.name={self._name}",
            "resourceVersion": lease.metadata.resource_version,
        }
        events = watching.watch(
            self._client, resources.LEASES, namespace=self._namespace, params=params, silence_seconds=90.0
        )
        async with contextlib.aclosing(events):
            async for batch in events:
                for event in batch:
                    if isinstance(event, watching.Gone):
                        return True
                    if isinstance(event, watching.WatchEvent):
                        if not event.object.spec.holder_identity:
                            return True
                        self._seconds_left(event.object)  # takes note that the holder is alive
        return False

    def _jittered(self, seconds: float) -> float:
        return seconds * random.uniform(0.8, 1.2)

    # Writing

    async def _create(self) -> Lease:
        body = {"metadata": {"name": self._name}, "spec": self._spec(transitions=0, acquired=True)}
        return await self._client.create(resources.LEASES, body, namespace=self._namespace)

    async def _take(self, lease: Lease) -> Lease:
        transitions = (lease.spec.lease_transitions or 0) + 1
        return await self._write(lease, self._spec(transitions=transitions, acquired=True))

    async def _write(self, lease: Lease, spec: dict[str, Any]) -> Lease:
        """Change the lease only if it is still the one that we looked at."""
        patch = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        return await self._client.merge_patch(resources.LEASES, self._name, patch, namespace=self._namespace)

    def _spec(self, *, transitions: int | None = None, acquired: bool = False) -> dict[str, Any]:
        now = self._utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._terms.lease_seconds,
            "renewTime": now,
        }
        if acquired:
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        return spec

    async def _renew_until_lost(self, lease: Lease, since: float) -> None:
        """Returns when the lease is somebody else's or could not be renewed in time."""
        loop = asyncio.get_running_loop()
        renewed, pause = since, self._terms.renew_seconds
        while (left := renewed + self._terms.give_up_seconds - loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            asked = loop.time()
            try:
                async with asyncio.timeout_at(renewed + self._terms.give_up_seconds):
                    lease = await self._renew(lease)
            except _Lost:
                return
            except (errors.KubeError, TimeoutError) as error:
                _log.info("%s could not renew %s: %s", self._identity, self._name, error)
                pause = self._jittered(self._terms.retry_seconds / 4)
            else:
                renewed, pause = asked, self._terms.renew_seconds

    async def _renew(self, lease: Lease) -> Lease:
        try:
            return await self._write(lease, self._spec())
        except (errors.Conflict, errors.NotFound):
            now = await self._client.find(resources.LEASES, self._name, namespace=self._namespace)
            if now is None or now.spec.holder_identity != self._identity:
                raise _Lost from None
            return await self._write(now, self._spec())

    async def _release(self) -> None:
        """Hand the lease back, if it is ours and the server answers soon."""
        with contextlib.suppress(errors.KubeError, TimeoutError):
            async with asyncio.timeout(2.0):
                lease = await self._client.find(resources.LEASES, self._name, namespace=self._namespace)
                if lease is not None and lease.spec.holder_identity == self._identity:
                    await self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})


class _Lost(Exception):
    """Somebody else holds the lease."""
