"""Publishes the GPUs of nodes as resource slices.

A key is a node's name. A reconcile compares the slices that the node should have with those that it has, including
our own writes that the watch has not shown yet, and sends only the difference.

A server whose feature gate for counters is off would store MIG devices that overlap as if they did not. A dry run shows
that before the first such slice is written; then GPUs that claims could divide are published whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from simgpu.dra import node_devices, slices, versions
from simgpu.dra.node_devices import Faults
from simgpu.dra.slices import PublishedSlice, SliceKind, SlicePlan, SliceState
from simgpu.dra.versions import ServedApi
from simgpu.kube import errors
from simgpu.kube.client import Client
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder, Subject
from simgpu.kube.resources import Resource
from simgpu.kube.store import Change, Store
from simgpu.kube.views import ObjectMeta
from simgpu.topology import pools
from simgpu.topology.devices import Device
from simgpu.vocabulary import DRA_DRIVER, SLICE_LABEL

SELECTOR = f"{SLICE_LABEL}=true"
SLICES = Resource("ResourceSlice", "resourceslices", PublishedSlice, group=versions.GROUP, namespaced=False)
WORKERS = 32
CONFIRM_SECONDS = 30.0  # until a write of ours that the watch has not shown counts as undone

_COUNTERS = frozenset(name for name, gate in versions.GATES.items() if gate == versions.PARTITIONABLE_DEVICES)

_log = logging.getLogger(__name__)


class PoolWish(msgspec.Struct, frozen=True):
    """What a node should publish."""

    owner: ObjectMeta
    spec: pools.NodeGpus
    devices: tuple[Device, ...]
    faults: Faults = {}

    @property
    def content(self) -> tuple[Any, ...]:
        """What distinguishes it from others: with `spec` and their ids, devices are known."""
        return self.owner.uid, self.spec, self.faults, [device.uuid for device in self.devices]


class SentSlice(msgspec.Struct, frozen=True):
    """A slice as our last write left it, until the watch shows that; no state if that was a delete.

    `version` is its resource version, `time` when it was written, in seconds.
    """

    state: SliceState | None
    owner: str
    version: int
    time: float = 0.0


def by_node(item: PublishedSlice) -> tuple[str, ...]:
    """Return the index of slices by node."""
    return (item.state.node,) if item.state.node else ()


def _version(item: PublishedSlice) -> int:
    text = item.metadata.resource_version
    return int(text) if text.isdecimal() else 0


def _as_seen(item: PublishedSlice) -> SentSlice:
    owner = next((reference.uid for reference in item.metadata.owner_references), "")
    return SentSlice(item.state, owner, _version(item))


def _is_other(item: SentSlice, node: str) -> bool:
    """Return whether a slice is of another driver or pool than a node's."""
    return item.state is not None and item.state.identity != (DRA_DRIVER, node)


