"""The agent's side of the kubelet: device plugins, the DRA plugin, and which container has which device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from simgpu import errors
from simgpu.dra import grants, node_devices
from simgpu.dra.claims import AllocatedClaim
from simgpu.machines.health import DeviceFaults
from simgpu.node import dra_plugin, granting, messages, offers, owners, plugins, rpc
from simgpu.node.prepared import PreparedClaims
from simgpu.node.preparing import GetClaim, Preparer
from simgpu.pods.holding import Held
from simgpu.topology import failures, mig_offers, pools, sharing
from simgpu.topology.devices import Device, part_id
from simgpu.vocabulary import GPU_RESOURCE, MIG_NONE

_log = logging.getLogger(__name__)


class KubeletFolders(msgspec.Struct, frozen=True):
    """Where the kubelet and the container runtime look: device plugins, pod resources, DRA plugins, CDI files.

    `pod` is the uid of the agent's own pod, if it is one.
    """

    device_plugins: Path
    pod_resources: Path
    dra_plugins: Path
    registry: Path
    cdi: Path
    pod: str = ""


class NodeKubelet:
    """The plugins of a node. `on_allocation` is called with the ids of GPUs that the kubelet allocates.

    `get` reads a claim from the API server. Prepared claims are kept in the folder `state`. Unless devices are
    `offered`, only what the kubelet allocated is read: other plugins offer them.
    """

    on_allocation: Callable[[Sequence[str]], None]

    def __init__(
        self,
        node: str,
        source: granting.Source,
        *,
        folders: KubeletFolders,
        state: Path,
        get: GetClaim,
        offered: bool = True,
    ) -> None:
        self.prepared = PreparedClaims(state, folders.cdi, source, node=node)
        self._node = node
        self._source = source
        self._offered = offered
        self.on_allocation = lambda _ids: None
        self._plugins = plugins.Plugins(self._allocate, folder=folders.device_plugins)
        self._owners = owners.Owners(pod_resources=folders.pod_resources, plugins=folders.device_plugins)
        self._preparer = Preparer(self.prepared, get, self._grant)
        at = dra_plugin.sockets(folders.dra_plugins, folders.registry, pod=folders.pod)
        self._dra = dra_plugin.DraPlugin(self._preparer.prepare, self._preparer.unprepare, at=at)
        self._failures = failures.NONE
        self._gpu_resources = {GPU_RESOURCE}
        self._places: Mapping[str, node_devices.DevicePlace] = {}

    @property
    def claims(self) -> Collection[grants.PreparedClaim]:
        """The prepared claims."""
        return self.prepared.claims.values()

    async def forget(self, claim: grants.PreparedClaim) -> None:
        """Remove what is left of a prepared claim."""
        try:
            await self.prepared.remove(claim.uid)
        except (errors.SimgpuError, OSError) as error:
            _log.warning("claim %s/%s was not removed: %s", claim.namespace, claim.name, error)

    async def restore(self) -> None:
        """Continue with the claims that the last agent had prepared."""
        try:
            await self.prepared.restore()
        except (errors.SimgpuError, OSError) as error:
            _log.warning("files of prepared claims are not restored: %s", error)

    def remove_files(self) -> None:
        """Remove sockets and CDI files, and the folder of the DRA plugin if it is empty."""
        self._plugins.remove_files()
        self.prepared.remove_files()
        with contextlib.suppress(OSError):  # it is not there, or another plugin uses it
            self._dra.folder.rmdir()

    async def run(self) -> None:
        """Keep the device plugins registered as offered, until cancelled."""
        await self._plugins.run()

    async def run_claims(self) -> None:
        """Keep the DRA plugin registered as offered, until cancelled."""
        await self._dra.run()

    def stand_by(self, spec: pools.NodeGpus, devices: Sequence[Device]) -> None:
        """Prepare claims of these devices; their health is reported by another agent."""
        claimable = devices if spec.allocation.by_claims and not spec.allocation.by_count else ()
        self._places = node_devices.places(claimable, spec)
        self._dra.offer(dra_plugin.DeviceHealths(self._node), present=bool(claimable))

    def offer(
        self,
        spec: pools.NodeGpus,
        devices: Sequence[Device],
        failing: failures.Failures,
        *,
        elapsed: float,
        faults: Mapping[str, DeviceFaults],
        occupied: Collection[str] = (),
    ) -> None:
        """Offer devices, `elapsed` seconds after the failures began; `faults` are those of devices by id.

        No pod gets GPUs that are `occupied`. The DRA plugin stays until the last claim is unprepared.
        """
        self._failures = failing
        self._preparer.failures = failing
        problems = {gpu: wrong.problem for gpu, wrong in faults.items() if wrong.unhealthy}
        present = failing.present(elapsed)
        gpus = {item.resource: item for item in _gpu_offers(spec, devices, {*problems, *occupied})}
        self._gpu_resources = {spec.slicing.name(GPU_RESOURCE), *gpus}
        found = gpus | {item.resource: item for item in _other_offers(spec)}
        self._plugins.offer(found if self._offered else {}, present=present)
        claimable = devices if spec.allocation.by_claims and not spec.allocation.by_count else ()
        self._places = node_devices.places([item for item in claimable if item.uuid not in occupied], spec)
        health = {name: problems.get(place.gpu, "") for name, place in self._places.items()}
        wanted = bool(claimable or self.prepared.claims)
        self._dra.offer(dra_plugin.DeviceHealths(self._node, health), present=present and wanted)

    async def held(self, devices: Collection[str]) -> list[Held] | None:
        """Return the containers that have any of these devices; None if the kubelet does not answer."""
        return await self._owners.look(devices)

    def _grant(self, claim: AllocatedClaim) -> grants.PreparedClaim:
        return grants.grant(claim, self._places, pool=self._node)

    async def _allocate(self, resource: str, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        if self._failures.delay:
            await asyncio.sleep(self._failures.delay)
        if self._failures.refuse:
            raise rpc.RpcError(f"{resource}: rejected by the node's failures (refuse)")
        if resource not in self._gpu_resources:
            return granting.others(node=self._node)
        taken = grants.held_devices(self.claims) & {sharing.device(name) for name in ids}
        if taken:
            raise rpc.RpcError(f"{resource}: claims hold {', '.join(sorted(taken))}")
        self.on_allocation(ids)
        return granting.gpus(ids, node=self._node, source=self._source)


def _gpu_offers(spec: pools.NodeGpus, devices: Sequence[Device], unhealthy: Collection[str]) -> Iterator[offers.Offer]:
    """Yield the offers of GPUs and MIG instances. NUMA nodes are reported where the topology specifies them."""
    if spec.allocation.by_claims:
        return
    places = offers.places(devices)
    for resource, offered in mig_offers.offered(spec, spec.mig.strategy or MIG_NONE).items():
        listed = []
        for item in offered:
            device = devices[item.gpu]
            name = device.uuid if item.part is None else part_id(device.uuid, item.part)
            place = places[item.gpu] if item.part is None else offers.on_card(device)
            healthy = device.uuid not in unhealthy
            listed.append(offers.Offered(name, place, healthy, show_numa=spec.numa is not None))
        yield offers.offer(resource, listed, spec.slicing)


def _other_offers(spec: pools.NodeGpus) -> Iterator[offers.Offer]:
    for resource, count in spec.other.items():
        named = [offers.Offered(f"{resource.replace('/', '-')}-{number}") for number in range(count)]
        yield offers.offer(resource, named, spec.slicing)
