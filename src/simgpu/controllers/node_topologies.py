"""Keeps NodeResourceTopologies of nodes, where the API server serves them and nodes have NUMA zones.

Only objects with our label are watched and deleted; one that another program made for a node is taken over.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

from simgpu import vocabulary
from simgpu.controllers import numa_zones
from simgpu.controllers.numa_zones import NodeZones
from simgpu.kube import errors, resources
from simgpu.kube.backoff import Backoff
from simgpu.kube.client import Client
from simgpu.kube.operations import Target
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import NodeResourceTopology
from simgpu.kube.writer import Writer

LOOKS = Backoff(first_seconds=10.0, max_seconds=300.0)  # between looks whether they are served and may be read
RETRY_SECONDS = 30.0  # until a write is tried again that was rejected, or failed as often as the writer tries

_RESOURCE = resources.NODE_RESOURCE_TOPOLOGIES

_log = logging.getLogger(__name__)


class NodeTopologies:
    """The objects of fake nodes whose topology is in a namespace, or of the one real `node`.

    `changed` is called with nodes whose object should perhaps not exist: they are to be reconciled.
    """

    def __init__(
        self, client: Client, writer: Writer, changed: Callable[[str], None], *, namespace: str, node: str = ""
    ) -> None:
        self._client = client
        self._writer = writer
        self._changed = changed
        self._labels = {vocabulary.ZONES_LABEL: namespace} | ({} if node else {vocabulary.SLICE_LABEL: "true"})
        self._fields = f"metadata.name={node}" if node else ""
        self._wanted: dict[str, NodeZones] = {}
        self._objects: Store[NodeResourceTopology] = Store()
        self._objects.listen(self._follow)
        self._needed = asyncio.Event()  # other zones are configured than at the last look
        self._gone = asyncio.Event()  # they are perhaps not served any more
        self._looked = False  # whether it is known if they are served
        self._forbidden = False
        self._failing: set[str] = set()  # nodes whose object is to be written, or removed, once more
        self._rejected = False  # whether one of them was for lack of permissions

    def want(self, node: str, zones: NodeZones | None) -> None:
        """Publish the zones of a node; remove its object if it has none."""
        if zones is None:
            self.drop(node)
        elif (before := self._wanted.get(node)) != zones:
            if not self._wanted or (before is not None and before.numa != zones.numa):
                self._needed.set()
            self._wanted[node] = zones
            self._write(node)

    def drop(self, node: str) -> None:
        """Remove the object of a node."""
        self._wanted.pop(node, None)
        if node in self._objects:
            self._writer.delete(Target(_RESOURCE, node), failed=functools.partial(self._failed, node))

    @property
    def cleared(self) -> bool:
        """Whether no object of ours is left, as far as can be known."""
        return self._looked and len(self._objects) == 0

    async def run(self) -> None:
        """Keep them until cancelled, where they are served and may be read.

        That is looked up once in any case, for what an earlier controller may have left; then only if nodes have zones,
        at once when these are configured, and ever more seldom.
        """
        while True:
            looks = 0
            while not await self._look():
                idle = self._looked and not self._wanted
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if idle else LOOKS.pause(looks)):
                        await self._needed.wait()
                looks = 0 if self._needed.is_set() else looks + 1
            self._gone.clear()
            selector = ",".join(f"{key}={value}" for key, value in self._labels.items())
            reflector = Reflector(self._client, _RESOURCE, self._objects, labels=selector, fields=self._fields)
            watching = asyncio.create_task(reflector.run())
            try:
                await self._objects.synced.wait()
                self._looked = True
                for node in list(self._wanted):
                    self._write(node)
                await self._gone.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                self._objects.synced.clear()

    async def _look(self) -> bool:
        """Return whether they can be kept. Where they cannot be read, none counts as left."""
        self._needed.clear()
        try:
            if _RESOURCE.plural in {item.name for item in await self._client.discover(_RESOURCE.api_version)}:
                await self._client.raw(f"{_RESOURCE.path()}?limit=1")
                self._forbidden = False
                return True
        except errors.Forbidden as error:
            if self._wanted and not self._forbidden:
                _log.warning("NUMA zones of nodes are not published: grant the permissions for that: %s", error)
                self._forbidden = True
        except errors.NotFound:
            pass
        except errors.KubeError as error:
            _log.info("whether NodeResourceTopologies are served is not known yet: %s", error)
            return False
        self._looked = True
        self._objects.replace(())
        self._objects.synced.clear()
        return False

    def _follow(self, change: Change[NodeResourceTopology]) -> None:
        """Restore what others changed or removed, and let nodes be looked at that should perhaps have none."""
        if change.key in self._wanted:
            self._write(change.key)
        elif change.new is not None:
            self._changed(change.key)

    def _write(self, node: str) -> None:
        """Write the object of a node when its turn has come, unless it is as wanted by then."""
        if not self._objects.synced.is_set():
            return

        def body() -> dict[str, Any] | None:
            zones = self._wanted.get(node)
            if zones is None or not self._objects.synced.is_set():
                return None
            made = numa_zones.document(node, self._labels, zones)
            seen = self._objects.get(node)
            return None if seen is not None and numa_zones.shows(seen, made) else made

        self._writer.apply_rendered(
            Target(_RESOURCE, node),
            body,
            urgent=node not in self._objects,
            failed=functools.partial(self._failed, node),
        )

    def _failed(self, node: str, error: Exception) -> None:
        """Try again later, so that nothing stays as it should not be; at once if the type is gone."""
        if isinstance(error, errors.NotFound):
            self._gone.set()
            return
        if not self._failing:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._retry)
        self._failing.add(node)
        self._rejected = self._rejected or isinstance(error, errors.Forbidden)

    def _retry(self) -> None:
        """Write once more; after a rejection, look first whether objects may be read at all."""
        nodes, self._failing = self._failing, set()
        if self._rejected:
            self._rejected = False
            self._gone.set()
        for node in nodes:
            if node in self._wanted:
                self._write(node)
            else:
                self.drop(node)
