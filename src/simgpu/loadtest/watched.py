"""Small views of what runs watch, and one watch for each collection, however many look at it."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from simgpu.kube import quantity
from simgpu.kube.client import Client
from simgpu.kube.reflector import Pace, Reflector
from simgpu.kube.resources import Resource
from simgpu.kube.store import Store, key_of
from simgpu.kube.views import ApiView, Condition, Object
from simgpu.vocabulary import GPU_RESOURCE


def _share(view: ApiView, *names: str) -> None:
    """Let texts that many objects have be one text in memory."""
    for name in names:
        msgspec.structs.force_setattr(view, name, sys.intern(getattr(view, name)))


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


class WatchedOwner(ApiView, frozen=True):
    """An owner of a watched object."""

    kind: str
    uid: str
    controller: bool = False

    def __post_init__(self) -> None:
        _share(self, "kind", "uid")


class WatchedMeta(ApiView, frozen=True):
    """`metadata` without what takes memory: labels, annotations and managed fields."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_references: tuple[WatchedOwner, ...] = ()

    def __post_init__(self) -> None:
        _share(self, "namespace")
        if len(self.owner_references) == 1:
            [owner] = self.owner_references
            msgspec.structs.force_setattr(self, "owner_references", _sole(owner.kind, owner.uid, owner.controller))


@functools.lru_cache(4096)
def _sole(kind: str, uid: str, controller: bool) -> tuple[WatchedOwner, ...]:  # noqa: FBT001 - as a key
    """Return the owners of an object that has only this one: all pods of a job share them."""
    return (WatchedOwner(kind, uid, controller),)


class _Limits(ApiView, frozen=True):
    limits: dict[str, str] = {}  # noqa: RUF012 - of a struct


class _WatchedContainer(ApiView, frozen=True):
    resources: _Limits = _Limits()


class _WatchedPodSpec(ApiView, frozen=True):
    node_name: str = ""
    volumes: tuple[_Volume, ...] = ()
    containers: tuple[_WatchedContainer, ...] | None = None


class _RequestMapping(ApiView, frozen=True):
    resource_name: str = ""


class _ExtendedResourceClaim(ApiView, frozen=True):
    """The claim that the scheduler made for extended resources of a pod, and which resources it stands for."""

    request_mappings: tuple[_RequestMapping, ...] = ()


class _WatchedPodStatus(ApiView, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    extended_resource_claim_status: _ExtendedResourceClaim | None = None


_NO_SPEC, _NO_STATUS = _WatchedPodSpec(), _WatchedPodStatus()


def _gpus(spec: _WatchedPodSpec, status: _WatchedPodStatus) -> int:
    claimed = status.extended_resource_claim_status
    if claimed is not None and any(item.resource_name == GPU_RESOURCE for item in claimed.request_mappings):
        return 0
    return sum(quantity.count(item.resources.limits.get(GPU_RESOURCE, "0")) for item in spec.containers or ())


class WatchedPod(ApiView, frozen=True):
    """A pod, as measurements look at it.

    Only what they ask for is kept of a decoded pod: thousands of pods that have ended stay in the API.
    """

    metadata: WatchedMeta
    spec: _WatchedPodSpec = _NO_SPEC
    status: _WatchedPodStatus = _NO_STATUS
    node: str = ""  # that it is scheduled to
    phase: str = ""
    ready: bool = False  # it runs, and its Ready condition is True
    stateless: bool = True  # no volume of it outlives it
    gpus: int = 0  # of the extended resource, in all containers; those of a claim are counted with the claim

    def __post_init__(self) -> None:
        if self.spec is _NO_SPEC and self.status is _NO_STATUS:
            return
        conditions = {item.type: item.status for item in self.status.conditions}
        found: dict[str, Any] = {
            "node": self.spec.node_name,
            "phase": self.status.phase,
            "ready": self.status.phase == "Running" and conditions.get("Ready") == "True",
            "stateless": all(volume.stateless for volume in self.spec.volumes),
            "gpus": _gpus(self.spec, self.status),
            "spec": _NO_SPEC,
            "status": _NO_STATUS,
        }
        for name, value in found.items():
            msgspec.structs.force_setattr(self, name, value)
        _share(self, "node", "phase")

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.phase in {"Succeeded", "Failed"}


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


class WatchedClaim(ApiView, frozen=True):
    """A resource claim: whether it is allocated, and how many devices."""

    metadata: WatchedMeta
    status: _WatchedClaimStatus = _WatchedClaimStatus()

    @property
    def devices(self) -> int:
        """How many devices are allocated."""
        return len(self.status.allocation.devices.results) if self.status.allocation is not None else 0


_POD_VIEW: Any = WatchedPod  # with a part of the metadata
PODS: Resource[Any] = Resource("Pod", "pods", _POD_VIEW)


def claims(version: str) -> Resource[Any]:
    """Return resource claims in an API version."""
    view: Any = WatchedClaim  # with a part of the metadata
    return Resource("ResourceClaim", "resourceclaims", view, group="resource.k8s.io", version=version)


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


# Latencies are times at which events arrive: gathered ones would all be multiples of that time. The finest bucket of
# the scheduler's histograms is twice as long.
_PACE = Pace(gather_seconds=0.005)


class SharingStore(Store[Any]):
    """A store that keeps one object in memory with other stores of the same resource that have it, too."""

    def __init__(self, others: Iterable[Store[Any]]) -> None:
        super().__init__()
        self._others = others

    def put(self, view: Any) -> None:
        """Add or replace an object."""
        key = key_of(view)
        twins = (store.at(key) for store in self._others if store is not self)
        version = view.metadata.resource_version
        super().put(next((twin for twin in twins if twin and twin.metadata.resource_version == version), view))


class Watches:
    """Stores that are kept in sync as long as the run lasts; the same selection is watched once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stores: dict[tuple[str, Selection], Store[Any]] = {}
        self._siblings: dict[str, list[Store[Any]]] = {}  # stores of one resource
        self._tasks: dict[tuple[str, Selection], asyncio.Task[None]] = {}

    async def follow(self, resource: Resource[Any], selection: Selection, *, seconds: float = 60.0) -> Store[Any]:
        """Return the store of a selection, once it is in sync; TimeoutError if it is not in time."""
        key = (resource.path(), selection)
        store = self._stores.get(key)
        if store is None:
            siblings = self._siblings.setdefault(key[0], [])
            store = self._stores[key] = SharingStore(siblings)
            siblings.append(store)
            reflector = Reflector(
                self._client,
                resource,
                store,
                namespace=selection.namespace,
                labels=selection.labels,
                fields=selection.fields,
                pace=_PACE,
            )
            task = asyncio.create_task(reflector.run())
            # A watch that ends has failed beyond retries: waiters for the store get the error at once.
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
