"""The agent's side of the kubelet: device plugins, answers to allocations, and which container has which device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from simgpu.node import granting, messages, offers, owners, plugins, rpc
from simgpu.pods.holding import Held
from simgpu.topology import failures, pools
from simgpu.topology.devices import Device
from simgpu.vocabulary import GPU_RESOURCE


class NodeKubelet:
    """The device plugins of a node. `on_allocation` is called with the ids of GPUs that the kubelet allocates."""

    def __init__(
        self,
        node: str,
        source: granting.Source,
        on_allocation: Callable[[Sequence[str]], None],
        *,
        folder: Path,
        pod_resources: Path,
    ) -> None:
        self.plugins = plugins.Plugins(self._allocate, folder=folder)
        self._node = node
        self._source = source
        self._on_allocation = on_allocation
        self._owners = owners.Owners(pod_resources=pod_resources, plugins=folder)
        self._failures = failures.NONE
        self._gpu_resource = GPU_RESOURCE

    def offer(
        self, spec: pools.NodeGpus, devices: Sequence[Device], failing: failures.Failures, *, elapsed: float
    ) -> None:
        """Offer devices, with their health `elapsed` seconds after the failures began."""
        self._failures, self._gpu_resource = failing, spec.slicing.name(GPU_RESOURCE)
        found = {item.resource: item for item in _offers(spec, devices, failing.unhealthy_at(elapsed))}
        self.plugins.offer(found, present=failing.present(elapsed))

    async def held(self, devices: Collection[str]) -> list[Held] | None:
        """Return the containers that have any of these devices; None if the kubelet does not answer."""
        return await self._owners.look(devices)

    async def _allocate(self, resource: str, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        if self._failures.delay:
            await asyncio.sleep(self._failures.delay)
        if self._failures.refuse:
            raise rpc.RpcError(f"{resource}: rejected by the node's failures (refuse)")
        if resource != self._gpu_resource:
            return granting.others(node=self._node)
        self._on_allocation(ids)
        return granting.gpus(ids, node=self._node, source=self._source)


def _offers(spec: pools.NodeGpus, devices: Sequence[Device], unhealthy: Collection[int]) -> Iterator[offers.Offer]:
    """Yield the offers of GPUs and of other devices. NUMA nodes are reported where the topology specifies them."""
    gpus = [
        offers.Offered(device.uuid, place, device.index not in unhealthy, show_numa=spec.numa is not None)
        for device, place in zip(devices, offers.places(devices), strict=True)
    ]
    if gpus:
        yield offers.offer(GPU_RESOURCE, gpus, spec.slicing)
    for resource, count in spec.other.items():
        named = [offers.Offered(f"{resource.replace('/', '-')}-{number}") for number in range(count)]
        yield offers.offer(resource, named, spec.slicing)
