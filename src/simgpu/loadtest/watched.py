"""Small views of what runs watch, and one watch for each collection, however many look at it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from simgpu.kube.client import Client
from simgpu.kube.reflector import Reflector
from simgpu.kube.resources import Resource
from simgpu.kube.store import Store
from simgpu.kube.views import ApiView, Condition, HasMeta, Object


class _Nothing(ApiView, frozen=True):
    """An object of which only its presence counts."""


class _Volume(ApiView, frozen=True):
    empty_dir: _Nothing | None = None
    downward_api: _Nothing | None = msgspec.field(default=None, name="downwardAPI")
    config_map: _Nothing | None = None
    secret: _Nothing | None = None
    projected: _Nothing | None = None

    @property
    def stateless(self) -> bool:
        kinds = (self.empty_dir, self.downward_api, self.config_map, self.secret, self.projected)
        return any(kind is not None for kind in kinds)


class _Limits(ApiView, frozen=True):
    limits: dict[str, str] = {}  # noqa: RUF012 - of a struct


class _WatchedContainer(ApiView, frozen=True):
    resources: _Limits = _Limits()


class _WatchedPodSpec(ApiView, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    volumes: tuple[_Volume, ...] = ()
    containers: tuple[_WatchedContainer, ...] | None = None


class _WatchedPodStatus(ApiView, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None


class WatchedPod(Object, frozen=True):
    """A pod, as measurements look at it."""

    spec: _WatchedPodSpec = _WatchedPodSpec()
    status: _WatchedPodStatus = _WatchedPodStatus()

    @property
    def ready(self) -> bool:
        """Whether it runs and its Ready condition is True."""
        return self.status.phase == "Running" and any(
            item.type == "Ready" and item.status == "True" for item in self.status.conditions
        )

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def stateless(self) -> bool:
        """Whether no volume of it outlives it."""
        return all(volume.stateless for volume in self.spec.volumes)

    def requested(self, resource: str) -> str:
        """Return the limit of an extended resource in the first container that has one."""
        for container in self.spec.containers or ():
            if resource in container.resources.limits:
                return container.resources.limits[resource]
        return "0"


class _ControllerSpec(ApiView, frozen=True):
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None


class _ControllerStatus(ApiView, frozen=True):
    succeeded: int = 0
    failed: int = 0
    desired_number_scheduled: int = 0
    conditions: tuple[Condition, ...] = ()


class WatchedController(Object, frozen=True):
    """A job, deployment or other owner of pods."""

    spec: _ControllerSpec = _ControllerSpec()
    status: _ControllerStatus = _ControllerStatus()

    @property
    def finished(self) -> bool:
        """Whether it is a job that is complete or has failed."""
        return any(item.type in {"Complete", "Failed"} and item.status == "True" for item in self.status.conditions)


class _Devices(ApiView, frozen=True):
    results: tuple[_Nothing, ...] = ()


class _WatchedAllocation(ApiView, frozen=True):
    devices: _Devices = _Devices()


class _WatchedClaimStatus(ApiView, frozen=True):
    allocation: _WatchedAllocation | None = None


class WatchedClaim(Object, frozen=True):
    """A resource claim: whether it is allocated, and how many devices."""

    status: _WatchedClaimStatus = _WatchedClaimStatus()

    @property
    def devices(self) -> int:
        """How many devices are allocated."""
        return len(self.status.allocation.devices.results) if self.status.allocation is not None else 0


PODS = Resource("Pod", "pods", WatchedPod)


def claims(version: str) -> Resource[WatchedClaim]:
    """Return resource claims in an API version."""
    return Resource("ResourceClaim", "resourceclaims", WatchedClaim, group="resource.k8s.io", version=version)


def controllers(resource: Resource[Any]) -> Resource[WatchedController]:
    """Return a resource with the view of owners of pods."""
    return Resource(
        resource.kind,
        resource.plural,
        WatchedController,
        group=resource.group,
        version=resource.version,
        namespaced=resource.namespaced,
    )


class Selection(msgspec.Struct, frozen=True):
    """Objects that a measurement looks at: of one namespace or all, by labels and fields."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


class Watches:
    """Stores that are kept in sync as long as the run lasts; the same selection is watched once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stores: dict[tuple[str, Selection], Store[Any]] = {}
        self._tasks: dict[tuple[str, Selection], asyncio.Task[None]] = {}

    async def follow(self, resource: Resource[Any], selection: Selection, *, seconds: float = 60.0) -> Store[Any]:
        """Return the store of a selection, once it is in sync; TimeoutError if it is not in time."""
        key = (resource.path(), selection)
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = Store[HasMeta]()
            reflector = Reflector(
                self._client,
                resource,
                store,
                namespace=selection.namespace,
                labels=selection.labels,
                fields=selection.fields,
            )
            task = asyncio.create_task(reflector.run())
            # A watch that ends has failed beyond retries: whoever waits for the store is told at once.
            task.add_done_callback(lambda _task: store.synced.set())
            self._tasks[key] = task
        async with asyncio.timeout(seconds):
            await store.synced.wait()
        if self._tasks[key].done():
            self._tasks[key].result()
        return store

    async def close(self) -> None:
        """Stop watching."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