class ResourceSlices:
    """Slices of nodes of a kind."""

    def __init__(self, client: Client, recorder: Recorder, *, kind: SliceKind = slices.FAKE) -> None:
        self.store: Store[PublishedSlice] = Store({"node": by_node})
        self.queue: WorkQueue[str] = WorkQueue()
        self.dropped: set[str] = set()  # feature gates that are off
        self._counting = False  # whether the server is known to keep counters
        self._started = self._running = False
        self._kind = kind
        self._client = client
        self._recorder = recorder
        self._api = ServedApi()
        self._resource = SLICES
        self._wanted: dict[str, PoolWish | None] = {}  # None for nodes that should have no slices
        self._sent: dict[str, dict[str, SentSlice]] = {}  # by node and name
        self._accepted: dict[str, tuple[bytes, bytes]] = {}  # what was wanted of a slice, and what the server kept

    def serve(self, api: ServedApi) -> Resource[PublishedSlice]:
        """Set the version of the API to use; return the resource to watch."""
        self._api, self._resource = api, api.of(SLICES)
        self.dropped.clear()  # another version may have other gates
        self._counting = False
        return self._resource

    def start(self) -> None:
        """Follow changes of slices by others, once the store is filled; again after the version has changed."""
        if not self._started:
            self._started = True
            self.store.listen(self._changed)
        for name in self._wanted:
            self.queue.add(name)

    def _changed(self, change: Change[PublishedSlice]) -> None:
        """Enqueue the nodes of a slice that others changed; a write of ours that the watch shows is no change."""
        item = change.new or change.old
        if item is None or not item.state.node:
            return
        sent = self._sent.get(item.state.node, {})
        mine, version = sent.get(change.key), _version(item)
        if mine is not None and version >= mine.version:
            del sent[change.key]
            if change.new is not None and version == mine.version and mine.state is not None:
                return
        self.queue.add(item.state.node)

    def nodes(self) -> set[str]:
        """Return the nodes that have slices or should have."""
        return {*self.store.values("node"), *(name for name, wish in self._wanted.items() if wish is not None)}

    def want(self, owner: ObjectMeta, spec: pools.NodeGpus, devices: Iterable[Device], faults: Faults) -> None:
        """Set what a node should publish: these devices of its `spec`."""
        known = self._wanted.get(owner.name)
        wish = PoolWish(ObjectMeta(name=owner.name, uid=owner.uid), spec, tuple(devices), dict(faults))
        if known is not None and known.content == wish.content:
            return
        self._wanted[owner.name] = wish
        self._enqueue(owner.name)

    def drop(self, name: str) -> None:
        """Remove the slices of a node."""
        if self._wanted.get(name) is not None or not self.store.synced.is_set() or self.store.by("node", name):
            self._wanted[name] = None
            self._enqueue(name)

    def _enqueue(self, name: str) -> None:
        """Enqueue a node, once slices are followed: `start` enqueues those before."""
        if self._started:
            self.queue.add(name)

    async def run(self, *, workers: int = 1) -> None:
        """Reconcile nodes until cancelled."""
        self._running = True
        try:
            await self.queue.run(self.reconcile, workers=workers)
        finally:
            self._running = False

    @property
    def busy(self) -> bool:
        """Whether nodes wait to be reconciled, and are."""
        return self._running and self.queue.depth > 0

    async def reconcile(self, name: str) -> float | None:
        """Bring the slices of one node to what they should be; those of a node that is not known yet stay.

        Return the seconds until it should be reconciled again, None for never.
        """
        if name not in self._wanted:
            return None
        wish = self._wanted[name]
        wanted = self._specs(name, wish) if wish is not None and wish.spec.gpus else {}
        existing = self._existing(name)
        for title in [title for title, item in existing.items() if title in wanted and _is_other(item, name)]:
            await self._delete(name, title)  # and created anew: this cannot be changed
            del existing[title]
        states = {title: self._as_wanted(title, item.state) for title, item in existing.items() if item.state}
        owner = wish.owner if wish is not None else ObjectMeta(name=name)
        foreign = [title for title, item in existing.items() if wish is not None and item.owner != owner.uid]
        plan = slices.plan(wanted, states, owner=owner, foreign=foreign, kind=self._kind)
        if await self._drops_counters(owner, plan, states):
            return await self.reconcile(name)  # without MIG devices
        try:
            for title in plan.delete:
                await self._delete(name, title)
            for title, body in plan.write.items():
                answer = await self._write(title, body, exists=title in states)
                self._remember(name, title, plan.states[title], answer)
        except errors.ApiError as error:
            if wish is not None and isinstance(error, errors.Forbidden | errors.Invalid):
                self._warn(owner, "SlicesRejected", str(error))
            raise
        if wish is None and self._wanted.get(name) is None and not self.store.by("node", name):
            self._sent.pop(name, None)
            self._wanted.pop(name, None)
        return CONFIRM_SECONDS if self._sent.get(name) else None

    def _specs(self, name: str, wish: PoolWish) -> dict[str, dict[str, Any]]:
        counted = versions.PARTITIONABLE_DEVICES not in self.dropped
        found = node_devices.of_node(wish.devices, wish.spec, wish.faults, counted=counted)
        parts = slices.split(found, self._api)
        return {
            self._kind.name_of(name, place): slices.spec_of(part, name, self._api) for place, part in enumerate(parts)
        }

    def _existing(self, name: str) -> dict[str, SentSlice]:
        """Return a node's slices as they are after our own writes."""
        sent, now = self._sent.get(name, {}), asyncio.get_running_loop().time()
        found = {item.metadata.name: _as_seen(item) for item in self.store.by("node", name)}
        for title, mine in list(sent.items()):
            seen = found.get(title)
            shown = seen is not None and (seen.version > mine.version or (seen.version == mine.version and mine.state))
            if shown or now - mine.time >= CONFIRM_SECONDS:
                del sent[title]  # the watch has shown it, or a later change
            elif mine.state is not None:
                found[title] = mine
            else:
                found.pop(title, None)  # deleted, and the watch has not shown that yet
        return found

    def _as_wanted(self, title: str, state: SliceState) -> SliceState:
        """Return a slice from which the server dropped fields as it was wanted: writing it again would not help."""
        wanted, kept = self._accepted.get(title, (b"", b""))
        return msgspec.structs.replace(state, digest=wanted) if kept and state.digest == kept else state

    # Writing.

    async def _delete(self, name: str, title: str) -> None:
        seen = self.store.get(title)
        await self._client.delete(self._resource, title)
        self._accepted.pop(title, None)
        sent = self._sent.setdefault(name, {})
        version = max(_version(seen) if seen is not None else 0, sent[title].version if title in sent else 0)
        sent[title] = SentSlice(None, "", version, asyncio.get_running_loop().time())

    async def _write(self, title: str, body: Mapping[str, Any], *, exists: bool) -> PublishedSlice:
        try:
            return await (self._update(title, body) if exists else self._create(title, body))
        except errors.NotFound:
            return await self._create(title, body)

    async def _create(self, title: str, body: Mapping[str, Any]) -> PublishedSlice:
        try:
            return await self._client.create(self._resource, dict(body))
        except errors.AlreadyExists:
            pass
        try:
            return await self._update(title, body)
        except errors.Invalid:
            await self._client.delete(self._resource, title)  # of another driver or node, which cannot be changed
            return await self._client.create(self._resource, dict(body))

    async def _update(self, title: str, body: Mapping[str, Any], *, dry_run: bool = False) -> PublishedSlice:
        spec = {"devices": None, "sharedCounters": None, **body["spec"]}
        return await self._client.merge_patch(self._resource, title, {**body, "spec": spec}, dry_run=dry_run)

    # Feature gates.

    async def _drops_counters(self, owner: ObjectMeta, plan: SlicePlan, existing: Mapping[str, SliceState]) -> bool:
        """Return whether the server would drop the counters of a plan, by a dry run of one of its slices.

        A slice that has counters keeps them. If the dry run is rejected, the write shows it.
        """
        kept = {title: state.gated for title, state in existing.items()}
        new = (title for title in plan.write if plan.states[title].gated & _COUNTERS - kept.get(title, frozenset()))
        title = next(new, None) if not self._counting else None
        if title is None:
            return False
        body = plan.write[title]
        try:
            if title in existing:
                answer = await self._update(title, body, dry_run=True)
            else:
                answer = await self._client.create(self._resource, dict(body), dry_run=True)
        except errors.ApiError as error:
            _log.debug("whether the API server keeps counters is not known before %s is written: %s", title, error)
            return False
        dropped = self._note_dropped(owner, plan.states[title], answer.state)
        self._counting = versions.PARTITIONABLE_DEVICES not in dropped
        return not self._counting

    def _note_dropped(self, node: ObjectMeta, wanted: SliceState, kept: SliceState) -> set[str]:
        """Return the gates of fields that the server dropped from a slice of a node; new ones are reported."""
        gates = set(versions.gates_of(wanted.gated, kept.gated))
        new, self.dropped = gates - self.dropped, self.dropped | gates
        if new:
            message = f"the API server drops fields of slices: feature gate {', '.join(sorted(new))} is off"
            if versions.PARTITIONABLE_DEVICES in new:
                message += "; GPUs of nodes with dynamicMIG are published whole, without MIG devices"
                self._publish_whole()
            _log.warning("%s", message)
            self._warn(node, "FeatureGateOff", message)
        return gates

    def _publish_whole(self) -> None:
        """Enqueue the nodes that may have MIG devices in slices by now."""
        for name, wish in self._wanted.items():
            if wish is not None and wish.spec.allocation.divides:
                self._enqueue(name)

    def _remember(self, name: str, title: str, wanted: SliceState, answer: PublishedSlice) -> None:
        written, seen = _as_seen(answer), self.store.get(title)
        if seen is None or _version(seen) < written.version:
            now = asyncio.get_running_loop().time()
            self._sent.setdefault(name, {})[title] = msgspec.structs.replace(written, time=now)
        self._accepted.pop(title, None)
        if wanted.digest != answer.state.digest:
            self._accepted[title] = (wanted.digest, answer.state.digest)
            self._note_dropped(ObjectMeta(name=name, uid=written.owner), wanted, answer.state)

    def _warn(self, node: ObjectMeta, reason: str, message: str) -> None:
        self._recorder.record(Subject("v1", "Node", node.name, uid=node.uid), "Warning", reason, message)
