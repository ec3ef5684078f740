"""Who made an object: a run labels what is its own, and runs share a few objects.

A shared object has an annotation for each run that uses it; the last one to release it deletes it. An object without
our label is somebody else's: it is used as it is, and never changed or deleted.
"""

from __future__ import annotations

import asyncio
import datetime
import random
import string
from typing import Any

import msgspec

from simgpu.kube import errors, patches
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource
from simgpu.vocabulary import LOADTEST_LABEL, LOADTEST_USER_PREFIX

SHARED = "shared"
_RELEASING = "releasing"
SHARED_LABELS = frozenset({SHARED, _RELEASING})
_ATTEMPTS = 20


class Run(msgspec.Struct, frozen=True):
    """One run of a scenario."""

    id: str

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all that this run makes."""
        return {LOADTEST_LABEL: self.id}

    @property
    def selector(self) -> str:
        """The label selector of all that this run makes."""
        return f"{LOADTEST_LABEL}={self.id}"

    @property
    def use(self) -> str:
        """The annotation of shared objects that this run uses."""
        return f"{LOADTEST_USER_PREFIX}{self.id}"


def new_run(chance: random.Random) -> Run:
    """Return a run with an id of its own."""
    return Run("".join(chance.choices(string.ascii_lowercase + string.digits, k=8)))


class Difference(errors.KubeError):
    """An object of that name exists and is not what the run needs."""


async def acquire(
    client: Client, resource: Resource[Any], body: dict[str, Any], run: Run, *, namespace: str = ""
) -> bool:
    """Create a shared object, or use the one that exists. Return whether it is ours to release."""
    meta = body["metadata"]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    use = {run.use: now}
    own = {
        **body,
        "metadata": {
            **meta,
            "labels": {**meta.get("labels", {}), LOADTEST_LABEL: SHARED},
            "annotations": {**meta.get("annotations", {}), **use},
        },
    }
    for attempt in range(_ATTEMPTS):
        try:
            await client.create(resource, own, namespace=namespace)
        except errors.AlreadyExists:
            found = await client.find(resource, meta["name"], namespace=namespace)
        else:
            return True
        if found is None or found.metadata.labels.get(LOADTEST_LABEL) == _RELEASING:
            await asyncio.sleep(0.05 * (attempt + 1))  # another run is deleting it
            continue
        _check_same(resource, found, body)
        if found.metadata.labels.get(LOADTEST_LABEL) != SHARED:
            return False
        try:
            await _replace_metadata(client, resource, found, "annotations", {**found.metadata.annotations, **use})
        except (errors.Invalid, errors.NotFound, errors.Conflict):
            continue  # changed or deleted meanwhile
        return True
    raise Difference(f"{resource.kind} {meta['name']}: other runs keep changing it")


def _check_same(resource: Resource[Any], found: Any, body: dict[str, Any]) -> None:
    spec = body.get("spec")
    if spec is not None and hasattr(found, "spec") and patches.differs(found, {"spec": spec}):
        raise Difference(f"{resource.kind} {found.metadata.name}: exists and is different; delete or rename it")


async def _replace_metadata(
    client: Client, resource: Resource[Any], found: Any, field: str, value: dict[str, str]
) -> None:
    """Replace labels or annotations, only if the object is still as it was read."""
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version}
    change = {"op": "add", "path": f"/metadata/{field}", "value": value}
    await client.json_patch(resource, found.metadata.name, [version, change], namespace=found.metadata.namespace)


async def is_ending(client: Client, resource: Resource[Any], name: str, *, namespace: str = "") -> bool:
    """Return whether a shared object that was deleted is still there; one that another run made anew is not meant."""
    found = await client.find(resource, name, namespace=namespace)
    return found is not None and found.metadata.labels.get(LOADTEST_LABEL) == _RELEASING


async def release(client: Client, resource: Resource[Any], name: str, run: Run, *, namespace: str = "") -> bool:
    """Stop using a shared object, and delete it if no other run uses it. Return whether it was deleted."""
    for _ in range(_ATTEMPTS):
        found = await client.find(resource, name, namespace=namespace)
        if found is None or found.metadata.labels.get(LOADTEST_LABEL) not in SHARED_LABELS:
            return False
        left = {key: value for key, value in found.metadata.annotations.items() if key != run.use}
        try:
            if any(key.startswith(LOADTEST_USER_PREFIX) for key in left):
                await _replace_metadata(client, resource, found, "annotations", left)
                return False
            marked = {**found.metadata.labels, LOADTEST_LABEL: _RELEASING}
            await _replace_metadata(client, resource, found, "labels", marked)
        except (errors.Invalid, errors.Conflict):
            continue  # changed meanwhile
        except errors.NotFound:
            return False
        return await client.delete(resource, name, namespace=namespace, uid=found.metadata.uid)
    raise Difference(f"{resource.kind} {name}: other runs keep changing it")
