"""The figures by which a simulated card is held against a recorded one."""

from __future__ import annotations

import msgspec
import numpy as np

from fidelity.recordings import Doubles, Recording, Series
from simgpu.catalog import models
from simgpu.sim import playing

RATE = 20.0
SHAPED = ("power_w", "temp_c", "mem_temp_c")
_LARGE = {"power_w": 50.0, "temp_c": 5.0, "mem_temp_c": 5.0}
_MOMENT = 2 * 0.107 + 1 / RATE  # both ends of a time are read once in a refresh, and rows are apart
_UNITS = {"power_w": "W", "temp_c": "°C", "mem_temp_c": "°C", "sm_mhz": "MHz", "energy_j": "J"}


class Check(msgspec.Struct, frozen=True):
    """One figure of one phase: real, simulated, how far apart they may be, and how well the recording knows it."""

    phase: str
    what: str
    real: float
    simulated: float
    tolerance: float
    known: float = 0.0

    @property
    def allowed(self) -> float:
        """How far apart they may be: never less than what the recording itself can tell."""
        return max(self.tolerance, self.known)

    @property
    def widened(self) -> bool:
        """Whether it passes only because the recording does not know better."""
        return self.good and abs(self.simulated - self.real) > self.tolerance

    @property
    def off(self) -> float:
        """How far apart they are, as a share of what is allowed."""
        return abs(self.simulated - self.real) / self.allowed

    @property
    def good(self) -> bool:
        """Whether it is within what is allowed."""
        return self.off <= 1.0


def simulate(recording: Recording, model: models.Model, *, seed: int = 1) -> Series:
    """The simulated card under the recorded profile."""
    player = playing.Player(model, recording.profile, seed=seed, inlet=recording.inlet)
    rows = list(player.samples(RATE))
    values = np.array([row.values[:, 0] for row in rows]).T
    return Series(
        np.array([row.t for row in rows]) + recording.real.t[0],
        np.array([row.phase for row in rows]),
        dict(zip(playing.COLUMNS, values, strict=True)),
    )


def checks(recording: Recording, simulated: Series) -> list[Check]:
    """Every figure of every phase."""
    result: list[Check] = []
    before = None
    for phase in recording.profile.phases:
        name = phase.name or ""
        result += _means(name, recording.real, simulated, pulsed=phase.duty is not None)
        if phase.duty is None:
            result += _usage(name, recording.real, simulated)
        if before is not None and not (phase.duty or before.duty):
            result += _shapes(before.name or "", name, recording.real, simulated)
        before = phase
    return result


def _means(phase: str, real: Series, simulated: Series, *, pulsed: bool) -> list[Check]:
    def mean(column: str, series: Series) -> float:
        return float(series.during(column, phase).mean())

    power, clock = mean("power_w", real), mean("sm_mhz", real)
    energy = _energy(real, phase)
    return [
        Check(phase, "power_w", power, mean("power_w", simulated), max(0.03 * power, 4.0)),
        Check(phase, "temp_c", mean("temp_c", real), mean("temp_c", simulated), 1.5, _aliasing(phase, real) * pulsed),
        Check(phase, "mem_temp_c", mean("mem_temp_c", real), mean("mem_temp_c", simulated), 3.0),
        Check(phase, "sm_mhz", clock, mean("sm_mhz", simulated), 0.02 * clock),
        Check(phase, "energy_j", energy, _energy(simulated, phase), 0.03 * energy),
    ]


def _aliasing(phase: str, real: Series) -> float:
    """How far off a recorded mean may be: a load that pulses in step with the readings shows them few moments."""
    low, high = np.percentile(real.during("temp_c", phase), [10, 90])
    return 0.3 * float(high - low)


def _energy(series: Series, phase: str) -> float:
    """Joules from the start of a phase to the start of the next."""
    start, stop = series.bounds(phase)
    stop = min(stop, len(series.t) - 1)
    return float(series.columns["energy_mj"][stop] - series.columns["energy_mj"][start]) / 1000


def _usage(phase: str, real: Series, simulated: Series) -> list[Check]:
    """Utilisation while a steady load is at it: the first third, where it starts, is left out."""
    found = []
    for column in ("gpu_util", "mem_util"):
        late = [series.during(column, phase) for series in (real, simulated)]
        means = [float(values[len(values) // 3 :].mean()) for values in late]
        found.append(Check(phase, column, means[0], means[1], 5.0))
    return found


def _shapes(before: str, phase: str, real: Series, simulated: Series) -> list[Check]:
    """How fast a change comes: seconds to 63 % and to 95 % of it, counted from the change in power."""
    found = []
    for column in SHAPED:
        levels = _levels(column, before, phase, real)
        if abs(levels[1] - levels[0]) < _LARGE[column]:
            continue
        for share in (0.63, 0.95):
            times = [_time_to(share, column, before, phase, series) for series in (real, simulated)]
            known = _resolution(share, column, before, phase, real)
            found.append(Check(phase, f"{column} to {share:.0%}", times[0], times[1], 0.3 * abs(times[0]), known))
    return found


def _resolution(share: float, column: str, before: str, phase: str, real: Series) -> float:
    """How well the recording knows the moment: both ends are read a tenth of a second apart, in whole degrees."""
    if column == "power_w":
        return _MOMENT
    half = 0.5 / abs(np.subtract(*_levels(column, before, phase, real)))
    early, late = (_time_to(share + sign * half, column, before, phase, real) for sign in (-1, 1))
    return max(_MOMENT, float(late - early) / 2)


def _levels(column: str, before: str, phase: str, series: Series) -> tuple[float, float]:
    was, becomes = series.during(column, before), series.during(column, phase)
    return float(was[-len(was) // 6 :].mean()), float(becomes[-len(becomes) // 3 :].mean())


def _time_to(share: float, column: str, before: str, phase: str, series: Series) -> float:
    """Power is a mean over a second, so that it is half-way half a second after the change: that tells its moment."""
    start, stop = series.bounds(phase)
    times = series.t[start:stop]

    def passing(what: str, part: float) -> float:
        return float(times[_passed(series.columns[what][start:stop], *_levels(what, before, phase, series), part)])

    began = passing("power_w", 0.5) - 0.5
    return passing(column, share) - began


def _passed(values: Doubles, low: float, high: float, share: float) -> int:
    done = (values - low) / (high - low) >= share
    return int(np.argmax(done)) if done.any() else len(values) - 1


def unit(what: str) -> str:
    """The unit of a figure."""
    return "s" if " to " in what else _UNITS.get(what, "%")
