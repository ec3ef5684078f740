"""The controller of a real node: from the node, its pods, its configuration and its kubelet to devices and their users.

Level-triggered like that of fake nodes: each reconcile works from the current state. The kubelet and the workload
socket are behind small protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from simgpu import errors, vocabulary
from simgpu.controllers import numa_zones
from simgpu.controllers.equipping import Equipment
from simgpu.controllers.node_topologies import NodeTopologies
from simgpu.controllers.own_mig import OwnLayouts, gpus_of, instances
from simgpu.controllers.own_node import OwnNode
from simgpu.controllers.own_slices import OwnSlices
from simgpu.dra import grants
from simgpu.dra.grants import PreparedClaim
from simgpu.machines import health
from simgpu.machines.health import DeviceFaults
from simgpu.machines.saved import Known
from simgpu.machines.ticking import Clock
from simgpu.machines.users import User
from simgpu.pods.guests import Guest
from simgpu.pods.holding import Held, HeldInstance
from simgpu.topology import allocating, failures, mig_by_hand, mig_choice, mig_offers, pools, sharing
from simgpu.topology.devices import Device

RECONCILE_SECONDS = 5.0  # between reconciles if nothing changes
MIN_PAUSE_SECONDS = 0.05  # between reconciles, however many changes there are
EXPECT_SECONDS = 0.2  # between reconciles while the kubelet does not list devices yet that it has allocated
COLLECT_SECONDS = 600.0  # between looks for prepared claims that are gone
MAX_EXPECT_SECONDS = 10.0  # for such devices to be listed
MAX_UNDECIDED_SECONDS = 30.0  # for DeviceClasses to be read, where the way of allocation depends on them

_log = logging.getLogger(__name__)


class Kubelet(Protocol):
    """What the controller needs of the kubelet."""

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

        No pod gets GPUs that are `occupied`.
        """

    async def held(self, devices: Collection[str]) -> list[Held] | None:
        """Return the containers that have any of these devices; None if the kubelet does not answer."""

    @property
    def claims(self) -> Collection[PreparedClaim]:
        """The prepared claims."""

    async def forget(self, claim: PreparedClaim) -> None:
        """Remove what is left of a prepared claim."""


