"""The cards of one model with the demands on them and their events: their part of a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from simgpu.catalog import models
from simgpu.sim import cards, demands, packing

_WHILE_HUNG = {"busy": 1.0, "context": 1.0, "sm": 0.02, "tensor": 0.0, "memory": 0.0, "pcie": 0.0, "nvlink": 0.0}
_ERRORS = ("hangs", "uncorrected")  # events that are errors
_TIMES = {"hangs": "hangs_at", "uncorrected": "uncorrected_at", "xids": "lost_at"}  # of the last event of each kind


class Group:
    """Cards of one model, by row. Numbers of existing groups are unique."""

    def __init__(self, number: int, model: models.Model, on: cards.Cards) -> None:
        self.number = number
        self.model = model
        self.cards = on
        self.demands = demands.Demands()
        self.struck = False  # whether cards had errors since this was reset
        self.erring: dict[tuple[str, int], int] = {}  # part whose workload had the last error of a kind, by row
        self._hung: npt.NDArray[np.float64] = np.zeros(0)  # when the hang of each row ends; empty if none hangs

    @property
    def there(self) -> int:
        """How many cards it has."""
        return self.cards.count - len(self.cards.free)

    def add(self, count: int, *, inlet: float | None, spread: float) -> cards.Rows:
        """Add idle cards and return their rows."""
        rows = self.cards.add(count, inlet=inlet, spread=spread)
        self.demands.changed = True
        return rows

    def remove(self, row: int) -> None:
        """Free a row without workloads."""
        if row < len(self._hung):
            self._hung[row] = 0
        for name in _ERRORS:
            self.erring.pop((name, row), None)
        self.cards.remove(np.array([row]))

    # Time.

    def step(self, start: float, now: float, rng: np.random.Generator) -> None:
        """Advance the cards from `start` to `now` with the current demands."""
        demand, sensors = self.demands, self.model.relations.sensors
        if demand.changed or demand.usage_changed or demand.pulses:
            demand.add_up(self.cards, demand.usage(start, now))
        if len(self._hung):
            self._pin(start)
        self.cards.step(
            now - start, ticks=_crossed(start, now, sensors.refresh), windows=_crossed(start, now, sensors.usage)
        )
        for name, (rows, counts, seconds) in demand.draw(now, rng, events=True):
            self._apply_events(name, demand.card[rows], counts, until=now + seconds, now=now)
            self._note_parts(name, demand.card[rows], demand.part[rows], counts)

    def _pin(self, start: float) -> None:
        """Make cards that hang appear busy without doing work."""
        hung = np.flatnonzero(self._hung > start)
        if not len(hung):
            self._hung = np.zeros(0)
        self.demands.changed = True
        for column, value in _WHILE_HUNG.items():
            self.cards[column][hung] = value

    def _apply_events(
        self, name: str, rows: npt.NDArray[np.int64], counts: demands.Doubles, *, until: demands.Floats, now: float
    ) -> None:
        """Count events; a hang lasts for one period."""
        np.add.at(self.cards[name], rows, counts)
        struck = counts >= 1
        if name == "hangs" and struck.any():
            self._hung = np.pad(self._hung, (0, self.cards.count - len(self._hung)))
            np.maximum.at(self._hung, rows[struck], until[struck])
        if name in _ERRORS:
            np.add.at(self.cards["xids"], rows, counts)
            self.struck = self.struck or bool(struck.any())
        if name in _TIMES:
            self.cards[_TIMES[name]][rows[struck]] = now

    def _note_parts(
        self, name: str, rows: npt.NDArray[np.int64], parts: npt.NDArray[np.int64], counts: demands.Doubles
    ) -> None:
        """Note the parts of cards on which an error was; 0 is none."""
        if name not in _ERRORS or not (self.erring or parts.any()):
            return
        struck = counts >= 1
        for row, part in zip(rows[struck].tolist(), parts[struck].tolist(), strict=True):
            self.erring[name, row] = part

    def strike(self, row: int, name: str, *, now: float) -> None:
        """Let an event happen to a card once, `now`; `xids`, if it falls off the bus, counts as an error alone."""
        rows, once = np.array([row]), np.ones(1)
        self._apply_events(name, rows, once, until=np.full(1, now, np.float32), now=now)
        self.erring.pop((name, row), None)

    # Keeping.

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain data, for `restore`."""
        return {
            "number": self.number,
            "model": self.model,
            "cards": self.cards.snapshot(),
            "demands": self.demands.snapshot(),
            "hung": packing.pack(self._hung),
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self.cards.restore(kept["cards"])
        self.demands.restore(kept["demands"])
        self._hung = packing.unpack(kept["hung"], np.float64)


def _crossed(start: float, stop: float, every: float) -> int:
    """Return how many multiples of `every` lie after `start` and up to `stop`."""
    return math.floor(stop / every + 1e-9) - math.floor(start / every + 1e-9)
