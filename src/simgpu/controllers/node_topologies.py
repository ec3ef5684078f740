"""Keeps NodeResourceTopologies of nodes, where the API server serves them and nodes have NUMA zones.

Only objects with our label are watched and deleted; one that another program made for a node is taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from simgpu import vocabulary
from simgpu.controllers import numa_zones
from simgpu.controllers.numa_zones import NodeZones
from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.operations import Target
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import NodeResourceTopology
from simgpu.kube.writer import Writer

LOOK_SECONDS = 10.0  # between looks whether they are served
FORBIDDEN_SECONDS = 300.0  # between looks whether they may be read, where they are served

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
        self._needed = asyncio.Event()
        self._gone = asyncio.Event()  # they are not served any more
        self._looked = False  # whether it is known if they are served
        self._forbidden = False

    def want(self, node: str, zones: NodeZones | None) -> None:
        """Publish the zones of a node; remove its object if it has none."""
        if zones is None:
            self.drop(node)
        elif self._wanted.get(node) != zones:
            self._wanted[node] = zones
            self._needed.set()
            self._write(node)

    def drop(self, node: str) -> None:
        """Remove the object of a node."""
        self._wanted.pop(node, None)
        if node in self._objects:
            self._writer.delete(Target(_RESOURCE, node))

    @property
    def cleared(self) -> bool:
        """Whether no object of ours is left, as far as can be known."""
        return self._looked and len(self._objects) == 0

    async def run(self) -> None:
        """Keep them until cancelled, where they are served and may be read.

        That is looked up once in any case, for what an earlier controller may have left; then only if nodes have zones.
        """
        while True:
            while pause := await self._look():
                if self._looked:
                    await self._needed.wait()
                await asyncio.sleep(pause)
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

    async def _look(self) -> float:
        """Return the seconds until the next look whether they can be kept; 0 if they can."""
        try:
            if _RESOURCE.plural in {item.name for item in await self._client.discover(_RESOURCE.api_version)}:
                await self._client.raw(f"{_RESOURCE.path()}?limit=1")
                return 0.0
        except errors.Forbidden as error:
            if self._needed.is_set() and not self._forbidden:
                _log.warning("NUMA zones of nodes are not published: grant the permissions for that: %s", error)
                self._forbidden = True
            self._looked = True
            return FORBIDDEN_SECONDS
        except errors.NotFound:
            pass
        except errors.KubeError as error:
            _log.info("whether NodeResourceTopologies are served is not known yet: %s", error)
            return LOOK_SECONDS
        self._looked = True
        self._objects.replace(())
        self._objects.synced.clear()
        return LOOK_SECONDS

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
            Target(_RESOURCE, node), body, urgent=node not in self._objects, failed=self._failed
        )

    def _failed(self, error: Exception) -> None:
        if isinstance(error, errors.NotFound):
            self._gone.set()
