"""Steps of cards as the engine asks its compiled library for them, of some models, for `c/step.c`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simgpu.catalog import models
from simgpu.sim import cards, kernel

_MODELS = ("h200", "a100", "t4", "k80", "rtx-4090", "mi300x", "max-1550", "gaudi3")
_STEPS = ((0.005, 0, 0), (0.1, 1, 0), (0.5, 4, 2), (1.0, 9, 6), (30.0, 280, 180), (86400.0, 800_000, 500_000))
_MAX_STAGES: Final = 8
_MAX_ROWS = len(cards.COLUMNS) + _MAX_STAGES
_WINDOW = 10.0  # seconds of an open window, at most

RECORD: Final = np.dtype(
    [
        ("seconds", np.float64), ("counted", np.float64, len(cards.STEPPED)), ("model", np.float32, len(kernel.MODEL)),
        ("step", np.float32, len(kernel.STEP)), ("low", np.float32, _MAX_ROWS), ("high", np.float32, _MAX_ROWS),
        ("stage_count", np.int32), ("slot_count", np.int32), ("ticks", np.int32), ("windows", np.int32),
        ("settles", np.int32), ("has_fabric", np.int32), ("moves_memory_clock", np.int32),
        ("stages", kernel.STAGE, _MAX_STAGES),
    ]
)  # fmt: skip


class _Recorder:
    """In place of the library: what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[kernel.StepCall] = []

    def step(self, call: kernel.StepCall, _start: int, _stop: int) -> None:
        self.calls.append(call)


def recorded() -> npt.NDArray[Any]:
    """Return the records: each has a call without its arrays, and which states its cards may have."""
    catalog = models.load([])
    return np.array([record for name in _MODELS for record in _of_model(catalog.models[name])])


def _of_model(model: models.Model) -> Iterator[npt.NDArray[Any]]:
    for step in _STEPS:
        made = cards.Cards(model, np.random.Generator(np.random.SFC64(1)), compiled=False, parallel=cards.in_turn)
        made._kernel = recorder = _Recorder()  # type: ignore[assignment]
        made.add(1, inlet=None, spread=0.0)
        seconds, ticks, windows = step
        made.step(seconds, ticks=ticks, windows=windows)
        yield _record(made, recorder.calls[-1])


def _record(made: cards.Cards, call: kernel.StepCall) -> npt.NDArray[Any]:
    record = np.zeros((), RECORD)
    for name in ("seconds", "ticks", "windows", "settles", "has_fabric", "moves_memory_clock", "model", "step"):
        record[name] = getattr(call, name)
    record["stage_count"] = len(call.stages)
    record["slot_count"] = 0 if call.ring is None else len(call.ring)
    record["stages"][: len(call.stages)] = call.stages
    record["counted"] = [made._ranges[name][1] for name in cards.STEPPED]
    for row, name in enumerate(made._names):
        record["low"][row], record["high"][row] = made._ranges.get(name) or _passing(made, name)
    return record


def _passing(made: cards.Cards, name: str) -> tuple[float, float]:
    """Return the range of a quantity that no saved state has."""
    seconds = {"tick_energy": made._ranges["power"][1] * _WINDOW, "busy_seconds": _WINDOW, "memory_seconds": _WINDOW}
    return 0.0, seconds.get(name, 1.0)
