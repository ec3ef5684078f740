"""Priority classes of Run:ai's PodGroups, where the API server serves them and pods name them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.views import PodGroup

LOOK_SECONDS = 60.0  # between looks whether they are served
_MAX_ASKED = 50_000  # groups whose pods wait for news

_log = logging.getLogger(__name__)


class PodGroups:
    """PodGroups by namespace and name. `changed` is called with the nodes whose pods asked for one that changed."""

    def __init__(self, client: Client, changed: Callable[[str], None]) -> None:
        self._client = client
        self._changed = changed
        self._groups: Store[PodGroup] = Store()
        self._asked: dict[str, set[str]] = {}  # nodes, by namespace and name of a group
        self._wanted = asyncio.Event()
        self._groups.listen(lambda change: self._tell(change.key))

    def priority_class(self, namespace: str, name: str, node: str) -> str:
        """Return the priority class of a group, for a pod of a node; empty while it is not known."""
        self._wanted.set()
        if len(self._asked) >= _MAX_ASKED:
            self._asked.pop(next(iter(self._asked)))
        self._asked.setdefault(f"{namespace}/{name}", set()).add(node)
        group = self._groups.get(name, namespace=namespace)
        return group.spec.priority_class_name if group is not None else ""

    def _tell(self, key: str) -> None:
        for node in self._asked.pop(key, ()):
            self._changed(node)

    async def run(self) -> None:
        """Follow them until cancelled, once pods name some and they are served."""
        await self._wanted.wait()
        while not await self._served():
            await asyncio.sleep(LOOK_SECONDS)
        await Reflector(self._client, resources.POD_GROUPS, self._groups).run()

    async def _served(self) -> bool:
        resource = resources.POD_GROUPS
        try:
            return resource.plural in {item.name for item in await self._client.discover(resource.api_version)}
        except errors.NotFound:
            return False
        except errors.KubeError as error:
            _log.info("whether PodGroups are served is not known yet: %s", error)
            return False
