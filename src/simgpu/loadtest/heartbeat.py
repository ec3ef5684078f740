"""The lease of a run: renewed as long as the run lasts, and deleted when nothing of the run is left.

It shows whether the run is alive and will remove its objects itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import enum

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.views import Lease
from simgpu.loadtest.ownership import Run
from simgpu.vocabulary import LOADTEST_LABEL, LOADTEST_PREFIX

NAMESPACE = "default"  # the run's own namespaces are deleted before its nodes
_LEASE_SECONDS = 60
_RENEW_SECONDS = 10.0


class Liveness(enum.StrEnum):
    """Whether a run lasts, by its lease."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"  # it has no lease


class Heartbeat:
    """Keeps the lease of one run."""

    def __init__(self, client: Client, run: Run) -> None:
        self._client, self._run = client, run
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Create the lease, and renew it from now on."""
        body = {
            "metadata": {"name": lease_name(self._run.id), "labels": self._run.labels},
            "spec": {"holderIdentity": self._run.id, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": _now()},
        }
        await self._client.create(resources.LEASES, body, namespace=NAMESPACE)
        self._task = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            with contextlib.suppress(errors.KubeError):  # the next renewal is soon
                await self._client.merge_patch(
                    resources.LEASES, lease_name(self._run.id), {"spec": {"renewTime": _now()}}, namespace=NAMESPACE
                )

    async def stop(self, *, clean: bool) -> None:
        """Stop renewing; the lease of a run that left something stays, so that a clean-up finds it."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if clean:
            await delete(self._client, self._run.id)


async def delete(client: Client, run: str) -> None:
    """Delete the lease of a run."""
    await client.delete(resources.LEASES, lease_name(run), namespace=NAMESPACE)


async def read(client: Client) -> dict[str, Liveness]:
    """Return the runs that have a lease, by id."""
    now = datetime.datetime.now(datetime.UTC)
    leases = await client.list(resources.LEASES, namespace=NAMESPACE, labels=LOADTEST_LABEL)
    return {lease.metadata.labels[LOADTEST_LABEL]: liveness(lease, now) for lease in leases}


def liveness(lease: Lease, now: datetime.datetime) -> Liveness:
    """Return whether a lease is being renewed; one with a time that cannot be read is not known to be dead."""
    try:
        renewed = datetime.datetime.fromisoformat(lease.spec.renew_time or "")
        age = (now - renewed).total_seconds()
    except (ValueError, TypeError):
        return Liveness.UNKNOWN
    return Liveness.ALIVE if age < _LEASE_SECONDS else Liveness.DEAD


def lease_name(run: str) -> str:
    """Return the name of a run's lease."""
    return f"{LOADTEST_PREFIX}{run}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
