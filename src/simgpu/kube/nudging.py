"""Makes controllers look again at pods that they have passed over, by a change of an annotation."""

from __future__ import annotations

import asyncio
import datetime

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.vocabulary import NUDGED_ANNOTATION

_UNFINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_IN_FLIGHT = 16


async def nudge_pods(client: Client, *, namespace: str = "") -> int:
    """Change an annotation of all unfinished pods on nodes, of one namespace or of all. Return how many there are.

    A KWOK that takes over nodes skips their pods if its own lease of the node has not reached its cache yet, and looks
    at a pod again only when the pod changes: jobs would not end, and deleted pods would stay.
    """
    pods = iter(await client.list(resources.PODS, namespace=namespace, fields=_UNFINISHED))
    patch = {"metadata": {"annotations": {NUDGED_ANNOTATION: datetime.datetime.now(datetime.UTC).isoformat()}}}
    count = 0

    async def worker() -> None:
        nonlocal count
        for pod in pods:
            count += 1
            try:
                await client.merge_patch(resources.PODS, pod.metadata.name, patch, namespace=pod.metadata.namespace)
            except errors.NotFound:
                continue  # it is gone

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_IN_FLIGHT):
                group.create_task(worker())
    except* errors.KubeError as failures:
        raise failures.exceptions[0] from None
    return count
