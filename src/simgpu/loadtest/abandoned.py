"""What runs left in a cluster: found by its label in every kind that is served; that of killed ones is removed.

The order is that of a run's own teardown: objects, namespaces, then nodes, which pods need to end, then what runs
share. Runs that are alive are never touched.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from simgpu.kube import errors, parallel, resources
from simgpu.kube.client import Client, decode
from simgpu.kube.resources import Resource
from simgpu.kube.views import Object
from simgpu.loadtest import concurrency, heartbeat, ownership
from simgpu.loadtest.heartbeat import Liveness
from simgpu.loadtest.running import namespaces
from simgpu.vocabulary import LOADTEST_LABEL, LOADTEST_USER_PREFIX

_SECONDS = 120.0  # for each part of a removal
_LAST = (
    resources.NAMESPACES.kind,
    resources.CUSTOM_RESOURCE_DEFINITIONS.kind,
)  # of shared objects: the rest needs them


class _Version(msgspec.Struct, rename="camel"):
    group_version: str


class _Group(msgspec.Struct, rename="camel"):
    preferred_version: _Version


class _Groups(msgspec.Struct):
    groups: list[_Group] = []


class Trace(msgspec.Struct, frozen=True):
    """An object with the label of load tests."""

    resource: Resource[Any]
    namespace: str
    name: str
    shared: bool  # used by several runs

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.resource.kind} {place}" + (" (shared)" if self.shared else "")


class AbandonedRun(msgspec.Struct):
    """A run of which there are objects."""

    id: str
    liveness: Liveness
    traces: list[Trace] = []


async def find(client: Client) -> list[AbandonedRun]:
    """Return the runs that have something in the cluster, those that are alive included."""
    traces = await _traces(client, LOADTEST_LABEL)
    # Leases are read after everything else: whatever was seen is of a run that had its lease before.
    known = await heartbeat.read(client)
    return [
        AbandonedRun(run, known.get(run, Liveness.UNKNOWN), traces.get(run, [])) for run in sorted({*known, *traces})
    ]


async def left_by(client: Client, run: ownership.Run) -> list[Trace]:
    """Return what one run has in the cluster beside its lease."""
    selector = f"{LOADTEST_LABEL} in ({','.join((run.id, *sorted(ownership.SHARED_LABELS)))})"
    return [trace for trace in (await _traces(client, selector)).get(run.id, []) if not _is_lease(trace, run.id)]


async def _traces(client: Client, selector: str) -> dict[str, list[Trace]]:
    """Return objects by run."""
    kinds = await _kinds(client)
    listed: dict[Resource[Any], list[Object]] = {}

    async def look(resource: Resource[Any]) -> None:
        with contextlib.suppress(errors.NotFound, errors.MethodNotAllowed, errors.Forbidden):
            listed[resource] = await client.list(resource, labels=selector)

    await parallel.each(kinds, look, in_flight=8)
    found: dict[str, list[Trace]] = {}
    for resource in kinds:
        for item in listed.get(resource, []):
            for run, shared in _users(item):
                trace = Trace(resource, item.metadata.namespace, item.metadata.name, shared)
                found.setdefault(run, []).append(trace)
    return found


def _is_lease(trace: Trace, run: str) -> bool:
    lease = (resources.LEASES.kind, heartbeat.NAMESPACE, heartbeat.lease_name(run))
    return (trace.resource.kind, trace.namespace, trace.name) == lease


def _users(item: Object) -> list[tuple[str, bool]]:
    """Return the runs of an object, and whether it is shared."""
    label = item.metadata.labels.get(LOADTEST_LABEL, "")
    if label not in ownership.SHARED_LABELS:
        return [(label, False)] if label else []
    prefix = LOADTEST_USER_PREFIX
    return [(key.removeprefix(prefix), True) for key in item.metadata.annotations if key.startswith(prefix)]


async def _kinds(client: Client) -> list[Resource[Any]]:
    """Return all kinds that can be listed and deleted, in one version each."""
    groups = decode(await client.raw("/apis"), _Groups).groups
    found: list[Resource[Any]] = []
    for api_version in ["v1", *(group.preferred_version.group_version for group in groups)]:
        try:
            served = await client.discover(api_version)
        except (errors.NotFound, errors.Forbidden, errors.ServerError, errors.UnreadableAnswer):
            continue  # of an aggregated server that does not answer
        group, _, version = api_version.rpartition("/")
        found += [
            Resource(item.kind, item.name, Object, group=group, version=version, namespaced=item.namespaced)
            for item in served
            if "/" not in item.name and {"list", "delete"} <= set(item.verbs)
        ]
    return found


async def remove(client: Client, run: AbandonedRun) -> list[str]:
    """Remove what a run left. Return what is still there in the end."""
    own = [trace for trace in run.traces if not trace.shared and not _is_lease(trace, run.id)]  # the lease goes last
    spaces = {trace.name for trace in own if trace.resource.kind == resources.NAMESPACES.kind}
    used = {trace.resource: None for trace in own if trace.namespace in spaces}
    await namespaces.empty(client, spaces, used)
    outside = [trace for trace in own if trace.namespace and trace.namespace not in spaces]
    left = await _delete(client, outside)
    made = ownership.Run(run.id)
    left += [f"Namespace {name}" for name in await namespaces.delete(client, made, seconds=_SECONDS)]
    rest = [trace for trace in own if not trace.namespace and trace.resource.kind != resources.NAMESPACES.kind]
    left += await _delete(client, rest)
    left += await _release(client, [trace for trace in run.traces if trace.shared], made)
    if not left:
        await heartbeat.delete(client, run.id)
    return left


async def _delete(client: Client, traces: list[Trace]) -> list[str]:
    """Delete objects and wait until they are gone. Return those that are left."""

    async def one(trace: Trace) -> None:
        await client.delete(trace.resource, trace.name, namespace=trace.namespace)

    await parallel.each(traces, one)
    left = list(traces)

    async def gone() -> bool:
        left[:] = [trace for trace in left if await _exists(client, trace)]
        return not left

    await concurrency.until(gone, seconds=_SECONDS)
    return [str(trace) for trace in left]


async def _exists(client: Client, trace: Trace) -> bool:
    return await client.find(trace.resource, trace.name, namespace=trace.namespace) is not None


async def _release(client: Client, traces: list[Trace], run: ownership.Run) -> list[str]:
    """Stop using shared objects for a run; those that no other run uses are deleted."""
    ordered = sorted(traces, key=lambda trace: _LAST.index(trace.resource.kind) if trace.resource.kind in _LAST else -1)
    deleted = []
    for trace in ordered:
        with contextlib.suppress(errors.NotFound):  # the definition of its kind is gone
            if await ownership.release(client, trace.resource, trace.name, run, namespace=trace.namespace):
                deleted.append(trace)

    async def gone() -> bool:
        deleted[:] = [
            trace
            for trace in deleted
            if await ownership.is_ending(client, trace.resource, trace.name, namespace=trace.namespace)
        ]
        return not deleted

    await concurrency.until(gone, seconds=_SECONDS)
    return [str(trace) for trace in deleted]
