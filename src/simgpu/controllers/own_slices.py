"""DRA on a real node: its resource slices, claims of the API server, and whether plain requests of GPUs become claims.

Nothing of it runs until the node's GPUs are, or may be, allocated by claims. Slices stay when the agent ends, because
another one follows; a kubelet deletes them some time after it lost the plugin, and whenever it starts. So they are
watched, and written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from simgpu import vocabulary
from simgpu.controllers import dra_fleet
from simgpu.controllers.resource_slices import ResourceSlices
from simgpu.dra import slices
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.node_devices import Faults
from simgpu.dra.versions import GROUP, ServedApi
from simgpu.kube import errors, resources
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.recording import Recorder
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.views import DeviceClass, Node
from simgpu.topology import pools
from simgpu.topology.devices import Device

_BACKOFF = Backoff(first_seconds=0.2, max_seconds=30.0)

_log = logging.getLogger(__name__)


class OwnSlices:
    """Publishes the slices of one node. `changed` is called when it is known anew how plain requests are treated."""

    def __init__(self, client: Client, recorder: Recorder, node: str) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._client = client
        self._node = node
        self._slices = ResourceSlices(client, recorder, kind=slices.REAL)
        self._classes: Store[DeviceClass] = Store()
        self._api: ServedApi | None = None
        self._needed = asyncio.Event()
        self._problem = ""
        self._reading: Reflector[DeviceClass] | None = None

    def need(self) -> None:
        """Begin to watch: the node's GPUs are, or may be, allocated by claims."""
        self._needed.set()

    @property
    def removed(self) -> bool:
        """Whether no slices of the node are known."""
        return len(self._slices.store) == 0

    @property
    def known(self) -> bool:
        """Whether it is known how the cluster treats plain requests of GPUs."""
        return self._classes.synced.is_set()

    @property
    def problem(self) -> str:
        """Why that is not known yet."""
        return (self._reading.problem if self._reading else self._problem) or "the API server did not answer"

    @property
    def serves_requests(self) -> bool:
        """Whether the scheduler makes claims for plain requests of GPUs."""
        found = self._classes.get(vocabulary.DRA_DRIVER)
        return found is not None and found.spec.get("extendedResourceName") == vocabulary.GPU_RESOURCE

    async def claim(self, namespace: str, name: str) -> AllocatedClaim:
        """Return a claim from the API server."""
        api = self._api or await self._discover()
        return await self._client.get(api.of(dra_fleet.CLAIMS), name, namespace=namespace)

    async def is_gone(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether a claim does not exist any more; false if that is not known."""
        try:
            return (await self.claim(namespace, name)).metadata.uid != uid
        except errors.NotFound:
            return await self._is_served()  # else it is the version that is gone
        except errors.KubeError:
            return False

    async def _is_served(self) -> bool:
        """Return whether the server still serves the version of the API that is used."""
        try:
            return await dra_fleet.discover(self._client) == self._api
        except errors.KubeError:
            return False

    def publish(self, node: Node, spec: pools.NodeGpus, devices: Sequence[Device], faults: Faults) -> None:
        """Publish the GPUs of the node, or remove its slices if they are not allocated by claims alone."""
        if spec.gpus and spec.allocation.by_claims and not spec.allocation.by_count:
            self._slices.want(node.metadata, spec, devices, faults)
        elif self._needed.is_set():
            self._slices.drop(self._node)

    async def run(self) -> None:
        """Watch and write until cancelled, in another version of the API once the server has that instead."""
        await self._needed.wait()
        self._classes.listen(lambda _change: self.changed())
        while True:
            api = self._api or await self._discover()
            await dra_fleet.until_first(self._follow(api), self._check_again(api))

    async def _check_again(self, api: ServedApi) -> None:
        """Return once the server serves another version. It is asked only after a read failed: nodes are many."""
        seen = 0
        while True:
            await asyncio.sleep(dra_fleet.CHECK_SECONDS)
            failed = self._reading.counters.failures if self._reading is not None else 0
            if failed == seen:
                continue
            seen = failed
            try:
                found = await dra_fleet.discover(self._client)
            except errors.KubeError as error:
                _log.debug("the next look at the version of %s is in %s s: %s", GROUP, dra_fleet.CHECK_SECONDS, error)
                continue
            if found is not None and found != api:
                _log.info("the API server serves %s now, not %s", found.api_version, api.api_version)
                self._api = found
                return

    async def _follow(self, api: ServedApi) -> None:
        own = f"spec.nodeName={self._node},spec.driver={vocabulary.DRA_DRIVER}"
        named = f"metadata.name={vocabulary.DRA_DRIVER}"
        async with asyncio.TaskGroup() as group:
            written = Reflector(self._client, self._slices.serve(api), self._slices.store, fields=own)
            group.create_task(written.run())
            self._reading = Reflector(self._client, api.of(resources.DEVICE_CLASSES), self._classes, fields=named)
            group.create_task(self._reading.run())
            group.create_task(self._keep())
            await self._classes.synced.wait()
            self.changed()

    async def _keep(self) -> None:
        await self._slices.store.synced.wait()
        self._slices.start()
        await self._slices.run()

    async def _discover(self) -> ServedApi:
        """Return the newest version that the server serves, as soon as it serves any."""
        failures = 0
        while True:
            try:
                self._api = await dra_fleet.discover(self._client)
                problem = f"the API server does not serve {GROUP}"
            except errors.KubeError as error:
                problem = f"the version of {GROUP} is not known: {error}"
            if self._api is not None:
                return self._api
            if problem != self._problem:
                self._problem = problem
                _log.warning("%s", problem)
            await asyncio.sleep(_BACKOFF.pause(failures))
            failures += 1
