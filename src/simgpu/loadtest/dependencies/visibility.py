"""Whether the scheduler knows the newest slice: a probe pod with a claim has to be placed on its node.

A watch delivers slices in the order in which they were written, so all others are known then too.
"""

from __future__ import annotations

from typing import Any

from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.resources import RESOURCE_CLAIMS, Resource
from simgpu.kube.views import Object
from simgpu.loadtest import concurrency, served
from simgpu.loadtest.dependencies import nodes
from simgpu.vocabulary import KWOK_NODE

_NAME = "simgpu-loadtest-probe"


async def seen_by_scheduler(
    client: Client, *, namespace: str, node: str, device_class: str, version: str, seconds: float
) -> bool:
    """Return whether a pod that claims a device of a class was placed on a node in time."""
    claims = Resource("ResourceClaim", RESOURCE_CLAIMS.plural, Object, group=RESOURCE_CLAIMS.group, version=version)
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class}}
    claim = served.converted(
        {
            "apiVersion": f"{RESOURCE_CLAIMS.group}/",
            "metadata": {"name": _NAME},
            "spec": {"devices": {"requests": [request]}},
        },
        claims,
    )
    await client.create(claims, claim, namespace=namespace)
    try:
        await client.create(resources.PODS, _pod(node), namespace=namespace)

        async def placed() -> bool:
            return bool((await client.get(resources.PODS, _NAME, namespace=namespace)).spec.node_name)

        return await concurrency.until(placed, seconds=seconds, poll_seconds=0.05)
    finally:
        await concurrency.uninterrupted(_remove(client, claims, namespace))


async def _remove(client: Client, claims: Resource[Any], namespace: str) -> None:
    await client.delete(resources.PODS, _NAME, namespace=namespace, grace_seconds=0)
    await client.delete(claims, _NAME, namespace=namespace)

    async def gone() -> bool:
        return await client.find(claims, _NAME, namespace=namespace) is None

    await concurrency.until(gone, seconds=30.0, poll_seconds=0.05)


def _pod(node: str) -> dict[str, Any]:
    return {
        "metadata": {"name": _NAME},
        "spec": {
            "nodeSelector": {nodes.HOSTNAME_LABEL: node},
            "tolerations": [{"key": KWOK_NODE, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": _NAME}],
            "containers": [{"name": "probe", "image": "example.com/probe", "resources": {"claims": [{"name": "gpu"}]}}],
        },
    }
