"""The agent's box: its devices as the topology has them, its pages, its metrics, and a state that outlives it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from simgpu.app import keeping, showing, ticking
from simgpu.box import Box
from simgpu.controllers.own_node import Shared, Uses
from simgpu.identities import render, view
from simgpu.identities.identity import Identity
from simgpu.page import layout, writer
from simgpu.pods import profiles, requests
from simgpu.topology import pools
from simgpu.web import pages


class Equipment:
    """A node's simulated GPUs. Files below `state` stay when it ends, for running pods and for the next start."""

    def __init__(self, node: str, identity: Identity, state: Path, *, seed: int, interval: float) -> None:
        self.spec = pools.NodeGpus(())
        self.pages = state / "gpus"
        self._file = state / "state.json"
        self.saved = keeping.load(self._file)
        self.box = Box((), seed=seed, hostname=hostname(node), now=self.saved.now, kept=self.saved.devices)
        self.page: pages.Page | None = None
        self._node = node
        self._identity = identity
        self._stale = ticking.stale(interval)
        self._shown: showing.Shown | None = None
        self._running: dict[tuple[str, str, str], tuple[Shared | pools.Shown, list[int]]] = {}
        state.mkdir(parents=True, exist_ok=True)

    def equip(self, spec: pools.NodeGpus) -> None:
        """The node has these GPUs now."""
        if spec == self.spec:
            return
        devices = pools.build(spec, self._node)
        self.box.change(devices)
        self.close()
        self.page = None
        access = writer.Access(processes=layout.ALL_PROCESSES)
        shown = showing.Shown(self.box, self.pages, stale=self._stale, access=access)
        if devices:
            self._shown = shown
            self._shown.write()
            self.page = pages.Page(render.Renderer(self.box.machine, self._identity))
        else:
            shown.pages.remove()
        self.spec = spec

    def close(self) -> None:
        """Write no more pages; they stay."""
        if self._shown is not None:
            self._shown.pages.close()
            self._shown = None

    # Who uses it.

    def use(self, uses: Mapping[str, Uses]) -> None:
        """Let each container's work run on its GPUs, and end what is no more."""
        wanted: dict[tuple[str, str, str], Shared | pools.Shown] = {}
        for device, gpu in zip(self.box.devices, self.spec.gpus, strict=True):
            shares = uses.get(device.uuid, ())
            wanted |= {(device.uuid, item.use.uid, item.use.container): item for item in shares}
            if not shares and gpu.shown is not None:
                wanted[device.uuid, "", ""] = gpu.shown
        alive = self.box.workloads().keys()
        for key, (before, numbers) in list(self._running.items()):
            if wanted.get(key) != before or not alive >= set(numbers):
                self.box.drop(numbers)
                del self._running[key]
        for key, item in wanted.items():
            if key not in self._running:
                self._running[key] = (item, self._admit(key[0], item))

    def _admit(self, device: str, item: Shared | pools.Shown) -> list[int]:
        if isinstance(item, pools.Shown):
            pod = view.Pod(item.pod, item.namespace, item.container) if item.pod else None
            return self.box.admit(profiles.standing(item.utilization, item.fb_used), [device], pod=pod)
        use = item.use
        span = requests.Range(use.low, use.high)
        profile = profiles.of(f"{use.namespace}/{use.pod}/{use.container}", span, share=item.share)
        return self.box.admit(profile, [device], pod=view.Pod(use.pod, use.namespace, use.container, use.uid))

    # Time.

    def stepped(self) -> None:
        """After each step: remember where everything stands, and then show it."""
        keeping.save(self._file, self.box)
        if self._shown is not None:
            self._shown.write()


def hostname(node: str) -> str:
    """The host that dcgm-exporter names on a node: its pod."""
    return f"nvidia-dcgm-exporter-{hashlib.sha1(node.encode(), usedforsecurity=False).hexdigest()[:6]}"
