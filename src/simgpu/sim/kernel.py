"""The compiled step of cards (`native/engine`): faster than `physics` and `cards`, with the same bytes as result.

It is optional: without a library for this machine, or with one built for other tables, numpy does the work.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

NAME: Final = "step.so"
BUILT: Final = Path(__file__).parent / "built"
VERSION: Final = "2"  # of the computation

MODEL: Final = (
    "idle_clock", "lowest_clock", "clock_step", "floor", "knee", "steep", "rising", "clock_power", "resting", "base",
    "sm", "tensor", "memory_die", "memory", "pcie", "nvlink", "flicker", "target", "peak", "hold", "slip", "hunting",
    "reach", "reference", "hottest", "slowdown", "hysteresis", "lowest_cap", "memory_idle", "memory_range",
    "clock_steps", "step_mhz", "highest_mhz",
)  # fmt: skip
STEP: Final = (
    "seconds", "seen", "fall", "rise", "cooling", "memory_bytes", "pcie_bytes", "fabric_bytes", "window", "tick",
    "slot", "average",
)  # fmt: skip
STAGE: Final = np.dtype([("source", np.int32), ("progress", np.float32), ("die", np.float32), ("memory", np.float32)])

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("columns", "counters", "reasons", "ring", "model", "step", "stages")),
        ("stride", ctypes.c_size_t),
        ("seconds", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("stage_count", "slot_count", "first_slot", "ticks")),
        *((name, ctypes.c_int32) for name in ("windows", "settles", "has_fabric", "moves_memory_clock")),
        ("key", ctypes.c_uint32),
    )


class StepCall(msgspec.Struct, frozen=True):
    """Arguments of a step: arrays with a column per card, and what is the same for all cards."""

    columns: npt.NDArray[np.float32]
    counters: npt.NDArray[np.float64]
    reasons: npt.NDArray[np.uint16]
    ring: npt.NDArray[np.float32] | None
    model: npt.NDArray[np.float32]  # in the order of `MODEL`
    step: npt.NDArray[np.float32]  # in the order of `STEP`
    stages: npt.NDArray[np.void]  # of `STAGE`
    seconds: float
    first_slot: int
    ticks: int
    windows: int
    settles: bool
    has_fabric: bool
    moves_memory_clock: bool
    key: int


class Kernel:
    """A loaded library. Calls release the interpreter's lock."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._step = library.simgpu_step
        self._step.argtypes = (ctypes.POINTER(_Call), ctypes.c_size_t, ctypes.c_size_t)
        self._step.restype = None

    def step(self, call: StepCall, start: int, stop: int) -> None:
        """Step the cards from `start` to `stop`."""
        stride = call.columns.shape[1]
        arrays: tuple[npt.NDArray[Any] | None, ...] = (call.columns, call.counters, call.reasons, call.ring)
        there = [array for array in arrays if array is not None]
        if not all(array.flags.c_contiguous and array.shape[1] == stride for array in there) or stop > stride:
            raise ValueError("arrays of cards do not have the same rows")  # the library would write beyond one
        fields = (*arrays, call.model, call.step, call.stages)
        prepared = _Call(
            *(None if array is None else array.ctypes.data for array in fields),
            stride,
            call.seconds,
            len(call.stages),
            0 if call.ring is None else len(call.ring),
            call.first_slot,
            call.ticks,
            call.windows,
            call.settles,
            call.has_fabric,
            call.moves_memory_clock,
            call.key,
        )
        self._step(ctypes.byref(prepared), start, stop)


@functools.cache
def load(columns: Sequence[str], counters: Sequence[str]) -> Kernel | None:
    """Return the library for this machine; None if there is none that was built for these tables."""
    machine = _MACHINES.get(platform.machine().lower())
    path = BUILT / (machine or "") / NAME
    if machine is None or platform.system() != "Linux" or not path.is_file():
        return None
    try:
        library = ctypes.CDLL(str(path))
        built_for = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(library, "simgpu_step_layout")))
    except (OSError, ValueError):
        return None
    return Kernel(library) if built_for.decode() == layout(columns, counters) else None


def layout(columns: Sequence[str], counters: Sequence[str]) -> str:
    """Return the tables as the library names those that it was built for."""
    return " ".join((VERSION, *columns, "|", *counters, "|", *MODEL, "|", *STEP, ""))
