"""A box on state pages: what programs on this machine see of it through NVML, and what they may set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from simgpu import errors
from simgpu.box import Box
from simgpu.identities import quantities
from simgpu.page import writer

OK, INVALID, UNSUPPORTED, NOT_FOUND = 0, 2, 3, 6  # NVML's codes


class Shown:
    """A box's pages."""

    def __init__(self, box: Box, root: Path, *, stale: float, access: writer.Access | None = None) -> None:
        self._box = box
        self.pages = writer.Pages(root, box.devices, stale=stale, access=access)

    def write(self) -> None:
        """Show what the cards do now."""
        machine = self._box.machine
        states: dict[int, list[writer.InstanceState]] = {}
        for part in machine.parts:
            state = machine.engine.read_part(part.handle)
            states.setdefault(part.device, []).append(
                writer.InstanceState(usage=state.usage, memory_used=state.memory_mib * quantities.MIB)
            )
        self.pages.write(
            lambda name: quantities.of_devices(machine, name),
            clock=machine.time,
            monotonic_ns=time.monotonic_ns(),
            instances=states,
        )

    def set(self, device: str, setting: str, values: Sequence[int]) -> int:
        """Do what a program asks for through NVML; the answer is one of NVML's codes."""
        index = self._box.find(device)
        if index is None:
            return NOT_FOUND
        engine, card = self._box.engine, int(self._box.machine.ids[index])
        try:
            if setting == "power_limit":
                engine.set_limit(card, values[0] / 1000)
            elif setting in ("sm_clocks", "applications_clocks"):
                engine.set_highest_clock(card, values[1])
            elif setting in ("reset_sm_clocks", "reset_applications_clocks"):
                engine.set_highest_clock(card, None)
            elif setting in writer.MODES:
                self.pages.set_mode(index, setting, values[0])
            else:
                return UNSUPPORTED
        except errors.InputError:
            return INVALID
        machine = self._box.machine
        machine.look_again()
        self.pages.show_settings(index, lambda name: quantities.of_devices(machine, name))
        return OK
