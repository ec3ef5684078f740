"""NodeResourceTopologies that may not be read or written at first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from simgpu.controllers import node_topologies
from simgpu.controllers.node_topologies import NodeTopologies
from simgpu.controllers.numa_zones import NodeZones, ZoneGpus
from simgpu.kube.client import Client
from simgpu.kube.writer import Writer
from simgpu.topology import pools
from tests.fixtures.http import Answer, Scripted, answer, status, stream

SERVED = answer(
    {"resources": [{"name": "noderesourcetopologies", "kind": "NodeResourceTopology", "namespaced": False}]}
)
READ = answer({"items": []})
DENIED = status(403, "noderesourcetopologies is forbidden", reason="Forbidden")
META = {"name": "n", "uid": "u", "resourceVersion": "1"}
END = {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}
ZONES = NodeZones("uid-n", pools.Numa(zones=2), "nvidia.com/gpu", (ZoneGpus(4, 4, 4), ZoneGpus(4, 4, 4)))


def listed(server: Scripted, *objects: dict[str, object]) -> Answer:
    events = [{"type": "ADDED", "object": item} for item in objects]
    return stream(*events, {"type": "BOOKMARK", "object": {"metadata": END}}, then="silence", server=server)


@contextlib.asynccontextmanager
async def running(scripted: Scripted, changed: asyncio.Event) -> AsyncIterator[NodeTopologies]:
    async with Client(scripted.target) as client:
        writer = Writer(client, manager="test")
        made = NodeTopologies(client, writer, lambda _node: changed.set(), namespace="ns")
        tasks = [asyncio.create_task(item) for item in (made.run(), writer.run())]
        try:
            yield made
        finally:
            scripted.hold.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_zones_are_published_as_soon_as_they_are_configured_and_a_rejected_write_is_tried_again(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_topologies, "RETRY_SECONDS", 0.001)
    invalid = status(422, "not yet", reason="Invalid")
    scripted.script = [SERVED, DENIED, SERVED, READ, listed(scripted), invalid, answer({"metadata": META})]
    async with running(scripted, asyncio.Event()) as topologies:
        await scripted.asked(2)
        topologies.want("n", ZONES)
        await scripted.asked(7)
    assert [item.method for item in scripted.seen[5:7]] == ["PATCH", "PATCH"]


async def test_objects_that_may_not_be_removed_or_read_any_more_hold_up_no_uninstall(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_topologies, "RETRY_SECONDS", 0.001)
    changed = asyncio.Event()
    scripted.script = [SERVED, READ, listed(scripted, {"metadata": META}), *[DENIED] * 20]
    async with running(scripted, changed) as topologies, asyncio.timeout(10):
        await changed.wait()
        topologies.drop("n")
        while not topologies.cleared:
            await asyncio.sleep(0.002)
    assert scripted.seen[3].method == "DELETE"
