"""The agent's box: its devices as the topology has them, its pages, its metrics, and a state that outlives it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from simgpu import vocabulary
from simgpu.app import keeping, showing, ticking
from simgpu.box import Box
from simgpu.controllers.own_node import Shared, Uses
from simgpu.identities import render, view
from simgpu.identities.identity import Identity
from simgpu.node import cpu
from simgpu.page import layout, writer
from simgpu.pods import profiles, requests
from simgpu.topology import pools
from simgpu.web import pages
from simgpu.workloads.server import NO_PERMISSION


class Equipment:
    """A node's simulated GPUs. Files below `state` stay when it ends, for running pods and for the next start."""

    def __init__(
        self, node: str, identity: Identity, state: Path, *, seed: int, interval: float, cgroups: Path
    ) -> None:
        self.spec = pools.NodeGpus(())
        self.pages = state / "gpus"
        self.saved = keeping.load(state / vocabulary.STATE_FILE)
        self.known = keeping.known(state / vocabulary.KNOWN_FILE)
        self._stand = keeping.Keeper(state / vocabulary.STATE_FILE, "where GPUs stand")
        self._known = keeping.Keeper(state / vocabulary.KNOWN_FILE, "what the node has")
        self.box = Box((), seed=seed, hostname=hostname(node), now=self.saved.now, kept=self.saved.devices)
        self.page: pages.Page | None = None
        self.run = state / "run"
        self._meter = cpu.Meter(cgroups)
        self._node = node
        self._identity = identity
        self._stale = ticking.stale(interval)
        self._shown: showing.Shown | None = None
        self._running: dict[tuple[str, str, str], tuple[Shared | pools.StaticMetrics, list[int]]] = {}
        self.run.mkdir(parents=True, exist_ok=True)

    def equip(self, spec: pools.NodeGpus) -> None:
        """The node has these GPUs now. Where they cannot be shown, an `InputError` says why, and all is as it was."""
        if spec == self.spec:
            return
        devices = pools.build(spec, self._node)
        self.close()
        try:
            writer.Pages(self.pages, devices, stale=self._stale).close()
            self.box.change(devices)
            self.spec = spec
        finally:
            self._show()

    def _show(self) -> None:
        self.page = None
        if self.box.devices:
            control = vocabulary.POD_SOCKET if self.spec.settable else ""
            access = writer.Access(processes=layout.ALL_PROCESSES, control=control)
            self._shown = showing.Shown(self.box, self.pages, stale=self._stale, access=access)
            self._shown.write()
            self.page = pages.Page(render.Renderer(self.box.machine, self._identity))

    def set(self, device: str, setting: str, values: Sequence[int]) -> int:
        """Do what a program asks for through NVML, where the node's pool lets it; the answer is one of NVML's codes."""
        if self._shown is None or not self.spec.settable:
            return NO_PERMISSION
        return self._shown.set(device, setting, values)

    def close(self) -> None:
        """Write no more pages; they stay."""
        if self._shown is not None:
            self._shown.pages.close()
            self._shown = None

    # Who uses it.

    def use(self, uses: Mapping[str, Uses], working: Collection[tuple[str, str]] = ()) -> None:
        """Let each container's work run on its GPUs, and end what is no more.

        Those that are `working`, by uid and name, say by workloads of their own what their GPUs do.
        """
        wanted: dict[tuple[str, str, str], Shared | pools.StaticMetrics] = {}
        for device, gpu in zip(self.box.devices, self.spec.gpus, strict=True):
            shares = uses.get(device.uuid, ())
            for share in shares:
                container = (share.use.uid, share.use.container)
                wanted[device.uuid, *container] = replace(share, resting=True) if container in working else share
            if not shares and gpu.metrics is not None:
                wanted[device.uuid, "", ""] = gpu.metrics
        alive = self.box.workloads().keys()
        for key, (before, numbers) in list(self._running.items()):
            if wanted.get(key) != before or not alive >= set(numbers):
                self.box.drop(numbers)
                del self._running[key]
        for key, item in wanted.items():
            if key not in self._running:
                self._running[key] = (item, self._admit(key[0], item))
        self.box.arrange([number for key in wanted for number in self._running[key][1]])

    def remember(self, uses: Mapping[str, Uses]) -> None:
        """Let an agent that comes after this one know what the node has, and who uses it."""
        self._known.save(keeping.Known(self.spec, dict(uses)))

    def _admit(self, device: str, item: Shared | pools.StaticMetrics) -> list[int]:
        if isinstance(item, pools.StaticMetrics):
            pod = view.Pod(item.pod, item.namespace, item.container) if item.pod else None
            return self.box.admit(profiles.standing(item.utilization, item.fb_used), [device], pod=pod)
        use = item.use
        name, span = f"{use.namespace}/{use.pod}/{use.container}", requests.Range(use.low, use.high)
        if item.resting:
            profile = profiles.resting(name)
        else:
            profile = profiles.of(name, requests.NONE if item.cores else span, share=item.share)
        return self.box.admit(profile, [device], pod=view.Pod(use.pod, use.namespace, use.container, use.uid))

    def follow_processors(self, now: float) -> None:
        """Where processes are to say how busy GPUs are, look at what they do."""
        followed = [
            (item, numbers)
            for item, numbers in self._running.values()
            if isinstance(item, Shared) and item.cores and not item.resting
        ]
        containers = {item.container: item for item, _ in followed}
        busy = {name: self._meter.cores(item.pod, name, now) / item.cores for name, item in containers.items()}
        self._meter.keep(set(containers))
        for item, numbers in followed:
            for number in numbers:
                self.box.engine.set_usage(number, busy[item.container])

    # Time.

    def stepped(self) -> None:
        """After each step: remember where everything stands, and then show it."""
        self.follow_processors(time.monotonic())
        self._stand.save(keeping.stand(self.box))
        if self._shown is not None:
            self._shown.write()


def hostname(node: str) -> str:
    """The host that dcgm-exporter names on a node: its pod."""
    return f"{vocabulary.EXPORTER}-{hashlib.sha1(node.encode(), usedforsecurity=False).hexdigest()[:6]}"
