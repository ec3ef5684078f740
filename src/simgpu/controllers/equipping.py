"""A real node's simulated GPUs: the box that holds them, their state pages, and a state that outlives the process."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from simgpu import errors, vocabulary
from simgpu.machines.box import Box
from simgpu.machines.saved import Known, Saved
from simgpu.machines.users import User
from simgpu.page import layout, showing, writer
from simgpu.topology import pools
from simgpu.topology.devices import Device


class State(Protocol):
    """Where what outlives the process is kept."""

    saved: Saved
    known: Known

    def save(self, box: Box) -> None:
        """Keep where devices stand."""

    def remember(self, known: Known) -> None:
        """Keep what the node has, and who uses it."""


class CpuMeter(Protocol):
    """Measures the processor time of containers."""

    def cores(self, pod: str, container: str, now: float) -> float:
        """Cores that a container, by its pod's uid and its id, used since the last call."""

    def keep(self, containers: set[str]) -> None:
        """Forget all other containers."""


class Equipment:
    """A node's simulated GPUs. Pages below the folder stay when it ends, for running pods and for the next start.

    Pages are taken for abandoned `stale` seconds after the last write. Pods set things at the socket `control`, where
    the pool allows it.
    """

    def __init__(
        self, node: str, state: State, meter: CpuMeter, *, pages: Path, stale: float, control: str, seed: int
    ) -> None:
        self.spec = pools.NodeGpus(())
        self.pages = pages
        self.box = Box((), seed=seed, hostname=hostname(node), now=state.saved.now, kept=state.saved.devices)
        self._node = node
        self.state = state
        self._meter = meter
        self._stale = stale
        self._control = control
        self._shown: showing.BoxPages | None = None

    def equip(self, spec: pools.NodeGpus) -> None:
        """Give the node these GPUs. Where they cannot be shown, an `InputError` says why, and all is as it was."""
        if spec == self.spec:
            return
        devices = pools.build(spec, self._node)
        self.close()
        try:
            pages = self._open(devices, spec)
            try:
                self.box.change(devices)
            except BaseException:
                pages.close()
                raise
        except errors.InputError:
            if self.box.devices:
                self._show(self._open(self.box.devices, self.spec))
            raise
        self.spec = spec
        self._show(pages)

    def _open(self, devices: Sequence[Device], spec: pools.NodeGpus) -> writer.Pages:
        access = writer.Access(processes=layout.ALL_PROCESSES, control=self._control if spec.settable else "")
        return writer.Pages(self.pages, devices, stale=self._stale, access=access)

    def _show(self, pages: writer.Pages) -> None:
        if not self.box.devices:
            pages.close()
            return
        self._shown = showing.BoxPages(self.box, pages)
        self._shown.write()

    def set(self, device: str, setting: str, values: Sequence[int]) -> int:
        """Do what a program asks for through NVML, where the node's pool allows it; returns one of NVML's codes."""
        if self._shown is None or not self.spec.settable:
            return showing.NO_PERMISSION
        return self._shown.set(device, setting, values)

    def close(self) -> None:
        """Write no more pages; they stay."""
        if self._shown is not None:
            self._shown.pages.close()
            self._shown = None

    def use(self, users: Mapping[str, Sequence[User]], working: Collection[tuple[str, str]] = ()) -> None:
        """Let these use the GPUs, by id; containers that are `working` say by their own workloads what they do."""
        self.box.use(users, resting=working)

    def remember(self, users: Mapping[str, tuple[User, ...]]) -> None:
        """Keep what the node has, and who uses it, for the next agent."""
        self.state.remember(Known(self.spec, dict(users)))

    def stepped(self, now: float) -> None:
        """After each step: follow processors, keep where everything stands, and then show it."""
        self.follow_processors(now)
        self.state.save(self.box)
        if self._shown is not None:
            self._shown.write()

    def follow_processors(self, now: float) -> None:
        """Set the utilisation that follows containers' processor time; `now` is in seconds."""
        driven = list(self.box.cpu_driven())
        sources = {source.container: source for source, _ in driven}
        busy = {name: self._meter.cores(source.pod, name, now) / source.cores for name, source in sources.items()}
        self._meter.keep(set(sources))
        for source, number in driven:
            self.box.engine.set_usage(number, busy[source.container])


def hostname(node: str) -> str:
    """The host that dcgm-exporter names on a node: its pod."""
    return f"{vocabulary.EXPORTER}-{hashlib.sha1(node.encode(), usedforsecurity=False).hexdigest()[:6]}"
