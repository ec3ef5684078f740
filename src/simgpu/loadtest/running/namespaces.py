"""Namespaces of a run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from simgpu.kube import errors, parallel, resources
from simgpu.kube.client import Client
from simgpu.kube.resources import Resource
from simgpu.kube.views import Object
from simgpu.loadtest import concurrency
from simgpu.loadtest.ownership import Run
from simgpu.loadtest.scenario.model import NamespaceSettings
from simgpu.vocabulary import LOADTEST_LABEL

_PODS = Resource("Pod", "pods", Object)
_EMPTY_SECONDS = 60.0


class NamespaceTaken(errors.KubeError):
    """A namespace of that name exists, and is not the run's."""


def names(wanted: NamespaceSettings, run: Run) -> tuple[str, ...]:
    """Return the names of a run's namespaces."""
    prefix = wanted.prefix or f"test-{run.id[:6]}"
    return tuple(f"{prefix}-{number}" for number in range(1, wanted.number + 1))


async def create(client: Client, spaces: tuple[str, ...], run: Run, *, existing: bool) -> frozenset[str]:
    """Create namespaces, and wait until pods can be created in them. Return those that were created."""
    made: set[str] = set()

    async def one(name: str) -> None:
        try:
            await client.create(resources.NAMESPACES, {"metadata": {"name": name, "labels": run.labels}})
        except errors.AlreadyExists:
            found = await client.find(resources.NAMESPACES, name)
            if found is None or found.metadata.labels.get(LOADTEST_LABEL) != run.id:
                if not existing:
                    raise NamespaceTaken(
                        f"namespace {name} exists already; set namespace.prefix, or enableExistingNamespaces"
                    ) from None
                return
        made.add(name)

        async def account() -> bool:
            return await client.find(resources.SERVICE_ACCOUNTS, "default", namespace=name) is not None

        if not await concurrency.until(account, seconds=60.0, poll_seconds=0.05):
            raise NamespaceTaken(f"namespace {name}: no default service account; does the controller manager run?")

    await parallel.each(spaces, one, in_flight=16)
    return frozenset(made)


async def empty(client: Client, spaces: Iterable[str], used: Iterable[Resource[Any]]) -> None:
    """Delete what a run created in its namespaces, and wait a while until their pods are gone.

    The deletion of a namespace with pods takes half of their grace period, whether they use it or not.
    """
    listed = list(used)

    async def one(name: str) -> None:
        for resource in listed:
            with contextlib.suppress(errors.NotFound, errors.MethodNotAllowed):
                await client.delete_all(resource, namespace=name)
        await client.delete_all(resources.PODS, namespace=name)

        async def no_pods() -> bool:
            return not await client.list(_PODS, namespace=name, page_size=500)

        await concurrency.until(no_pods, seconds=_EMPTY_SECONDS)

    await parallel.each(spaces, one, in_flight=16)


async def delete(client: Client, run: Run, *, seconds: float) -> list[str]:
    """Delete a run's namespaces and wait until they are gone. Return those that are left after that time."""
    left: list[str] = []

    async def gone() -> bool:
        nonlocal left
        left = [item.metadata.name for item in await client.list(resources.NAMESPACES, labels=run.selector)]
        return not left

    async def request() -> bool:
        await gone()
        for name in left:
            await client.delete(resources.NAMESPACES, name)
        return True

    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    if not await concurrency.until(request, seconds=min(seconds, 60.0)):
        return left or ["namespaces (the API server does not answer)"]
    await concurrency.until(gone, seconds=max(0.1, deadline - clock()))
    return left
