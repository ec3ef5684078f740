"""Priority classes of Run:ai's PodGroups, where the API server serves them and pods name them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import PodGroup

LOOK_SECONDS = 60.0  # between looks whether they are served
FORBIDDEN_SECONDS = 600.0  # between looks whether they may be read, where they are served
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
        self._forbidden = False
        self._groups.listen(self._follow)

    def priority_class(self, namespace: str, name: str, node: str) -> str:
        """Return the priority class of a group, for a pod of a node; empty while it is not known."""
        self._wanted.set()
        key = f"{namespace}/{name}"
        if key not in self._asked and len(self._asked) >= _MAX_ASKED:
            self._asked.pop(next(iter(self._asked)))
        self._asked.setdefault(key, set()).add(node)
        return _class_of(self._groups.at(key))

    def _follow(self, change: Change[PodGroup]) -> None:
        if _class_of(change.old) != _class_of(change.new):  # its status changes often
            for node in self._asked.pop(change.key, ()):
                self._changed(node)

    async def run(self) -> None:
        """Follow them until cancelled, once pods name some, and they are served and may be read."""
        await self._wanted.wait()
        while pause := await self._look():
            await asyncio.sleep(pause)
        await Reflector(self._client, resources.POD_GROUPS, self._groups).run()

    async def _look(self) -> float:
        """Return the seconds until the next look whether they can be read; 0 if they can."""
        resource = resources.POD_GROUPS
        try:
            if resource.plural in {item.name for item in await self._client.discover(resource.api_version)}:
                await self._client.raw(f"{resource.path()}?limit=1")
                return 0.0
        except errors.Forbidden as error:
            if not self._forbidden:
                _log.warning("priority classes of PodGroups are not known: grant list and watch of them: %s", error)
            self._forbidden = True
            return FORBIDDEN_SECONDS
        except errors.NotFound:
            pass
        except errors.KubeError as error:
            _log.info("whether PodGroups are served is not known yet: %s", error)
        return LOOK_SECONDS


def _class_of(group: PodGroup | None) -> str:
    return group.spec.priority_class_name if group is not None else ""
