"""A box on state pages: what programs see of it through NVML, and what they may set."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from simgpu import errors
from simgpu.machines import quantities
from simgpu.machines.box import Box
from simgpu.machines.machine import DevicePart, Machine
from simgpu.machines.registry import RunningWorkload
from simgpu.page import apps, layout, writer
from simgpu.sim.parts import PartState
from simgpu.topology import mig_by_hand
from simgpu.topology.devices import Device

_ERRORS = {"hangs": "hangs", "ecc_uncorrected": "uncorrected"}  # counters of a page, and the simulation's events

OK, INVALID, UNSUPPORTED, NO_PERMISSION, NOT_FOUND = 0, 2, 3, 4, 6  # NVML's codes


def stale_after(interval: float) -> float:
    """Return the seconds after which a page that is written every `interval` seconds counts as stale."""
    return max(10.0, 5 * interval)


def own_process(work: RunningWorkload) -> Sequence[int]:
    """Return the process that asked for a workload, or else this one, which plays it."""
    return (work.pid or os.getpid(),)


class BoxPages:
    """Shows a box on pages that were opened for its devices; `pids` returns the processes of a workload."""

    def __init__(
        self, box: Box, pages: writer.Pages, pids: Callable[[RunningWorkload], Sequence[int]] = own_process
    ) -> None:
        self._box = box
        self.pages = pages
        self._pids = pids

    def write(self) -> None:
        """Write the current state of all cards."""
        machine = self._box.machine
        self.pages.write(
            lambda name: quantities.of_devices(machine, name),
            clock=machine.time,
            monotonic_ns=time.monotonic_ns(),
            instances=instance_states(machine),
            processes=self._apps() if self.pages.lists_processes else {},
            lost=machine.lost,
            erring=self._erring,
        )

    def _erring(self, index: int, counter: str) -> int | None:
        """Return the instance on which the last error of a card was that a counter of its page counts."""
        machine, event = self._box.machine, _ERRORS.get(counter)
        part = None if event is None else machine.engine.erring_part(int(machine.ids[index]), event)
        own = [item.handle for item in machine.parts if item.device == index]
        return own.index(part) if part in own else None

    def _apps(self) -> dict[int, list[apps.App]]:
        """Return the processes that use each card, by index; those of one workload have equal parts of its use."""
        machine = self._box.machine
        indices = {int(card): index for index, card in enumerate(machine.ids)}
        places = {part.handle: place for parts in _by_device(machine.parts) for place, part in enumerate(parts)}
        found: dict[int, list[apps.App]] = {}
        for number, work in self._box.workloads().items():
            if not (pids := self._pids(work)):
                continue
            for share in machine.engine.shares(number):
                place = -1 if share.part is None else places[share.part]
                usage, memory = share.usage / len(pids), share.memory_mib / len(pids)
                listed = found.setdefault(indices[share.card], [])
                listed += (apps.App(pid, usage, memory, place, work.compute) for pid in pids)
        return found

    def set(self, device: str, setting: str, values: Sequence[int]) -> int:
        """Apply a setting that a program requested through NVML; return one of NVML's codes."""
        index = self._box.find(device)
        if index is None:
            return NOT_FOUND
        if setting in mig_by_hand.SETTINGS:
            return self._divide(index, setting, values)
        engine, card = self._box.engine, int(self._box.machine.ids[index])
        try:
            if setting == "power_limit":
                engine.set_limit(card, values[0] / 1000)
            elif setting in ("sm_clocks", "applications_clocks"):
                engine.set_highest_clock(card, values[1])
            elif setting in ("reset_sm_clocks", "reset_applications_clocks"):
                engine.set_highest_clock(card, None)
            elif setting == "clear_accounts":
                self.pages.clear_accounts(index)
            elif setting in writer.MODES:
                self.pages.set_mode(index, setting, values[0])
            else:
                return UNSUPPORTED
        except errors.InputError:
            return INVALID
        machine = self._box.machine
        machine.invalidate()
        self.pages.show_settings(index, lambda name: quantities.of_devices(machine, name))
        return OK

    def _divide(self, index: int, setting: str, values: Sequence[int]) -> int:
        """Change a card's MIG mode or instances, and show it at once; return one of NVML's codes."""
        try:
            changed = divided(self._box, index, setting, values)
        except mig_by_hand.MigRefused as error:
            return error.code
        self._box.change([changed if at == index else item for at, item in enumerate(self._box.devices)])
        self.pages.divide(index, changed)
        self.write()
        return OK


def divided(box: Box, index: int, setting: str, values: Sequence[int]) -> Device:
    """Return a card of a box after a change of its MIG mode or instances; raises `MigRefused`."""
    busy, is_open = box.open_parts(index), box.is_open(index)
    return mig_by_hand.change(box.devices[index], setting, values, busy=busy, is_open=is_open)


def open_pages(box: Box, folder: Path, *, interval: float, control: str) -> BoxPages:
    """Open pages that are written every `interval` seconds and list processes; `control` is a socket for settings."""
    stale, listed = stale_after(interval), layout.LISTED_PROCESSES
    return BoxPages(box, writer.Pages(folder, box.devices, stale=stale, processes=listed, control=control))


def instance_states(machine: Machine) -> dict[int, list[PartState]]:
    """Return the states of the parts of each divided device, by its index."""
    return {
        parts[0].device: [machine.engine.read_part(part.handle) for part in parts]
        for parts in _by_device(machine.parts)
    }


def _by_device(parts: Sequence[DevicePart]) -> list[list[DevicePart]]:
    """Return the parts of each divided device, in their order."""
    return [list(group) for _, group in groupby(parts, key=lambda part: part.device)]
