"""Resource slices of a real node: its GPUs for claims, and whether the cluster gives GPUs to plain requests by claims.

The slices stay when the agent ends, because another one follows; a kubelet deletes them some time after it lost the
plugin, and whenever it starts. So they are watched, and written again where they differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.dra import slices, versions
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.node_devices import NodeDevices
from simgpu.dra.versions import ServedApi
from simgpu.kube import errors, naming, resources
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.views import DeviceClass, ObjectMeta

DISCOVERY_SECONDS = 60.0  # between looks for an API that the server does not serve

_BACKOFF = Backoff(first_seconds=0.2, max_seconds=30.0)
_NOTHING = NodeDevices()
_CLAIMS = resources.RESOURCE_CLAIMS.seen_as(AllocatedClaim)
_SLICES = resources.RESOURCE_SLICES.seen_as(slices.PublishedSlice)

_log = logging.getLogger(__name__)


class OwnSlices:
    """Publishes the slices of one node. `report` records a warning with a reason and a message."""

    def __init__(self, client: Client, node: str, *, report: Callable[[str, str], None]) -> None:
        self.api: ServedApi | None = None
        self.changed: Callable[[], None] = lambda: None
        self._client = client
        self._node = node
        self._report = report
        self._slices: Store[slices.PublishedSlice] = Store()
        self._classes: Store[DeviceClass] = Store()
        self._devices = _NOTHING
        self._owner: ObjectMeta | None = None
        self._needed = asyncio.Event()
        self._wake = asyncio.Event()
        self._highest = 0
        self._kept: dict[str, tuple[bytes, bytes]] = {}  # what was written, and what the server kept of it
        self._problem = ""

    # What the cluster has.

    def need(self) -> None:
        """Begin to watch: the node's GPUs are, or may be, allocated by claims."""
        self._needed.set()

    @property
    def known(self) -> bool:
        """Whether it is known how the cluster treats plain requests of GPUs."""
        return self._classes.synced.is_set()

    @property
    def serves_requests(self) -> bool:
        """Whether the scheduler makes claims for plain requests of GPUs."""
        found = self._classes.get(vocabulary.DRA_DRIVER)
        return found is not None and found.spec.get("extendedResourceName") == vocabulary.GPU_RESOURCE

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return a claim from the API server."""
        api = self.api or await self._discover()
        return await self._client.get(api.of(_CLAIMS), name, namespace=namespace)

    # What it gets.

    def publish(self, devices: NodeDevices, owner: ObjectMeta | None) -> None:
        """Set the devices of the slices, which `owner`, the node, owns."""
        if devices != self._devices or owner != self._owner:
            self._devices, self._owner = devices, owner
            self._wake.set()

    async def run(self) -> None:
        """Watch and write until cancelled."""
        await self._needed.wait()
        api = self.api or await self._discover()
        fields = f"spec.nodeName={self._node},spec.driver={vocabulary.DRA_DRIVER}"
        self._slices.listen(lambda _change: self._wake.set())
        self._classes.listen(lambda _change: self.changed())
        async with asyncio.TaskGroup() as group:
            group.create_task(Reflector(self._client, api.of(_SLICES), self._slices, fields=fields).run())
            named = f"metadata.name={vocabulary.DRA_DRIVER}"
            classes = Reflector(self._client, api.of(resources.DEVICE_CLASSES), self._classes, fields=named)
            group.create_task(classes.run())
            group.create_task(self._announce())
            await self._slices.synced.wait()
            await self._keep(api)

    async def _announce(self) -> None:
        await self._classes.synced.wait()
        self.changed()

    async def _discover(self) -> ServedApi:
        """Return the newest version that the server serves, once it serves any."""
        failures = 0
        while True:
            try:
                self.api = await _served(self._client)
                if self.api is not None:
                    return self.api
                self._log_once(f"the API server does not serve {versions.GROUP}")
                await asyncio.sleep(DISCOVERY_SECONDS)
            except errors.KubeError as error:
                self._log_once(f"the version of {versions.GROUP} is not known: {error}")
                await asyncio.sleep(_BACKOFF.pause(failures))
                failures += 1

    async def _keep(self, api: ServedApi) -> None:
        failures = 0
        while True:
            self._wake.clear()
            try:
                await self._write(api)
                failures, pause = 0, None
                self._log_once("")
            except errors.KubeError as error:
                self._log_once(f"resource slices are not written: {error}")
                pause = _BACKOFF.pause(failures)
                failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _write(self, api: ServedApi) -> None:
        wanted = self._specs(api)
        found = {item.metadata.name: item for item in self._slices}
        if (not wanted and not found) or self._owner is None:
            return
        owner = self._owner
        foreign = [name for name, item in found.items() if not _owned(item.metadata, owner.uid)]
        existing = {name: self._as_written(name, item.state) for name, item in found.items()}
        self._highest = max([self._highest, *(item.generation for item in existing.values())])
        plan = slices.plan(wanted, existing, owner=owner, foreign=foreign, highest=self._highest, labels={})
        for name in plan.delete:
            await self._client.delete(api.of(_SLICES), name)
        for name, body in plan.write.items():
            kept = await self._client.apply(api.of(_SLICES), name, body, manager=vocabulary.AGENT_MANAGER, force=True)
            sent = slices.read_state(msgspec.json.decode(msgspec.json.encode(body["spec"])))
            self._kept[name] = (sent.digest, kept.state.digest)
            self._highest = max(self._highest, kept.state.generation)
            if gates := versions.gates_of(sent.gated, kept.state.gated):
                self._report(
                    "FeatureGateOff", f"the API server dropped fields of resource slices; it needs {', '.join(gates)}"
                )

    def _as_written(self, name: str, state: slices.SliceState) -> slices.SliceState:
        """Return the state of a slice, taken for what was written where the server kept only a part of that."""
        sent, kept = self._kept.get(name, (b"", b""))
        return msgspec.structs.replace(state, digest=sent) if state.digest == kept else state

    def _specs(self, api: ServedApi) -> Mapping[str, Mapping[str, Any]]:
        contents = slices.split(self._devices, api)
        names = _names(self._node, len(contents))
        return {name: slices.spec_of(item, self._node, api) for name, item in zip(names, contents, strict=True)}

    def _log_once(self, problem: str) -> None:
        if problem and problem != self._problem:
            _log.warning("%s", problem)
        self._problem = problem


async def _served(client: Client) -> ServedApi | None:
    """Return the newest version of the API group that a server serves; None if it serves none."""
    found = msgspec.json.decode(await client.raw("/version"), type=_ServerVersion)
    for version in versions.VERSIONS:
        with contextlib.suppress(errors.NotFound):
            await client.discover(f"{versions.GROUP}/{version}")
            return ServedApi(version, versions.minor(found.minor))
    return None


class _ServerVersion(msgspec.Struct):
    minor: str = ""


def _owned(meta: ObjectMeta, uid: str) -> bool:
    return any(owner.uid == uid for owner in meta.owner_references)


def _names(node: str, count: int) -> Iterable[str]:
    """Yield the names of a node's slices: its name and the driver's, then with numbers."""
    for index in range(count):
        suffix = f"-{vocabulary.DRA_DRIVER}-{index}" if index else f"-{vocabulary.DRA_DRIVER}"
        yield f"{naming.shortened(node, vocabulary.MAX_NAME - len(suffix))}{suffix}"
