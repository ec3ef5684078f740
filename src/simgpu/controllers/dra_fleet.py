"""Dynamic resource allocation on fake nodes: which API is served, DeviceClasses, slices, and claims.

Nothing of it runs until a node wants it, so a fleet of extended resources needs no permissions for it. If the API is
not served or may not be used, it is off: that is reported once, and tried again from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.controllers import claimed
from simgpu.controllers.loading import PodLoads
from simgpu.controllers.resource_slices import SELECTOR, SLICES, WORKERS, ResourceSlices
from simgpu.dra import classes, node_devices, versions
from simgpu.dra.claims import AllocatedClaim, has_claims, pools_of
from simgpu.dra.node_devices import DevicePlace, Faults
from simgpu.dra.versions import ServedApi
from simgpu.kube import errors, permissions, resources
from simgpu.kube.client import Client, decode
from simgpu.kube.recording import Recorder, Subject
from simgpu.kube.reflector import Reflector
from simgpu.kube.resources import Resource
from simgpu.kube.store import Change, Store
from simgpu.kube.views import ObjectMeta, Pod
from simgpu.machines.fleet import NodeCards
from simgpu.topology import pools

CLAIMS = Resource("ResourceClaim", "resourceclaims", AllocatedClaim, group=versions.GROUP)
RETRY_SECONDS = 30.0
CHECK_SECONDS = 30.0  # between looks at the served versions and at the DeviceClasses

_NO_OBJECT = f"{vocabulary.SLICE_LABEL}=none"  # selects nothing

_log = logging.getLogger(__name__)


class _ServerVersion(msgspec.Struct):
    minor: str = ""


async def discover(client: Client) -> ServedApi | None:
    """Return the newest version of the API that we know and the server serves; None if there is none."""
    for version in versions.VERSIONS:
        try:
            found = await client.discover(f"{versions.GROUP}/{version}")
        except errors.NotFound:
            continue
        if any(item.name == CLAIMS.plural for item in found):
            found_version = decode(await client.raw("/version"), _ServerVersion)
            return ServedApi(version, versions.minor(found_version.minor))
    return None


async def publish_classes(client: Client, api: ServedApi) -> tuple[str, ...] | None:
    """Write the DeviceClasses; return the feature gates whose fields the server dropped.

    None if there is no permission to write them: a chart that has them grants none.
    """
    dropped: list[str] = []
    resource = api.of(resources.DEVICE_CLASSES)
    if not await permissions.may(client, "patch", resource):
        _log.info("DeviceClasses stay as they are: there is no permission to change them")
        return None
    for name, body in classes.device_classes(api).items():
        answer = await client.apply(resource, name, body, manager=vocabulary.MANAGER, force=True)
        dropped += versions.gates_of(body["spec"], answer.spec)
    return tuple(dropped)


async def until_first(*work: Coroutine[Any, Any, None]) -> None:
    """Run until one of them is done, such as the one that notices another version; cancel the others."""
    tasks = [asyncio.create_task(item) for item in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class DraFleet:
    """Slices and claims of all fake nodes. `changed` is called with the nodes whose claims have changed."""

    def __init__(
        self, client: Client, recorder: Recorder, pods: Store[Pod], *, changed: Callable[[str], None], namespace: str
    ) -> None:
        self.known = False  # whether claims can be read, or it is off
        self.problem = ""  # why it is off
        self.claims: Store[AllocatedClaim] = Store()
        self.slices = ResourceSlices(client, recorder)
        self._client = client
        self._recorder = recorder
        self._pods = pods
        self._changed = changed
        self._topology = Subject("v1", "ConfigMap", vocabulary.TOPOLOGY, namespace)
        self._wanted = asyncio.Event()
        self._waiting: set[str] = set()
        self._on = False
        self._listening = False
        self._keeps_classes = True  # whether DeviceClasses may be written
        self._looked = False  # whether there are slices of an earlier controller is known
        self._places: dict[str, tuple[pools.NodeGpus, dict[str, DevicePlace]]] = {}

    # Running.

    async def run(self) -> None:
        """Wait until a node wants DRA, then publish slices and follow claims until cancelled.

        Slices that an earlier controller left behind are a reason to start too: they have to go.
        """
        await self._look_for_leftovers()
        await self._wanted.wait()
        while True:
            while (served := await self._begin()) is None:
                await asyncio.sleep(RETRY_SECONDS)
            await self._follow_while_served(served)

    async def _look_for_leftovers(self) -> None:
        """Find out whether there are slices, unless a node wants DRA meanwhile."""
        while not self._wanted.is_set():
            try:
                if await self._has_leftovers():
                    self._wanted.set()
            except errors.Forbidden:
                pass  # nor could they be deleted
            except errors.KubeError as error:
                _log.info("whether there are resource slices is not known yet: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), RETRY_SECONDS)
                continue
            self._looked = True
            return

    async def _has_leftovers(self) -> bool:
        api = await discover(self._client)
        if api is None or not await permissions.may(self._client, "list", api.of(SLICES)):
            return False  # where they may not be read they may not be deleted
        return bool(await self._client.list(api.of(SLICES), labels=SELECTOR))

    async def _follow_while_served(self, api: ServedApi) -> None:
        """Publish and follow until the server serves another version, as after an upgrade."""
        await until_first(self._follow(api), self._check_again(api))

    async def _check_again(self, api: ServedApi) -> None:
        """Restore DeviceClasses that others changed or deleted; return once the server serves another version."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                if await discover(self._client) != api:
                    return
                if self._keeps_classes:
                    await publish_classes(self._client, api)
            except errors.KubeError as error:
                _log.debug("the next look at DeviceClasses is in %s seconds: %s", CHECK_SECONDS, error)

    @property
    def cleared(self) -> bool:
        """Whether no slices are left, as far as can be known."""
        return self.known and not self.slices.nodes() if self._wanted.is_set() else self._looked

    async def _begin(self) -> ServedApi | None:
        """Return the API to use, after the first requests; None if it is off."""
        try:
            if (api := await discover(self._client)) is not None:
                await self._check(api)
                return api
            problem = f"the API server serves none of {versions.GROUP}/{', '.join(versions.VERSIONS)}"
        except errors.KubeError as error:
            problem = str(error)
        self._turn_off(problem)
        return None

    async def _check(self, api: ServedApi) -> None:
        """Make the first requests, whose failure is a problem to report: a reflector would try again for ever."""
        try:
            dropped = await publish_classes(self._client, api)
            self._keeps_classes = dropped is not None
            for gate in dropped or ():
                self._warn(
                    "FeatureGateOff", f"the API server drops fields of DeviceClasses: feature gate {gate} is off"
                )
        except errors.Forbidden as error:  # it may not create them, or a policy rejects it
            _log.info("DeviceClasses stay as they are: %s", error)
        for resource in (CLAIMS, SLICES):
            await self._client.list(api.of(resource), labels=_NO_OBJECT)

    def _turn_off(self, problem: str) -> None:
        if problem != self.problem:
            self._warn("DraOff", f"dynamic resource allocation is off, GPUs are not published through it: {problem}")
        self.problem, self.known = problem, True
        self._release()

    def _warn(self, reason: str, message: str) -> None:
        _log.warning("%s", message)
        self._recorder.record(self._topology, "Warning", reason, message)

    async def _follow(self, api: ServedApi) -> None:
        reflectors = (
            Reflector(self._client, api.of(CLAIMS), self.claims),
            Reflector(self._client, self.slices.serve(api), self.slices.store, labels=SELECTOR),
        )
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
            await asyncio.gather(*(reflector.store.synced.wait() for reflector in reflectors))
            self.problem, self.known, self._on = "", True, True
            self._listen()
            self.slices.start()
            for name in self.slices.nodes():
                self._changed(name)
            self._release()
            group.create_task(self.slices.run(workers=WORKERS))

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self.claims.listen(self._claim_changed)

    def _release(self) -> None:
        """Enqueue the nodes that wait."""
        for name in self._waiting:
            self._changed(name)
        self._waiting.clear()

    def _claim_changed(self, change: Change[AllocatedClaim]) -> None:
        if change.old is not None and change.new is not None and change.old.status == change.new.status:
            return
        # Pods that come later, or have gone, are changes of their own.
        if any(self._concerns(claim) for claim in (change.old, change.new) if claim is not None):
            for name in pools_of(change.old) | pools_of(change.new):
                self._changed(name)

    def _concerns(self, claim: AllocatedClaim) -> bool:
        """Return whether a claim is reserved for a pod that is on a node."""
        listed = claim.status.reserved_for[: vocabulary.MAX_CLAIM_USERS]
        return any(self._pods.get(item.name, namespace=claim.metadata.namespace) is not None for item in listed)

    # Nodes.

    def awaits(self, name: str, spec: pools.NodeGpus) -> bool:
        """Return whether a node must wait until claims are known: who has its GPUs is not known before."""
        if not spec.allocation.by_claims or self.known:
            return False
        self._waiting.add(name)
        self._wanted.set()
        return True

    def publish(self, owner: ObjectMeta, placed: NodeCards, faults: Faults) -> None:
        """Publish the slices of a node, or remove them if it is not allocated through DRA."""
        if not placed.spec.allocation.by_claims:
            self.retire(owner.name)
            return
        self._wanted.set()
        self.slices.want(owner, placed.spec, (card.device for card in placed.cards), faults)

    def retire(self, name: str) -> None:
        """Remove the slices of a node."""
        self._places.pop(name, None)
        self.slices.drop(name)

    def users(self, placed: NodeCards, pods: Collection[Pod], loads: PodLoads) -> claimed.ClaimedUsers:
        """Return the users of a node's GPUs through claims."""
        if not self._on or not any(map(has_claims, pods)):
            return claimed.ClaimedUsers()
        return claimed.users_of(
            placed.name, pods, self._find, loads=loads,
            places=self._places_of(placed), devices={card.device.uuid: card.device for card in placed.cards},
        )  # fmt: skip

    def _find(self, namespace: str, name: str) -> AllocatedClaim | None:
        return self.claims.get(name, namespace=namespace)

    def _places_of(self, placed: NodeCards) -> Mapping[str, DevicePlace] | None:
        if not placed.spec.allocation.by_claims:
            return None
        spec, found = self._places.get(placed.name, (None, {}))
        if spec is not placed.spec:
            found = node_devices.places([card.device for card in placed.cards], placed.spec)
            self._places[placed.name] = placed.spec, found
        return found
