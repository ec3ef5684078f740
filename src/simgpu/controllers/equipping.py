"""A real node's simulated GPUs: the box that holds them, their state pages, and their saved state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from simgpu import errors, vocabulary
from simgpu.dra.node_devices import MigPart
from simgpu.machines.box import Box
from simgpu.machines.registry import RunningWorkload
from simgpu.machines.saved import Known, Saved
from simgpu.machines.users import PodRef, User
from simgpu.page import events, layout, showing, writer
from simgpu.topology import mig_by_hand, pools
from simgpu.topology.devices import Device
from simgpu.topology.mig_by_hand import HandCard, HandMade
from simgpu.topology.mig_instances import with_instances
from simgpu.topology.mig_layouts import WHOLE

_UNTOUCHED = HandCard(WHOLE)
_FINEST_SECONDS = 0.1  # of a step's pieces, into which plans of pods split it


class State(Protocol):
    """Storage that outlives the process."""

    saved: Saved
    known: Known

    def save(self, box: Box) -> None:
        """Save the state of all devices."""

    def remember(self, known: Known) -> None:
        """Save what the node has, and its users."""


class CpuMeter(Protocol):
    """Measures the CPU time of containers."""

    def cores(self, pod: str, container: str, now: float) -> float:
        """Return the cores that a container, by its pod's uid and its id, used since the last call."""

    def keep(self, containers: set[str]) -> None:
        """Forget all other containers."""


class Equipment:
    """A node's simulated GPUs. Pages in the folder `pages` stay when it ends, for running pods and for the next agent.

    Readers take a page as lost `stale` seconds after its last write. Pods change settings at the socket `control`, if
    the pool allows it. `processes` returns those of a container, for readers outside of pods. `copies` are further
    folders that get the pages, with the socket of each.
    """

    def __init__(
        self,
        node: str,
        state: State,
        meter: CpuMeter,
        *,
        pages: Path,
        stale: float,
        control: str,
        seed: int,
        processes: Callable[[PodRef], Sequence[int]] = lambda _container: (),
    ) -> None:
        self.spec = pools.NodeGpus(())
        self.pages = pages
        saved = state.saved
        self.box = Box(
            (), seed=seed, hostname=hostname(node), now=saved.now, epoch=saved.clock - saved.now, saved=saved.devices,
            finest=_FINEST_SECONDS,
        )  # fmt: skip
        self._node = node
        self.state = state
        self._meter = meter
        self._stale = stale
        self._control = control
        self._processes = processes
        self.copies: Mapping[Path, str] = {}
        self._shown: showing.BoxPages | None = None
        self._instances: Mapping[str, Sequence[MigPart]] = {}
        self._hand: HandMade | None = None

    def equip(
        self,
        spec: pools.NodeGpus,
        instances: Mapping[str, Sequence[MigPart]] = {},
        *,
        hand: HandMade | None = None,
    ) -> None:
        """Give the node these GPUs, and GPUs these MIG instances besides, by id; those that stay keep their load.

        Of what was divided by `hand`, the spec has the MIG devices; other instances are added, with smaller compute
        instances where they have some.
        `InputError` if they cannot have pages; then nothing changes.
        """
        if (spec, instances, hand) == (self.spec, self._instances, self._hand):
            return
        cards = {} if hand is None else hand.cards
        devices = [
            _divided(item, instances.get(item.uuid, ()), cards.get(item.index, _UNTOUCHED))
            for item in pools.build(spec, self._node)
        ]
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
        self.spec, self._instances, self._hand = spec, instances, hand
        self._show(pages)

    def _open(self, devices: Sequence[Device], spec: pools.NodeGpus) -> writer.Pages:
        control = self._control if spec.settable else ""
        copies = {folder: socket if spec.settable else "" for folder, socket in self.copies.items()}
        return writer.Pages(
            self.pages, devices, stale=self._stale, processes=layout.ALL_PROCESSES, control=control, parts=True,
            named_pids=True, copies=copies,
        )  # fmt: skip

    def _show(self, pages: writer.Pages) -> None:
        if not self.box.devices:
            pages.close()
            return
        self._shown = showing.BoxPages(self.box, pages, self._pids)
        self._shown.write()

    def _pids(self, work: RunningWorkload) -> Sequence[int]:
        if work.pid:
            return (work.pid,)
        return self._processes(work.pod) if work.pod is not None else ()

    def set(self, device: str, setting: str, values: Sequence[int]) -> int:
        """Apply an NVML setting, if the node's pool allows it; return one of NVML's codes."""
        if self._shown is None or not self.spec.settable:
            return showing.NO_PERMISSION
        return self._shown.set(device, setting, values)

    def drop_copies(self) -> None:
        """Write pages to no other folder any more; the files there stay."""
        self.copies = {}
        if self._shown is not None:
            self._shown.pages.drop_copies()

    def close(self) -> None:
        """Stop writing pages; the files stay."""
        if self._shown is not None:
            self._shown.pages.close()
            self._shown = None

    def use(self, users: Mapping[str, Sequence[User]], working: Collection[tuple[str, str]] = ()) -> None:
        """Set the users of each GPU, by id; `working` containers are driven by their own workloads instead."""
        self.box.use(users, resting=working)

    def remember(self, users: Mapping[str, tuple[User, ...]]) -> None:
        """Save what the node has, and its users, for the next agent."""
        self.state.remember(Known(self.spec, dict(users), hand=self._hand))

    def stepped(self, now: float) -> None:
        """After each step: set CPU-driven utilisation, save the state, and write the pages."""
        self.follow_processors(now)
        self.state.save(self.box)
        if self._shown is not None:
            self._shown.write()

    def log_errors(self, log: Callable[[Sequence[events.CardErrors]], bool]) -> None:
        """Pass on the errors that are not in the kernel log yet; `log` returns whether they are there now."""
        if self._shown is not None and (found := self._shown.pages.unlogged()) and log(found):
            self._shown.pages.set_logged()

    def follow_processors(self, now: float) -> None:
        """Set the utilisation that follows containers' CPU time; `now` is in seconds."""
        driven = list(self.box.cpu_driven())
        sources = {source.container: source for source, _ in driven}
        busy = {name: self._meter.cores(source.pod, name, now) / source.cores for name, source in sources.items()}
        self._meter.keep(set(sources))
        for source, number in driven:
            self.box.engine.set_usage(number, busy[source.container])


def _divided(device: Device, parts: Sequence[MigPart], hand: HandCard) -> Device:
    """Return a GPU with MIG instances besides its own; those that it cannot have, or that overlap, are left out."""
    made = with_instances(device, [(part.profile, part.start) for part in parts], hand.bare)
    compute = mig_by_hand.possible_compute(hand, device.model, made.bare)
    return msgspec.structs.replace(made, compute=compute) if made is not device else device


def hostname(node: str) -> str:
    """Return the hostname that dcgm-exporter reports on a node: its pod's name."""
    return f"{vocabulary.EXPORTER}-{hashlib.sha1(node.encode(), usedforsecurity=False).hexdigest()[:6]}"