class RealNode:
    """Keeps a node's devices, the offers to the kubelet, users and published view in sync.

    `working` returns the guests that have workloads of their own.
    """

    def __init__(
        self,
        node: OwnNode,
        equipment: Equipment,
        kubelet: Kubelet,
        slices: OwnSlices,
        *,
        working: Callable[[], Collection[Guest]],
        known: Known,
        reservations: str,
        clock: Clock,
    ) -> None:
        self.reconciled = False
        self.following = asyncio.Event()
        self.held: Sequence[Held] | None = None
        self.failures = failures.NONE
        self.topologies: NodeTopologies | None = None
        self._working = working
        self._node = node
        self._equipment = equipment
        self._kubelet = kubelet
        self._slices = slices
        slices.changed = self.wake
        self._known = known
        self._reservations = reservations
        self._clock = clock
        self._wake = asyncio.Event()
        self._users: Mapping[str, tuple[User, ...]] = known.users
        self._problem = ""
        self._failing_since = clock.steady()
        self._faults: Mapping[str, DeviceFaults] = {}
        self._errors = 0.0  # XID errors of all GPUs so far
        self._undecided_since: float | None = None  # when it was first asked what `both` acts as
        self._layouts = OwnLayouts(node.divisions, known.hand)
        self._expected: dict[str, float] = {}  # devices that the kubelet has allocated, and until when to expect them

    @property
    def ready(self) -> bool:
        """Whether the node was reconciled, and its GPUs made a step."""
        return self.reconciled and self._equipment.box.steps > 0

    @property
    def shares_known(self) -> bool:
        """Whether the users of all GPUs are known."""
        return self.reconciled and (self.held is not None or not self._equipment.spec.gpus)

    def wake(self) -> None:
        """Reconcile soon: something may have changed."""
        self._wake.set()

    def claims_changed(self) -> None:
        """Create and remove MIG instances as prepared claims want them, and reconcile soon.

        While the saved claims are read at a start, the node has no GPUs yet: those come with their instances.
        """
        if self._equipment.spec.gpus:
            self.equip(self._equipment.spec)
        self.wake()

    def stepped(self) -> None:
        """After each step: report users that limits ended, and reconcile soon if a GPU had an error."""
        for user, message in self._equipment.box.take_ended():
            self._node.report_ended(user, message)
        errors_now = float(self._equipment.box.machine.column("xids").sum())
        if errors_now != self._errors:
            self._errors = errors_now
            self.wake()

    def expect(self, ids: Sequence[str]) -> None:
        """Reconcile often until the kubelet lists these devices, which it is allocating."""
        until = self._clock.steady() + MAX_EXPECT_SECONDS
        self._expected |= dict.fromkeys(ids, until)
        self.wake()

    def follow_cluster(self) -> None:
        """Use the cluster from now on instead of the saved state: all stores are filled."""
        self._node.watch(self.wake)
        self._node.configure()
        self.following.set()
        self.wake()

    def equip(self, spec: pools.NodeGpus) -> None:
        """Give the node these GPUs; if that fails, it keeps those that it has, and the problem is reported."""
        problem = ""
        try:
            self._equipment.equip(spec, grants.instances(self._kubelet.claims), hand=self._layouts.hand)
        except errors.InputError as error:
            problem = f"the previous GPUs stay in place: {error}"
            self._node.report("UnusableGpus", problem)
        if problem and problem != self._problem:
            _log.warning("%s", problem)
        self._problem = problem

    def set(self, device: str, setting: str, values: Sequence[int]) -> int:
        """Apply an NVML setting, if the node's pool allows it; return one of NVML's codes."""
        equipment = self._equipment
        if setting not in mig_by_hand.SETTINGS or not equipment.spec.settable:
            return equipment.set(device, setting, values)
        index = equipment.box.find(device)
        if index is None:
            return mig_by_hand.NOT_FOUND
        claimed = grants.instances(self._kubelet.claims).get(equipment.box.devices[index].uuid, ())
        before, own = self._layouts.hand, equipment.spec.gpus[index].layout
        try:
            hand = self._layouts.change(
                equipment.box, index, setting, values, own=own, claimed=claimed, held=self._held_parts(index)
            )
        except mig_by_hand.MigRefused as error:
            return error.code
        self._layouts.hand = hand
        self.equip(hand.over(equipment.spec))
        if self._problem:
            self._layouts.hand = before
            return mig_by_hand.UNKNOWN
        equipment.remember(self._users)
        self.wake()
        return 0

    async def run(self) -> None:
        """Reconcile until cancelled: when something may have changed, and every few seconds."""
        while True:
            self._wake.clear()
            pause = await self.reconcile()
            await asyncio.sleep(MIN_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def collect(self) -> None:
        """Until cancelled, remove prepared claims that are gone: their kubelet may have lost its own records."""
        await self.following.wait()
        while True:
            named = self._node.claim_names()
            for claim in [item for item in self._kubelet.claims if (item.namespace, item.name) not in named]:
                if await self._slices.is_gone(claim.namespace, claim.name, claim.uid):
                    _log.info(
                        "claim %s/%s (%s) is gone, and was never unprepared", claim.namespace, claim.name, claim.uid
                    )
                    await self._kubelet.forget(claim)
            await asyncio.sleep(COLLECT_SECONDS)

    async def reconcile(self) -> float:
        """Reconcile once; return the seconds until the next time."""
        equipment, following = self._equipment, self.following.is_set()
        if following:
            if self.held is None:
                await self._look()  # GPUs that pods have stay divided as they are
            self.equip(self._divided(self._allocated(self._node.spec())))
            equipment.remember(self._users)  # the next agent has these GPUs, whatever comes between
        await self._look()  # meanwhile GPUs may be divided by hand
        spec, devices, parts = equipment.spec, equipment.box.devices, self._instances()
        memory = {device.uuid: device.model.memory_mib.usable for device in devices}
        occupied = self._occupied(spec)
        change = self._offer(spec, devices, occupied)
        if following and (self.held is not None or not memory):
            self._users = self._node.users(
                spec, self.held or (), memory, reservations=self._reservations, before=self._users,
                claims=self._kubelet.claims, instances=parts,
            )  # fmt: skip
            equipment.remember(self._users)
        else:
            self._users = self._known_users()
        self.apply_users()
        known = self.held is not None or not spec.allocation.by_claims
        if following and known and (node := self._node.node) is not None:
            free = [device for device in devices if device.uuid not in occupied]
            self._slices.publish(node, spec, free, self._faults)
            if self.topologies is not None:
                self.topologies.want(node.metadata.name, self.zones())
        divided = (device for device in devices if spec.allocation.divides and device.instances)
        claimed = {device.uuid: mig_offers.numbered_on(device) for device in divided}
        again = self._node.publish(spec, list(memory), self._users, equipment.box.counters, claimed=claimed)
        self.reconciled = True
        return min(again, RECONCILE_SECONDS, change, self._awaited())

    def zones(self) -> numa_zones.NodeZones | None:
        """Return the NUMA zones of the node, with the GPUs that pods have; None if its pool has none."""
        node, spec = self._node.node, self._equipment.spec
        if node is None or spec.numa is None:
            return None
        taken = dict.fromkeys((gpu for gpu, users in self._users.items() if users), 1)
        if spec.slicing.replicas(vocabulary.GPU_RESOURCE) > 1:
            taken = Counter(map(sharing.device, {name for held in self.held or () for name in held.ids}))
        unhealthy = {gpu for gpu, wrong in self._faults.items() if wrong.unhealthy}
        ids = [device.uuid for device in self._equipment.box.devices]
        return numa_zones.zones_of(node, spec, ids, taken, unhealthy)

    def owners(self) -> list[tuple[str, int, tuple[str, str]]]:
        """Return the GPUs that pods have: id, NUMA node, and namespace and name of the pod that metrics name."""
        return [
            (device.uuid, device.numa, (users[0].pod.namespace, users[0].pod.name))
            for device in self._equipment.box.devices
            if (users := self._users.get(device.uuid, ()))
        ]

    @property
    def pods(self) -> Collection[str]:
        """The pods that have GPUs, by uid."""
        return {user.pod.uid for users in self._users.values() for user in users}

    async def _look(self) -> None:
        """Ask the kubelet for the containers that have devices of the node."""
        ids = {*(device.uuid for device in self._equipment.box.devices), *self._instances()}
        if ids and (held := await self._kubelet.held(ids)) is not None:
            self.held = held

    def apply_users(self) -> None:
        """Apply the users to the GPUs; containers with workloads of their own are driven by these."""
        busy = {(guest.pod.uid, guest.pod.container) for guest in self._working() if guest.pod is not None}
        self._equipment.use(self._users, busy)

    def _known_users(self) -> dict[str, tuple[User, ...]]:
        """Return the saved users of GPUs that the kubelet still lists."""
        if self.held is None:
            return self._known.users
        listed = gpus_of({sharing.device(name) for held in self.held for name in held.ids}, self._instances())
        listed |= {device.gpu for claim in self._kubelet.claims for device in claim.devices}
        return {gpu: users for gpu, users in self._known.users.items() if gpu in listed}

    @property
    def all_held(self) -> Sequence[Held]:
        """The devices of containers: allocated by the kubelet, and of claims."""
        return (*(self.held or ()), *self._node.claimed(self._kubelet.claims))

    def _allocated(self, spec: pools.NodeGpus) -> pools.NodeGpus:
        """Return what the node has with the way in which its kubelet allocates GPUs: there can be only one.

        Both together act as DRA where the scheduler makes claims for plain requests, else as the extended resource.
        """
        allocation = spec.allocation
        if allocation.way == vocabulary.EXTENDED:
            return spec
        self._slices.need()
        way = self._one_way() if allocation.way == vocabulary.BOTH else allocation.way
        return msgspec.structs.replace(spec, allocation=allocating.GpuAllocation(way, allocation.options))

    def _divided(self, spec: pools.NodeGpus) -> pools.NodeGpus:
        """Return what the node has with the MIG layout that its GPUs should have, as far as nothing is in the way."""
        node, topology, current = self._node.node, self._node.configuration.current, self._equipment.spec
        if node is None or topology is None or not spec.gpus:
            return spec
        if current.gpus and self.held is None:  # who has which GPU is not known yet
            return mig_choice.kept(spec, current)
        return self._layouts.settle(node, spec, topology, current=current, users=self._pods_on)

    def _pods_on(self, index: int) -> list[str]:
        """Return the pods that have a GPU, by index, or a part of it; of one that starts, the name is not known yet."""
        gpu = self._equipment.box.devices[index].uuid
        pods = list(dict.fromkeys(f"{user.pod.namespace}/{user.pod.name}" for user in self._users.get(gpu, ())))
        starting = gpus_of({sharing.device(name) for name in self._expected}, self._instances())
        starting |= grants.held_gpus(self._kubelet.claims)
        return pods or (["a pod that is being started"] if gpu in starting else [])

    def _held_parts(self, index: int) -> frozenset[int | None]:
        """Return the numbers of the MIG instances of a GPU, by index, that pods have or get; None for the whole GPU."""
        gpu, known = self._equipment.box.devices[index].uuid, self._instances()
        starting = {sharing.device(name) for name in self._expected}
        parts = (known[name].number for name in starting if name in known and known[name].gpu == gpu)
        whole = (None,) if gpu in starting | grants.held_gpus(self._kubelet.claims) else ()
        return frozenset((*(user.part for user in self._users.get(gpu, ())), *parts, *whole))

    def _instances(self) -> dict[str, HeldInstance]:
        return instances(self._equipment.box.devices, self._equipment.spec.mig.strategy)

    def _one_way(self) -> str:
        """Return what `both` acts as. Until that is known, the way stays; without one, GPUs are allocated in none."""
        before, now = self._equipment.spec, self._clock.steady()
        why = ""
        if self._slices.known:
            self._undecided_since = None
            way = vocabulary.DRA if self._slices.serves_requests else vocabulary.EXTENDED
        else:
            way = before.allocation.way if before.gpus else vocabulary.BOTH
            self._undecided_since = now if self._undecided_since is None else self._undecided_since
            if now - self._undecided_since < MAX_UNDECIDED_SECONDS:
                return way
            way = vocabulary.EXTENDED if way == vocabulary.BOTH else way
            why = f"; DeviceClass {vocabulary.DRA_DRIVER} could not be read: {self._slices.problem}"
        self._node.report(
            "AllocationOnRealNode",
            f"allocation: both is for fake nodes; GPUs of this node are allocated by {way}{why}",
        )
        return way

    def _occupied(self, spec: pools.NodeGpus) -> Collection[str]:
        """Return the GPUs that pods hold in the way that no longer applies: nothing else gets them until they are free.

        The scheduler and the kubelet know nothing of the other way's holders.
        """
        if spec.allocation.by_claims:
            names = self._node.held_gpus(self.held or ()) | {sharing.device(name) for name in self._expected}
            found = gpus_of(names, self._instances())
            change = f"left out of ResourceSlices until the pods end that have them as {vocabulary.GPU_RESOURCE}"
        else:
            found = grants.held_gpus(self._kubelet.claims)
            change = f"not allocatable as {vocabulary.GPU_RESOURCE} until the claims of them are released"
        if found:
            self._node.report("GpusHeld", f"allocation was changed while GPUs are in use: {len(found)} are {change}")
        return found

    def _offer(self, spec: pools.NodeGpus, devices: Sequence[Device], occupied: Collection[str]) -> float:
        """Offer the devices with their current health; return the seconds until that changes by itself."""
        wanted, now = self._node.failures(spec), self._clock.steady()
        if wanted != self.failures:
            _log.info("failures changed: %s", wanted)
            self.failures, self._failing_since = wanted, now
        elapsed = now - self._failing_since
        box = self._equipment.box
        if self.following.is_set():  # until then GPUs that failed stay so: the annotation of the node is not known
            box.fail(health.configured(wanted, elapsed))
        self._faults = box.faults()
        self._kubelet.offer(spec, devices, wanted, elapsed=elapsed, faults=self._faults, occupied=occupied)
        change = wanted.next_change(elapsed)
        return RECONCILE_SECONDS if change is None else change

    def _awaited(self) -> float:
        """Return the seconds until the next reconcile, fewer while allocated devices are not listed yet."""
        now, listed = self._clock.steady(), {name for held in self.held or () for name in held.ids}
        self._expected = {name: end for name, end in self._expected.items() if name not in listed and now < end}
        return EXPECT_SECONDS if self._expected else RECONCILE_SECONDS
