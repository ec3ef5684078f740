"""Activity profiles in ConfigMaps that pods name: fetched on demand, and again now and then while pods name them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from simgpu import errors, vocabulary
from simgpu.kube import errors as kube_errors
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.store import Store
from simgpu.kube.views import Pod
from simgpu.pods import loads

LOOK_SECONDS = 20.0  # between looks at ConfigMaps that are in use
MISSING_SECONDS = 2.0  # between looks at those that could not be read
_PAUSE_SECONDS = 0.1  # between looks, however many pods come
_MAX_MAPS = 1000  # that pods of the cluster name together; further ones count as not known

_log = logging.getLogger(__name__)


class _Unusable(msgspec.Struct, frozen=True):
    """Why a ConfigMap has no profile: the field and the problem of the error that each look at it raises anew."""

    field: str
    problem: str


class ProfileMaps:
    """The texts of ConfigMaps by namespace and name. `changed` is called with each node whose pods name one anew."""

    def __init__(self, client: Client, pods: Store[Pod], changed: Callable[[str], None]) -> None:
        self._client = client
        self._pods = pods
        self._changed = changed
        self._known: dict[tuple[str, str], str | _Unusable] = {}
        self._wake = asyncio.Event()

    def text(self, namespace: str, name: str) -> str | None:
        """Return the profile in a ConfigMap, None until it was fetched; `InputError` if it has none."""
        found = self._known.get((namespace, name))
        if found is None:
            self._wake.set()
        if isinstance(found, _Unusable):
            raise errors.InputError(found.field, found.problem)
        return found

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            await self._wake.wait()  # nothing is done in clusters without such pods
            looks = 0
            while self._named():
                self._wake.clear()
                await self._look(all_of_them=looks % round(LOOK_SECONDS / MISSING_SECONDS) == 0)
                looks += 1
                await asyncio.sleep(_PAUSE_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(MISSING_SECONDS):
                        await self._wake.wait()
            self._known.clear()
            self._wake.clear()

    def _named(self) -> dict[tuple[str, str], set[str]]:
        """Return the nodes whose pods name a ConfigMap, for each of them."""
        found: dict[tuple[str, str], set[str]] = {}
        for pod in self._pods:
            meta = pod.metadata
            if vocabulary.ACTIVITY_ANNOTATION in meta.annotations:
                for name in loads.config_maps(pod):
                    if len(found) < _MAX_MAPS or (meta.namespace, name) in found:
                        found.setdefault((meta.namespace, name), set()).add(pod.spec.node_name)
        return found

    async def _look(self, *, all_of_them: bool) -> None:
        named = self._named()
        self._known = {key: text for key, text in self._known.items() if key in named}
        for key, nodes in named.items():
            if not all_of_them and isinstance(self._known.get(key), str):
                continue
            found, before = await self._fetch(*key), self._known.get(key)
            if found != before:
                self._known[key] = found
                for node in nodes:
                    self._changed(node)

    async def _fetch(self, namespace: str, name: str) -> str | _Unusable:
        place = f"{vocabulary.ACTIVITY_ANNOTATION}: ConfigMap {name}"
        try:
            config_map = await self._client.find(resources.CONFIG_MAPS, name, namespace=namespace)
        except kube_errors.KubeError as error:
            _log.debug("ConfigMap %s/%s: %s", namespace, name, error)
            before = self._known.get((namespace, name))
            return before if isinstance(before, str) else _Unusable(place, f"cannot be read: {error}")
        if config_map is None:
            return _Unusable(place, f"there is none in namespace {namespace}")
        if vocabulary.PROFILE_KEY not in config_map.data:
            return _Unusable(place, f"has no key {vocabulary.PROFILE_KEY}")
        return config_map.data[vocabulary.PROFILE_KEY]
