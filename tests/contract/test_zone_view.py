"""What a program that reads NUMA zones sees of a node's pods, over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from simgpu.node import messages, zone_view
from simgpu.node.zone_view import ZonedNode, ZonedPod

ONE = ZonedPod("team", "one", (("a", 0), ("b", 1), ("c", 1)), cpu=4600, memory=10)
NODE = ZonedNode(2, 4, "nvidia.com/gpu", (ONE, ZonedPod("other", "two", (("d", 1),))))


async def test_pods_are_in_the_zones_of_their_gpus(tmp_path: Path) -> None:
    view = zone_view.ZoneView(tmp_path, lambda: NODE)
    serving = asyncio.create_task(view.run())
    socket = tmp_path / "pod-resources" / "kubelet.sock"
    try:
        async with asyncio.timeout(10):
            while not socket.exists():
                await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(f"unix:{socket}", [("grpc.default_authority", "localhost")]) as channel:
            methods: list[Any] = [channel.unary_unary(f"/v1.PodResourcesLister/{name}") for name in ("List", "Get")]
            found = messages.ListPodResourcesResponse.decode(await methods[0](b""))
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await methods[1](b"")
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    assert [(pod.namespace, pod.name) for pod in found.pods] == [("other", "two"), ("team", "one")]
    (container,) = found.pods[1].containers
    near, far = (messages.TopologyInfo((messages.NumaNode(zone),)) for zone in (0, 1))
    assert container.devices == (
        messages.ContainerDevices("nvidia.com/gpu", ("a",), near),
        messages.ContainerDevices("nvidia.com/gpu", ("b", "c"), far),
    )
    assert container.cpu_ids == (0, 1, 4, 5, 6)
    assert [(item.type, item.size, item.topology) for item in container.memory] == [
        ("memory", 3, near),
        ("memory", 7, far),
    ]
    assert found.pods[0].containers[0].memory == ()


def test_cpus_of_zones_are_written_when_they_change_and_removed_in_the_end(tmp_path: Path) -> None:
    now = [ZonedNode(3, 4)]
    view = zone_view.ZoneView(tmp_path, lambda: now[0])
    view.show()
    folder = tmp_path / "sys" / "devices" / "system" / "node"
    assert {path.parent.name: path.read_text() for path in folder.glob("*/cpulist")} == {
        "node0": "0-3\n", "node1": "4-7\n", "node2": "8-11\n",
    }  # fmt: skip
    now[0] = ZonedNode(1, 0)
    view.show()
    assert {path.parent.name: path.read_text() for path in folder.glob("*/cpulist")} == {"node0": "\n"}
    view.remove()
    assert not folder.exists()
