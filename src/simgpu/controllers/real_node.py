"""The controller of a real node: from the node, its pods, its configuration and its kubelet to devices and their users.

Level-triggered like that of fake nodes: each reconcile looks at everything as it is now. The kubelet and the socket of
workloads are reached through small protocols.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from simgpu import errors
from simgpu.controllers.equipping import Equipment
from simgpu.controllers.own_node import OwnNode
from simgpu.machines.saved import Known
from simgpu.machines.ticking import Clock
from simgpu.machines.users import User
from simgpu.pods.guests import Guest
from simgpu.pods.holding import Held
from simgpu.topology import failures, pools, sharing
from simgpu.topology.devices import Device

LOOK_SECONDS = 5.0
LEAST_SECONDS = 0.05  # between two reconciles, however much happens
EXPECT_SECONDS = 0.2  # between reconciles while the kubelet has yet to list devices that it has allocated,
MAX_EXPECT_SECONDS = 10.0  # and for how long

_log = logging.getLogger(__name__)


class Kubelet(Protocol):
    """The kubelet, as far as it is spoken with."""

    def offer(
        self, spec: pools.NodeGpus, devices: Sequence[Device], failing: failures.Failures, *, elapsed: float
    ) -> None:
        """Offer devices, as healthy as they are so many seconds after failures began."""

    async def held(self, devices: Collection[str]) -> list[Held] | None:
        """Which containers have any of these devices; None if the kubelet does not answer."""


class WorkloadSocket(Protocol):
    """The socket to which containers send workloads of their own."""

    @property
    def working(self) -> Collection[Guest]:
        """Guests that have workloads."""


class RealNode:
    """Keeps a node's devices, what the kubelet is offered, users, and what is published in step with each other."""

    def __init__(
        self, node: OwnNode, equipment: Equipment, kubelet: Kubelet, *, known: Known, reservations: str, clock: Clock
    ) -> None:
        self.looked = False
        self.informed = asyncio.Event()
        self.held: Sequence[Held] | None = None
        self.failures = failures.NONE
        self.workloads: WorkloadSocket | None = None
        self._node = node
        self._equipment = equipment
        self._kubelet = kubelet
        self._known = known
        self._reservations = reservations
        self._clock = clock
        self._wake = asyncio.Event()
        self._users: Mapping[str, tuple[User, ...]] = known.users
        self._problem = ""
        self._failing_since = clock.steady()
        self._expected: dict[str, float] = {}  # devices that the kubelet has allocated, and until when to expect them

    @property
    def ready(self) -> bool:
        """Whether everything was looked at and brought to what it should be once."""
        return self.looked and self._equipment.box.steps > 0

    @property
    def shares_known(self) -> bool:
        """Whether it is known who shares the GPUs that there are."""
        return self.looked and (self.held is not None or not self._equipment.spec.gpus)

    def wake(self) -> None:
        """Something may have changed: look again soon."""
        self._wake.set()

    def expect(self, ids: Sequence[str]) -> None:
        """The kubelet allocates these devices, and lists them once it has written that down."""
        until = self._clock.steady() + MAX_EXPECT_SECONDS
        self._expected |= {sharing.device(name): until for name in ids}
        self.wake()

    def inform(self) -> None:
        """The cluster is seen: from here on it says what the node has and who uses it, and not what was known."""
        self._node.watch(self.wake)
        self._node.configure()
        self.informed.set()
        self.wake()

    def equip(self, spec: pools.NodeGpus) -> None:
        """Give the node these GPUs; those that it has stay where that cannot be done."""
        problem = ""
        try:
            self._equipment.equip(spec)
        except errors.InputError as error:
            problem = f"the GPUs stay as they were: {error}"
            self._node.complain("UnusableGpus", problem)
        if problem and problem != self._problem:
            _log.warning("%s", problem)
        self._problem = problem

    async def run(self) -> None:
        """Reconcile until cancelled: when something may have changed, and every few seconds."""
        while True:
            self._wake.clear()
            pause = await self.reconcile()
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def reconcile(self) -> float:
        """Make everything as it should be; seconds until it should be looked at again."""
        equipment, informed = self._equipment, self.informed.is_set()
        if informed:
            self.equip(self._node.spec())
        spec, devices = equipment.spec, equipment.box.devices
        change = self._offer(spec, devices)
        memory = {device.uuid: device.model.memory_mib.usable for device in devices}
        if memory and (held := await self._kubelet.held(memory)) is not None:
            self.held = held
        if informed and (self.held is not None or not memory):
            self._users = self._node.users(
                spec, self.held or (), memory, reservations=self._reservations, before=self._users
            )
            equipment.remember(self._users)
        else:
            self._users = self._known_users()
        self.apply_users()
        again = self._node.publish(spec, list(memory), self._users, equipment.box.counters)
        self.looked = True
        return min(again, LOOK_SECONDS, change, self._awaited())

    def apply_users(self) -> None:
        """Let containers do what they should; those with workloads of their own do nothing else."""
        working = self.workloads.working if self.workloads is not None else ()
        busy = {(guest.pod.uid, guest.pod.container) for guest in working if guest.pod is not None}
        self._equipment.use(self._users, busy)

    def _known_users(self) -> dict[str, tuple[User, ...]]:
        """Who used the GPUs when the cluster was last seen, less those that the kubelet lists no more."""
        if self.held is None:
            return self._known.users
        listed = {sharing.device(name) for held in self.held for name in held.ids}
        return {gpu: users for gpu, users in self._known.users.items() if gpu in listed}

    def _offer(self, spec: pools.NodeGpus, devices: Sequence[Device]) -> float:
        """Offer what there is, as healthy as it is; seconds until that changes by itself."""
        wanted, now = self._node.failures(spec), self._clock.steady()
        if wanted != self.failures:
            _log.info("failures are now: %s", wanted)
            self.failures, self._failing_since = wanted, now
        elapsed = now - self._failing_since
        self._kubelet.offer(spec, devices, wanted, elapsed=elapsed)
        change = wanted.next_change(elapsed)
        return LOOK_SECONDS if change is None else change

    def _awaited(self) -> float:
        """Seconds until the next look for devices that were allocated and are not listed yet."""
        now, listed = self._clock.steady(), {sharing.device(name) for held in self.held or () for name in held.ids}
        self._expected = {name: end for name, end in self._expected.items() if name not in listed and now < end}
        return EXPECT_SECONDS if self._expected else LOOK_SECONDS
