"""Finds SimGPU's Service in a cluster."""

from __future__ import annotations

import msgspec

from simgpu.kube.client import Client, decode
from simgpu.kube.errors import UnreadableAnswer
from simgpu.top.feeds import FeedError, ProxyFeed
from simgpu.vocabulary import SERVICE_SELECTOR

_PORT = "gpu-metrics"


class _Meta(msgspec.Struct):
    name: str
    namespace: str


class _Port(msgspec.Struct):
    name: str = ""


class _Spec(msgspec.Struct):
    ports: list[_Port] = []


class _Service(msgspec.Struct):
    metadata: _Meta
    spec: _Spec


class _Services(msgspec.Struct):
    items: list[_Service] = []


async def find(client: Client, server: str) -> ProxyFeed:
    """Return the feed of the controller that the chart has installed; raises `FeedError` if there is none."""
    body = await client.raw(f"/api/v1/services?labelSelector={SERVICE_SELECTOR}")
    try:
        services = decode(body, _Services).items
    except UnreadableAnswer as error:
        raise FeedError(f"{server}: an unreadable list of Services: {error}") from None
    found = [item.metadata for item in services if any(port.name == _PORT for port in item.spec.ports)]
    if not found:
        raise FeedError(f"{server}: no Service of SimGPU's controller here; install the chart, or give a URL")
    at = min(found, key=lambda item: (item.namespace, item.name))
    path = f"/api/v1/namespaces/{at.namespace}/services/http:{at.name}:{_PORT}"
    return ProxyFeed(client, path, label=f"{at.namespace}/{at.name}")
