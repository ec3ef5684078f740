"""Relations between the quantities of a card: the curve and the time constant of each.

All of it is data, in `data/relations.yaml` and in the `relations` of a model file. Powers are shares of the card's
default power limit and temperatures are degrees at that limit, so that one set serves cards of every size.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from simgpu import yaml_text
from simgpu.catalog.facts import Facts, Share

DATA = Path(__file__).parent / "data" / "relations.yaml"

CALIBRATED_ON = "h200"

Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]
Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=86400.0)]
Degrees = Annotated[float, msgspec.Meta(ge=-50.0, le=200.0)]


class Voltage(Facts, frozen=True):
    """Clock to voltage: `floor` up to the clock `knee`, then straight up to 1; both as shares of the maximum."""

    floor: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
    knee: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]


class PowerRelation(Facts, frozen=True):
    """Clock, usage and bandwidth to power: what each draws when it is at its highest, as shares of the limit.

    `clock` is the clock running with nothing to do, `leakage` what each degree adds, `memory_die` the die's part of
    moving memory and `memory` the memory's own.
    """

    clock: Ratio
    leakage: Ratio
    sm: Ratio
    tensor: Ratio
    memory_die: Ratio
    memory: Ratio
    pcie: Ratio
    nvlink: Ratio
    flicker: Share = 0.0


class Regulator(Facts, frozen=True):
    """Power to clock: the card lowers its clock until it draws `target` of its limit.

    It sees power after `sense` seconds and moves the clock with `fall` and `rise`. Until then only `peak` times the
    limit is kept, by skipping clock pulses. While it regulates, work falls short of the clock by `slip`. The reason
    stays up for `hold` seconds.
    """

    target: Share
    peak: Annotated[float, msgspec.Meta(ge=1.0, le=10.0)]
    sense: Seconds
    fall: Seconds
    rise: Seconds
    hold: Seconds
    slip: Share = 0.0
    hunting: Share = 0.0


class Stage(Facts, frozen=True, rename={"source": "from"}):
    """Power to temperature with delay: the degrees that `from`, at the card's limit, adds after `seconds`."""

    source: Literal["sm", "die", "memory", "board"]
    degrees: Degrees
    seconds: Seconds


class Heat(Facts, frozen=True):
    """Both temperatures as sums of stages over the inlet; `reference` is where leakage counts from.

    `cooling` multiplies all degrees and `inertia` all seconds: a card with a poorer, or a heavier, heat sink.
    """

    inlet: Degrees
    reference: Degrees
    die: tuple[Stage, ...]
    memory: tuple[Stage, ...]
    cooling: Ratio = 1.0
    inertia: Annotated[float, msgspec.Meta(gt=0.0, le=1000.0)] = 1.0


class Throttling(Facts, frozen=True):
    """Temperature to throttling, throttling to clock and bandwidth limits.

    Above the model's highest temperature the clock's upper end falls by `slope` of the maximum for each degree and
    second, not below `floor`; it recovers once it is `hysteresis` degrees cooler.
    """

    slope: Ratio
    hysteresis: Degrees
    floor: Share


class MemoryRelation(Facts, frozen=True):
    """Bandwidth to memory clock, and clock to bandwidth: below `reach` the SM clock limits it.

    `context` is the memory in MiB that an open context takes unless the workload states it.
    """

    reach: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
    context: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Sensors(Facts, frozen=True):
    """Timing of readings in seconds: `refresh` of all, and the windows over which `power` and `usage` are averaged."""

    refresh: Seconds
    power: Seconds
    usage: Seconds


class Relations(Facts, frozen=True):
    """All relations of a card."""

    voltage: Voltage
    power: PowerRelation
    regulator: Regulator
    heat: Heat
    throttling: Throttling
    memory: MemoryRelation
    sensors: Sensors

    @property
    def feedback(self) -> float:
        """The leakage that comes of the heat of leakage, as a share of it."""
        return self.power.leakage * self.heat.cooling * sum(abs(stage.degrees) for stage in self.heat.die)


@functools.cache
def load() -> dict[str, Any]:
    """Return the default relations, as in the file."""
    document = yaml_text.parse_file(DATA)
    assert isinstance(document, dict)  # noqa: S101 - our own file
    return document
