"""Makes controllers look again at pods that they have passed over, by a change of an annotation."""

from __future__ import annotations

import contextlib
import datetime

from simgpu.kube import errors, resources
from simgpu.kube.client import Client
from simgpu.kube.views import Pod
from simgpu.vocabulary import NUDGED_ANNOTATION

_UNFINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
IN_FLIGHT = 16


async def unfinished_pods(client: Client, *, namespace: str = "") -> list[Pod]:
    """Return all unfinished pods on nodes, of one namespace or of all.

    A KWOK that takes over nodes skips their pods if its own lease of the node has not reached its cache yet, and looks
    at a pod again only when the pod changes: jobs would not end, and deleted pods would stay.
    """
    return await client.list(resources.PODS, namespace=namespace, fields=_UNFINISHED)


async def nudge(client: Client, pod: Pod) -> None:
    """Change an annotation of a pod, unless it is gone; one that was just changed by others need not be changed."""
    patch = {"metadata": {"annotations": {NUDGED_ANNOTATION: datetime.datetime.now(datetime.UTC).isoformat()}}}
    with contextlib.suppress(errors.NotFound, errors.Conflict):
        await client.merge_patch(resources.PODS, pod.metadata.name, patch, namespace=pod.metadata.namespace)
