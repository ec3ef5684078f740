"""Plays a load profile on cards, faster than real time.

Steps are short after a change of load and longer once readings have settled; neither depends on the sampling rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.catalog import models, shapes
from simgpu.catalog.facts import Facts, Share
from simgpu.sim import activity, engine

_FINE = 0.01  # seconds of a step after a change
_UNSETTLED = 1.5  # seconds after a change in which steps are short

COLUMNS = (
    "gpu_util", "mem_util", "power_w", "power_instant_w", "temp_c", "mem_temp_c", "sm_mhz", "mem_mhz", "fb_used_mib",
    "throttle", "energy_mj",
)  # fmt: skip


class Phase(Facts, frozen=True):
    """A phase of a load profile: a shape of the catalog, or a demand; on for `duty` of each `period` seconds."""

    seconds: Annotated[float, msgspec.Meta(gt=0.0, le=1e7)]
    name: str | None = None
    shape: str | None = None
    demand: shapes.Demand | None = None
    duty: Share | None = None
    period: Annotated[float, msgspec.Meta(ge=0.001, le=86400.0)] | None = None
    fb_mib: Annotated[float, msgspec.Meta(ge=0.0, le=1e8)] | None = None


class LoadProfile(Facts, frozen=True):
    """The load that `simgpu simulate` plays."""

    phases: Annotated[tuple[Phase, ...], msgspec.Meta(min_length=1, max_length=10_000)]

    @property
    def seconds(self) -> float:
        """Total length in seconds."""
        return sum(phase.seconds for phase in self.phases)


class Sample(msgspec.Struct, frozen=True):
    """The readings at `t` seconds: a row per column of `COLUMNS`, a column per card."""

    t: float
    phase: str
    values: npt.NDArray[np.float64]


def activity_of(phase: Phase, known: dict[str, shapes.Shape]) -> activity.Activity:
    """Return a phase as an activity of the engine."""
    shape = known[phase.shape] if phase.shape else shapes.Shape(about="", demand=phase.demand or shapes.Demand())
    if phase.demand is None and phase.shape is None:
        shape = known["idle"]
    duty = 1.0 if phase.duty is None else phase.duty
    busy = shape.duty if any(msgspec.structs.astuple(shape.demand)) else 0.0
    pulse = None
    if phase.period is not None and duty < 1:
        pulse = activity.Pulse(duty, phase.period)
    else:
        busy *= duty
    values = activity.mix(shape.demand, usage=activity.constant(busy), memory_mib=phase.fb_mib)
    if phase.fb_mib is None and shape.footprint is not None:
        values[activity.YIELDING] = activity.constant(shape.footprint)
    return activity.Activity(
        values, seconds=phase.seconds, context=shape.context, pulse=pulse, name=phase.name or phase.shape or "demand"
    )


class Player:
    """Plays a profile on `count` cards of a model; the first is the model itself, the others differ a little."""

    def __init__(
        self, model: models.Model, profile: LoadProfile, *, seed: int, count: int = 1, inlet: float | None = None
    ) -> None:
        self._engine = engine.Engine(seed=seed)
        first = self._engine.add_cards(model, 1, inlet=inlet, spread=0.0)
        others = self._engine.add_cards(model, count - 1, inlet=inlet)
        self._group = self._engine.groups()[model.key]
        known = shapes.load()
        self._phases = tuple(activity_of(phase, known) for phase in profile.phases)
        for card in (*first, *others):
            self._engine.add_workload(activity.Profile("load", self._phases), [card])
        self._ends = np.cumsum([phase.length for phase in self._phases])
        self._changed = 0.0
        self._count = count
        self._sums = np.zeros((len(self._phases), len(COLUMNS)))
        self._energy = np.zeros(len(self._phases))

    def samples(self, rate: float) -> Iterator[Sample]:
        """Yield `rate` samples per simulated second."""
        end = float(self._ends[-1])
        for index in range(max(1, round(end * rate))):
            t = index / rate
            self._play_until(t, end)
            yield Sample(t, self._phases[self._phase_at(t)].name, self._values())
        self._play_until(end, end)

    def totals(self) -> list[dict[str, Any]]:
        """Return per phase the means over its time, and the joules of all cards together."""
        found = []
        for index, phase in enumerate(self._phases):
            means = self._sums[index] / phase.length / self._count
            entry = {name: round(float(mean), 3) for name, mean in zip(COLUMNS, means, strict=True)}
            del entry["energy_mj"], entry["throttle"]
            found.append(
                {
                    "phase": phase.name,
                    "seconds": phase.length,
                    **entry,
                    "energy_j": round(float(self._energy[index]), 3),
                }
            )
        return found

    def _play_until(self, t: float, end: float) -> None:
        while (following := self._following(end)) <= t + 1e-9:
            if following == self._engine.next_change():
                self._changed = following
            before, energy = self._engine.now, float(self._group["energy"].sum())
            self._engine.step(following)
            phase = self._phase_at(before)
            self._sums[phase] += self._values().sum(axis=1) * (following - before)
            self._energy[phase] += float(self._group["energy"].sum()) - energy

    def _phase_at(self, t: float) -> int:
        index = int(np.searchsorted(self._ends, t + 1e-9, side="right"))
        return min(index, len(self._phases) - 1)

    def _following(self, end: float) -> float:
        """Return when the next step ends."""
        now, change = self._engine.now, self._engine.next_change()
        if change - now < 1e-6:
            change = end if end > now else np.inf
        settled = now - self._changed > _UNSETTLED
        step = self._group.model.relations.sensors.refresh if settled else _FINE
        return min(now + step, change)

    def _values(self) -> npt.NDArray[np.float64]:
        group, memory = self._group, self._group.model.memory_mib
        return np.array(
            [
                np.round(group["usage"]),
                np.round(group["memory_usage"]),
                np.round(group["power_average"], 3),
                np.round(group["power_instant"], 3),
                np.round(group["temperature"]),
                np.round(group["temperature_memory"]),
                group["sm_clock"],
                np.round(group["memory_clock"]),
                np.round(group["memory_used"]) + memory.reserved,
                group["reasons"],
                np.floor(group["energy"] * 1000),
            ]
        )
