"""Makes controllers look again at pods that they have passed over, by a change of an annotation."""

from __future__ import annotations

import contextlib
import datetime

from simgpu.kube import errors, parallel, resources
from simgpu.kube.client import Client
from simgpu.kube.views import Pod
from simgpu.vocabulary import NUDGED_ANNOTATION

_UNFINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
_IN_FLIGHT = 16


async def nudge_pods(client: Client, *, namespace: str = "") -> int:
    """Change an annotation of all unfinished pods on nodes, of one namespace or of all. Return how many there are.

    A KWOK that takes over nodes skips their pods if its own lease of the node has not reached its cache yet, and looks
    at a pod again only when the pod changes: jobs would not end, and deleted pods would stay.
    """
    pods = list(await client.list(resources.PODS, namespace=namespace, fields=_UNFINISHED))
    patch = {"metadata": {"annotations": {NUDGED_ANNOTATION: datetime.datetime.now(datetime.UTC).isoformat()}}}

    async def nudge(pod: Pod) -> None:
        with contextlib.suppress(errors.NotFound):  # it is gone
            await client.merge_patch(resources.PODS, pod.metadata.name, patch, namespace=pod.metadata.namespace)

    await parallel.each(pods, nudge, in_flight=_IN_FLIGHT)
    return len(pods)
