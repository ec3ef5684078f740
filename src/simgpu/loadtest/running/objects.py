"""Objects of a bundle: their bodies from templates, and the requests that create, patch and delete them.

A template in which nothing but plain `{{.Name}}` depends on the object is rendered and parsed once for a namespace;
each object is then a copy with its own name.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from simgpu.kube import errors
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource
from simgpu.loadtest.gotemplate import functions, usage
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.rendering import Template
from simgpu.loadtest.running.placement import RunPlacement
from simgpu.loadtest.scenario import files, loading
from simgpu.loadtest.scenario.model import ObjectTemplate
from simgpu.loadtest.served import Served, converted

_ATTEMPTS = 6
_FIRST_PAUSE, _FACTOR = 0.1, 3.0
_PLACEHOLDER = "simgpu-name-placeholder"


class ApiCall(msgspec.Struct, frozen=True):
    """A request that was made: its verb, and the seconds that it took."""

    verb: str
    seconds: float


class TemplateSource:
    """The template of an object, and bodies made of it."""

    def __init__(self, item: ObjectTemplate, variables: Mapping[str, Any], chance: random.Random) -> None:
        self._item, self._variables = item, variables
        library = functions.library([item.file.parent], chance)
        text = files.read(item.file)
        self._template = Template(text, library)
        self._copies = usage.only_printed(self._template.nodes, "Name", forbidden={"Index"})
        self._parsed: dict[str, list[Any]] = {}
        self.identities = loading.identities(item.file)

    def bodies(self, index: int, namespace: str) -> list[dict[str, Any]]:
        """Return the objects of one index; an empty template has none."""
        name = f"{self._item.basename}-{index}"
        if not self._copies:
            own = loading.example(self._item, self._variables, index=index, space=namespace)
            return [_named(body, name) for body in self._objects(own)]
        parsed = self._parsed.get(namespace)
        if parsed is None:
            own = loading.example(self._item, self._variables, index=index, space=namespace)
            own["Name"] = _PLACEHOLDER
            parsed = self._parsed[namespace] = self._objects(own)
        return [_named(_substituted(body, name), name) for body in parsed]

    def _objects(self, own: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the objects that a template makes of variables: it may depend on the index whether they are any."""
        found = self._template.documents(own)
        for problem in filter(None, map(loading.problem_of, found)):
            raise TemplateError(f"{self._item.file.name}: {problem}")
        return [body for body in found if body is not None]


def _substituted(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace(_PLACEHOLDER, name) if _PLACEHOLDER in value else value
    if isinstance(value, dict):
        return {_substituted(key, name): _substituted(item, name) for key, item in value.items()}
    if isinstance(value, list):
        return [_substituted(item, name) for item in value]
    return value


def _named(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {**body, "metadata": {**(body.get("metadata") or {}), "name": name}}


class Creator:
    """Sends the requests of a run's phases, with retries, and remembers what has to be deleted one by one."""

    def __init__(
        self, client: Client, served: Served, labels: dict[str, str], own: frozenset[str],
        called: Callable[[ApiCall], None], *, placement: RunPlacement | None = None,
    ) -> None:  # fmt: skip
        self._client, self._served, self._labels, self._own = client, served, labels, own
        self._called, self._placement = called, placement
        self.used: dict[Resource[Any], None] = {}  # kinds of objects in namespaces
        self.scattered: dict[tuple[Resource[Any], str, str], None] = {}  # outside of the run's own namespaces

    async def create(self, body: dict[str, Any], namespace: str) -> None:
        """Create an object; one that exists already is left as it is."""
        resource = await self._served.resource(body["apiVersion"], body["kind"])
        made = self._adapted(body, resource)
        meta = made["metadata"]
        made = {**made, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **self._labels}}}
        if resource.namespaced and namespace:
            made["metadata"]["namespace"] = namespace
        space = namespace if resource.namespaced else ""

        async def request() -> None:
            try:
                await self._client.create(resource, made, namespace=space)
            except errors.AlreadyExists:
                if place in self.scattered and not await self._is_ours(*place):
                    del self.scattered[place]

        place = (resource, space, str(meta["name"]))
        if space:
            self.used[resource] = None
        if space not in self._own:
            self.scattered.setdefault(place)  # before the request: its answer may be lost
        await self._retried("create", request)

    def _adapted(self, body: dict[str, Any], resource: Resource[Any]) -> dict[str, Any]:
        """Return an object in the version in which it is created, with its pods on the run's nodes."""
        made = converted(body, resource)
        return self._placement.placed(made) if self._placement is not None else made

    async def _is_ours(self, resource: Resource[Any], namespace: str, name: str) -> bool:
        """Return whether an object that exists was created by this run, and only the answer was lost."""
        found = await self._client.find(resource, name, namespace=namespace)
        return found is not None and self._labels.items() <= found.metadata.labels.items()

    async def patch(self, body: dict[str, Any], namespace: str) -> None:
        """Merge a newly rendered body into an object."""
        resource = await self._served.resource(body["apiVersion"], body["kind"])
        made = self._adapted(body, resource)
        space = namespace if resource.namespaced else ""
        name = made["metadata"]["name"]
        await self._retried("patch", lambda: self._client.merge_patch(resource, name, made, namespace=space))

    async def delete(self, identity: tuple[str, str], name: str, namespace: str) -> None:
        """Delete an object; one that does not exist is fine."""
        resource = await self._served.resource(*identity)
        space = namespace if resource.namespaced else ""
        await self._retried("delete", lambda: self._client.delete(resource, name, namespace=space))
        self.scattered.pop((resource, space, name), None)

    async def _retried(self, verb: str, request: Callable[[], Awaitable[object]]) -> None:
        pause = _FIRST_PAUSE
        for attempt in range(_ATTEMPTS):
            started = time.perf_counter()
            try:
                await request()
            except errors.KubeError as error:
                if attempt + 1 == _ATTEMPTS or not _may_pass(error):
                    raise
                await asyncio.sleep(pause)
                pause *= _FACTOR
            else:
                self._called(ApiCall(verb, time.perf_counter() - started))
                return


def _may_pass(error: errors.KubeError) -> bool:
    if isinstance(error, errors.Forbidden):  # a namespace's quota or its account may not be there yet
        return "serviceaccount" in str(error) or "quota" in str(error)
    return isinstance(error, (*errors.TRANSIENT, errors.Unauthorized, errors.Conflict))
