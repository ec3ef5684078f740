"""Leader election with a Lease: one of several processes leads, and another takes over when it ends.

A leader that stops releases the lease, and candidates watch it, so a clean hand-over takes moments; after a crash it
takes as long as the lease lasts. Expiry is measured from when this process last saw the lease change, not by comparing
clocks of different machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from simgpu.kube import errors, resources, watching
from simgpu.kube.client import Client
from simgpu.kube.lease_time import LeaseTime
from simgpu.kube.views import Lease

_log = logging.getLogger(__name__)


class Terms(msgspec.Struct, frozen=True):
    """The timing of an election."""

    lease_seconds: int = 15  # how long the lease is valid after a renewal
    renew_seconds: float = 5.0  # between renewals
    give_up_seconds: float = 10.0  # a leader that could not renew for this long stops leading
    retry_seconds: float = 2.0  # after a failed request

    @classmethod
    def lasting(cls, seconds: int) -> Terms:
        """Return terms for a lease of `seconds`, in the default proportions."""
        return cls(seconds, renew_seconds=seconds / 3, give_up_seconds=seconds * 2 / 3, retry_seconds=seconds * 2 / 15)


class Election:
    """One candidate of an election; `leading` is whether it holds the lease, `term` the number of its last lead."""

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        namespace: str,
        identity: str,
        terms: Terms | None = None,
        time: LeaseTime | None = None,
    ) -> None:
        self.leading = False
        self.term = 0
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._terms = terms or Terms()
        self._time = time or LeaseTime()
        self._seen_version = ""
        self._seen_at = 0.0

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to be elected, then run `lead` until it returns. Losing the lease cancels it and waits again."""
        while True:
            try:
                lease, since = await self._acquire()
            except asyncio.CancelledError:
                await self._release()  # our last request may have succeeded
                raise
            _log.info("%s leads %s", self._identity, self._name)
            self.leading, self.term = True, max(0, lease.spec.lease_transitions or 0)
            try:
                if await self._lead(lead, lease, since):
                    return
            finally:
                self.leading = False
            _log.warning("%s lost %s", self._identity, self._name)

    async def _lead(self, lead: Callable[[], Awaitable[None]], lease: Lease, since: float) -> bool:
        """Run `lead` and renew the lease meanwhile. True if `lead` returned, False if the lease was lost."""
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
            self.leading = not lost  # while it is cancelled, `lead` may still finish what only a leader may do
            for task in (work, renewing):
                task.cancel()
            await asyncio.gather(work, renewing, return_exceptions=True)
            if not lost:
                await self._release()

    # Waiting

    async def _acquire(self) -> tuple[Lease, float]:
        """Return the lease once we hold it, and since when: from before the request, as the response may be slow."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                async with asyncio.timeout(self._terms.give_up_seconds):
                    lease = await self._client.find(resources.LEASES, self._name, namespace=self._namespace)
                    if lease is None:
                        return await self._create(), started
                    wait = self._seconds_left(lease)
                    if wait <= 0:
                        return await self._take(lease), started
            except (errors.KubeError, TimeoutError) as error:
                # A conflict means that another candidate was faster: retry soon, but not at once.
                _log.info("%s does not lead %s: %s", self._identity, self._name, error)
                factor = 0.25 if isinstance(error, errors.Conflict) else 1.0
                await asyncio.sleep(self._jittered(self._terms.retry_seconds * factor))
                continue
            await self._until_free(lease, wait)

    def _seconds_left(self, lease: Lease) -> float:
        """Return how many seconds the holder's lease is still valid, counted from when we last saw it change."""
        if not lease.spec.holder_identity or lease.spec.holder_identity == self._identity:
            return 0.0  # ours: the response to acquiring it was lost
        now = asyncio.get_running_loop().time()
        if lease.metadata.resource_version != self._seen_version:
            self._seen_version, self._seen_at = lease.metadata.resource_version, now
        lasts = lease.spec.lease_duration_seconds or self._terms.lease_seconds
        return self._seen_at + lasts - now

    async def _until_free(self, lease: Lease, seconds: float) -> None:
        """Wait until the lease may be free: it was released or deleted, or has expired."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.05)):
                try:
                    free = await self._released(lease)
                except errors.KubeError:
                    free = False
                if not free:  # the watch ended early
                    await asyncio.sleep(self._jittered(self._terms.retry_seconds))

    async def _released(self, lease: Lease) -> bool:
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
                    if isinstance(event, watching.Deleted):
                        return True
                    if isinstance(event, watching.WatchEvent):
                        if not event.object.spec.holder_identity:
                            return True
                        self._seconds_left(event.object)  # records that the holder renewed
        return False

    def _jittered(self, seconds: float) -> float:
        return seconds * random.uniform(0.8, 1.2)

    # Writing

    async def _create(self) -> Lease:
        body = {"metadata": {"name": self._name}, "spec": self._spec(transitions=0, acquired=True)}
        return await self._client.create(resources.LEASES, body, namespace=self._namespace)

    async def _take(self, lease: Lease) -> Lease:
        if lease.spec.holder_identity != self._identity:  # ours has no time that this process does not have
            self._time.follow(lease)
        transitions = (lease.spec.lease_transitions or 0) + 1
        return await self._write(lease, self._spec(transitions=transitions, acquired=True))

    async def _write(self, lease: Lease, spec: dict[str, Any]) -> Lease:
        """Patch the lease if it still has the resource version that we read."""
        patch = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        return await self._client.merge_patch(resources.LEASES, self._name, patch, namespace=self._namespace)

    def _now(self) -> str:
        return self._time.utc_now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _spec(self, *, transitions: int | None = None, acquired: bool = False) -> dict[str, Any]:
        now = self._now()
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._terms.lease_seconds,
            "renewTime": now,
        }
        if acquired:
            spec |= {"acquireTime": now, "leaseTransitions": transitions}
        return spec

    async def _renew_until_lost(self, lease: Lease, since: float) -> None:
        """Renew the lease until another candidate holds it or it could not be renewed in time."""
        loop = asyncio.get_running_loop()
        renewed, pause = since, self._terms.renew_seconds
        while (left := renewed + self._terms.give_up_seconds - loop.time()) > 0:
            await asyncio.sleep(min(pause, left))
            started = loop.time()
            try:
                async with asyncio.timeout_at(renewed + self._terms.give_up_seconds):
                    lease = await self._renew(lease)
            except _Lost:
                return
            except (errors.KubeError, TimeoutError) as error:
                _log.info("%s could not renew %s: %s", self._identity, self._name, error)
                pause = self._jittered(self._terms.retry_seconds / 4)
            else:
                renewed, pause = started, self._terms.renew_seconds

    async def _renew(self, lease: Lease) -> Lease:
        try:
            return await self._write(lease, self._spec())
        except (errors.Conflict, errors.NotFound):
            now = await self._client.find(resources.LEASES, self._name, namespace=self._namespace)
            if now is None or now.spec.holder_identity != self._identity:
                raise _Lost from None
            return await self._write(now, self._spec())

    async def _release(self) -> None:
        """Release the lease, if we hold it and the server responds in time."""
        with contextlib.suppress(errors.KubeError, TimeoutError):
            async with asyncio.timeout(2.0):
                lease = await self._client.find(resources.LEASES, self._name, namespace=self._namespace)
                if lease is not None and lease.spec.holder_identity == self._identity:
                    released = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
                    await self._write(lease, released)


class _Lost(Exception):
    """Another candidate holds the lease."""
