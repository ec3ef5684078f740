"""What the soak does to the cluster: one function for each kind of fault, which undoes it, too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from soak import plan
from soak.plan import Planned
from soak.world import LEASE_SECONDS, World
from tests.fixtures import rough

_STEPS = (-86000.0, -3600.0, -30.0, 30.0, 3600.0, 86400.0 * 30)  # seconds; certificates were valid a day before
_SHARES = (0.3, 0.7, 1.0)  # of requests that a storm answers


class Impossible(Exception):
    """This machine does not allow a fault; the text says why."""


class Faults:
    """The faults by name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.kinds: dict[str, Callable[[Planned], Awaitable[None]]] = {
            **dict.fromkeys(plan.KILLS, self._kill),
            "freeze controller": self._freeze,
            "restart kubelets": self._restart_kubelets,
            "full disk": self._full_disk,
            "slow disk": self._slow_disk,
            "cut network": self._cut,
            "lost network": self._lost,
            "slow network": self._slow,
            "429 storm": self._storm,
            "500 storm": self._storm,
            "stepped clock": self._step,
            "compaction": self._compact,
        }

    async def _kill(self, planned: Planned) -> None:
        await self._world.stop(planned.kind.removeprefix("kill "))
        await asyncio.sleep(planned.choice * planned.seconds / 2)
        await self._world.revive()

    async def _freeze(self, planned: Planned) -> None:
        """Stop the controller for longer than it may lead without renewing."""
        self._world.freeze("controller", frozen=True)
        try:
            await asyncio.sleep(LEASE_SECONDS + planned.choice)
        finally:
            self._world.freeze("controller", frozen=False)

    async def _restart_kubelets(self, planned: Planned) -> None:
        """Let the kubelets of the agents' nodes begin anew, which removes the sockets of device plugins."""
        for kubelet in self._world.kubelets:
            await kubelet.restart()
        await asyncio.sleep(planned.choice)

    async def _full_disk(self, planned: Planned) -> None:
        if self._world.disk.problem:
            raise Impossible(self._world.disk.problem)
        await asyncio.to_thread(self._world.disk.fill)
        try:
            self._world.effects[planned.kind] += not self._world.disk.has_room()
            await asyncio.sleep(planned.seconds)
        finally:
            self._world.disk.free()
        await self._world.revive()  # etcd ends where it cannot write

    async def _slow_disk(self, planned: Planned) -> None:
        if self._world.disk.problem:
            raise Impossible(self._world.disk.problem)
        with contextlib.ExitStack() as stack:
            try:
                group = stack.enter_context(self._world.disk.slow([*self._world.pids().values()]))
            except OSError as error:
                raise Impossible(str(error)) from None
            self._world.effects[planned.kind] += await asyncio.to_thread(self._world.disk.slows, group)
            await asyncio.sleep(2 * planned.seconds)
        await self._world.revive()

    async def _cut(self, planned: Planned) -> None:
        connections = 0
        for _ in range(3):
            connections += self._world.proxy.cut()
            await asyncio.sleep(planned.seconds / 3)
        self._world.effects[planned.kind] += connections > 0

    async def _lost(self, planned: Planned) -> None:
        self._world.proxy.stalled = True
        try:
            await asyncio.sleep(2 * planned.seconds)
        finally:
            self._world.proxy.stalled = False
            self._world.proxy.cut()

    async def _slow(self, planned: Planned) -> None:
        self._world.proxy.delay = 0.02 + 0.3 * planned.choice
        try:
            await asyncio.sleep(2 * planned.seconds)
        finally:
            self._world.proxy.delay = 0.0

    async def _storm(self, planned: Planned) -> None:
        proxy = self._world.proxy
        proxy.share, proxy.status = _choose(_SHARES, planned.choice), int(planned.kind.split()[0])
        before = proxy.counts[f"answers {proxy.status}"]
        try:
            await asyncio.sleep(2 * planned.seconds)
        finally:
            self._world.effects[planned.kind] += proxy.counts[f"answers {proxy.status}"] > before
            proxy.status = 0

    async def _step(self, planned: Planned) -> None:
        seconds, pids = _choose(_STEPS, planned.choice), self._world.pids()
        self._world.clock.set(seconds)
        ours = [pids[name] for name in plan.OURS if name in pids]
        self._world.effects[planned.kind] += await asyncio.to_thread(self._world.clock.is_shown_to, ours, seconds)
        await asyncio.sleep(planned.seconds)
        if planned.choice < 0.5:  # otherwise it stays so, until the next step
            self._world.clock.set(0.0)

    async def _compact(self, _planned: Planned) -> None:
        """Make etcd, and so the API server, forget all versions before now: watches begin anew."""
        with contextlib.suppress(OSError):  # etcd may be away
            await asyncio.to_thread(rough.compact, self._world.folder)


def _choose(values: tuple[float, ...], choice: float) -> float:
    return values[int(choice * len(values))]
