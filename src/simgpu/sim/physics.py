"""Clock, power, temperature and throttling of a card from the demand on it.

`advance` steps a block of cards of one model. All cards of the block share the model's constants; what differs per card
is in arrays, and no card depends on another. Every delay is integrated exactly for a demand that is constant over the
step, so steps may be of any length.

`native/engine` does the same operations in the same order: a change here is a change there, and of its version.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.catalog import models

Floats = npt.NDArray[np.float32]

IDLE: Final = 0x1
POWER_CAP: Final = 0x4
HARDWARE_SLOWDOWN: Final = 0x8
SOFTWARE_THERMAL: Final = 0x20
HARDWARE_THERMAL: Final = 0x40

SOURCES: Final = ("sm", "die", "memory", "board")  # of heat

_SETTLED = 5.0
_PASSES = 3
_NEAR = np.float32(0.06)  # change of the clock below which another Newton step changes no reading
_ONE = np.float32(1)
_SLIP_ONSET = np.float32(10)  # over a tenth of the clock
_SLIP_FADE = _ONE / np.float32(0.15)
_NOTHING = np.float32(1e-9)
_LEAST_SLOPE = np.float32(0.07)
_THROTTLED = np.float32(1.5)  # clock steps


class Constants(msgspec.Struct, frozen=True):
    """A model's relations as constants: powers in watts, clocks as shares of the maximum, times in seconds."""

    limit: float
    idle: float
    idle_clock: float
    lowest_clock: float
    clock_step: float
    floor: float
    knee: float
    steep: float  # of the square of the voltage, by the clock above the knee
    rising: float  # of the voltage
    clock_power: float
    resting: float
    base: float
    leakage: float
    sm: float
    tensor: float
    memory_die: float
    memory: float
    pcie: float
    nvlink: float
    flicker: float
    target: float
    peak: float
    sense: float
    fall: float
    rise: float
    hold: float
    slip: float
    hunting: float
    reach: float
    inlet: float
    reference: float
    hottest: float
    slowdown: float
    slope: float
    hysteresis: float
    lowest_cap: float
    memory_idle: float  # MHz
    memory_range: float  # MHz
    clock_steps: float
    step_mhz: float
    highest_mhz: float
    filters: tuple[tuple[str, float], ...]
    die_heat: tuple[float, ...]
    memory_heat: tuple[float, ...]


def constants(model: models.Model) -> Constants:
    """Return the constants of a model."""
    relations, limit, clocks = model.relations, model.power_w.default, model.clocks_mhz
    heat, power, regulator = relations.heat, relations.power, relations.regulator
    stages = (*heat.die, *heat.memory)
    filters = tuple(dict.fromkeys((stage.source, stage.seconds * heat.inertia) for stage in stages))

    def per_watt(wanted: tuple[object, ...]) -> tuple[float, ...]:
        degrees = dict.fromkeys(filters, 0.0)
        for stage in stages:
            if any(stage is item for item in wanted):
                degrees[stage.source, stage.seconds * heat.inertia] += stage.degrees * heat.cooling / limit
        return tuple(degrees.values())

    idle_clock = clocks.sm_idle / clocks.sm_max
    floor, knee = relations.voltage.floor, relations.voltage.knee
    idle_voltage = floor + (1 - floor) * max(0.0, (idle_clock - knee) / (1 - knee))
    idle_switching = min(0.99, idle_clock * idle_voltage**2)
    clock_power = power.clock * limit / (1 - idle_switching)
    return Constants(
        limit=limit,
        idle=model.power_w.idle,
        idle_clock=idle_clock,
        lowest_clock=clocks.sm_min / clocks.sm_max,
        clock_step=clocks.sm_step / clocks.sm_max,
        floor=floor,
        knee=knee,
        steep=2 * (1 - floor) / (1 - knee),
        rising=(1 - floor) / (1 - knee),
        clock_power=clock_power,
        resting=clock_power * idle_switching,
        base=model.power_w.idle - clock_power * idle_switching,
        leakage=power.leakage * limit,
        sm=power.sm * limit,
        tensor=power.tensor * limit,
        memory_die=power.memory_die * limit,
        memory=power.memory * limit,
        pcie=power.pcie * limit,
        nvlink=power.nvlink * limit,
        flicker=power.flicker,
        target=regulator.target,
        peak=regulator.peak,
        sense=regulator.sense,
        fall=regulator.fall,
        rise=regulator.rise,
        hold=regulator.hold,
        slip=regulator.slip,
        hunting=regulator.hunting,
        reach=relations.memory.reach,
        inlet=heat.inlet,
        reference=heat.reference,
        hottest=model.temperature_c.gpu_max,
        slowdown=model.temperature_c.slowdown,
        slope=relations.throttling.slope,
        hysteresis=relations.throttling.hysteresis,
        lowest_cap=max(relations.throttling.floor, clocks.sm_min / clocks.sm_max),
        memory_idle=clocks.memory_idle,
        memory_range=clocks.memory_max - clocks.memory_idle,
        clock_steps=clocks.sm_max / clocks.sm_step,
        step_mhz=clocks.sm_step,
        highest_mhz=clocks.sm_max,
        filters=filters,
        die_heat=per_watt(heat.die),
        memory_heat=per_watt(heat.memory),
    )


class Block(msgspec.Struct):
    """Arrays of some cards of one model: the demands on them, their settings, and their state.

    Demands on the units apply while the card is busy; `busy` is the share of time in which it is.
    """

    # Demands.
    context: Floats
    busy: Floats
    sm: Floats
    tensor: Floats
    memory: Floats
    pcie: Floats
    nvlink: Floats
    # Settings.
    limit: Floats
    highest: Floats
    inlet: Floats
    efficiency: Floats
    leak: Floats
    resistance: Floats
    # State.
    clock: Floats
    sensed: Floats
    hold: Floats
    cap: Floats
    hunt: Floats
    die_temperature: Floats
    memory_temperature: Floats
    heat: Floats
    # Results of the step.
    power: Floats
    throughput: Floats
    reasons: npt.NDArray[np.uint16]


class Delays(msgspec.Struct, frozen=True):
    """How far delayed quantities get in a step of `seconds`, as shares of the way."""

    seconds: np.float32
    settles: bool  # whether the step is long enough for the clock to converge
    seen: np.float32
    fall: np.float32
    rise: np.float32
    cooling: np.float32
    heat: tuple[np.float32, ...]  # of each stage


def delays(model: Constants, dt: float) -> Delays:
    """Return what a step of `dt` seconds is for cards of a model."""
    settles = dt >= _SETTLED * max(model.fall, model.rise, model.sense)
    regulating = math.inf if settles else dt
    return Delays(
        seconds=np.float32(dt),
        settles=settles,
        seen=_progress(regulating, model.sense),
        fall=_progress(regulating, model.fall),
        rise=_progress(regulating, model.rise),
        cooling=np.float32(model.slope * min(dt, 1.0)),
        heat=tuple(_progress(dt, seconds) for _, seconds in model.filters),
    )


def advance(block: Block, model: Constants, step: Delays) -> None:
    """Advance the cards by a step."""
    top = np.minimum(block.highest, block.cap)
    open_context = block.context > 0
    np.copyto(block.clock, np.float32(model.idle_clock), where=~open_context)
    opened = open_context & (block.clock <= np.float32(model.idle_clock)) & (block.hold <= 0)
    np.copyto(block.clock, top, where=opened)
    load = _load(block, model, top)
    change = _regulate(load, model, step)
    rows = np.arange(len(change)) if step.settles else np.zeros(0, np.intp)
    for _ in range(1, _PASSES if step.settles else 1):
        rows = rows[np.abs(change) >= _NEAR]
        if not len(rows):
            break
        change = _regulate_some(load, rows, model, step)
    _warm(block, model, load, step)
    _throttle(block, model, top, step)


class _Load(msgspec.Struct):
    """What the regulator sees of cards: power in watts that the demand draws at full clock, and the card's state."""

    busy: Floats
    memory: Floats
    limit: Floats
    top: Floats
    context: Floats
    hold: Floats
    target: Floats
    compute: Floats
    sm_watts: Floats
    die_watts: Floats
    memory_watts: Floats
    traffic_watts: Floats
    warmth: Floats
    # Changed by the regulator.
    clock: Floats
    sensed: Floats
    power: Floats
    throughput: Floats
    sm_power: Floats
    memory_power: Floats


_REGULATED = ("clock", "sensed", "power", "throughput", "sm_power", "memory_power")


def _load(block: Block, model: Constants, top: Floats) -> _Load:
    sm = block.sm * (block.efficiency * np.float32(model.sm))
    die = block.tensor * np.float32(model.tensor) + block.memory * np.float32(model.memory_die)
    die *= block.efficiency
    die += sm
    die *= 1 + np.float32(model.flicker) * block.hunt
    return _Load(
        busy=block.busy,
        memory=block.memory,
        limit=block.limit,
        top=top,
        context=block.context,
        hold=block.hold,
        target=block.limit * np.float32(model.target) * (1 + np.float32(model.hunting) * block.hunt),
        compute=np.maximum(block.sm, block.tensor),
        sm_watts=sm,
        die_watts=die,
        memory_watts=block.memory * (block.efficiency * np.float32(model.memory)),
        traffic_watts=block.pcie * np.float32(model.pcie) + block.nvlink * np.float32(model.nvlink),
        warmth=block.leak * (block.die_temperature - np.float32(model.reference)),
        clock=block.clock,
        sensed=block.sensed,
        power=block.power,
        throughput=block.throughput,
        sm_power=np.empty_like(top),
        memory_power=np.empty_like(top),
    )


def _regulate_some(load: _Load, rows: npt.NDArray[np.intp], model: Constants, step: Delays) -> Floats:
    some = _Load(*(array[rows] for array in msgspec.structs.astuple(load)))
    change = _regulate(some, model, step)
    for name in _REGULATED:
        getattr(load, name)[rows] = getattr(some, name)
    return change


def _regulate(load: _Load, model: Constants, step: Delays) -> Floats:
    """Compute the power at the present clock and let the regulator change the clock. Return the change.

    The regulator takes a Newton step towards the clock at which the sensed power is its target: a short time step goes
    only as far as the delays allow, a long one repeats it for the cards that are not near their clock yet.
    """
    slope = _draw(load, model)
    load.sensed += (load.power - load.sensed) * step.seen
    upper = load.top - np.float32(model.clock_step) * (load.hold > 0)
    goal: Floats = load.clock + (load.target - load.sensed) / np.maximum(slope, load.limit * _LEAST_SLOPE)
    np.maximum(goal, np.float32(model.lowest_clock), out=goal)
    np.minimum(goal, upper, out=goal)
    goal -= load.clock
    if step.fall != step.rise or step.fall != 1:
        goal *= np.where(goal < 0, step.fall, step.rise)
    goal *= load.context
    load.clock += goal
    return goal


def _draw(load: _Load, model: Constants) -> Floats:
    """Write the power at the present clock into the arrays. Return its derivative by the clock."""
    knee, clock = np.float32(model.knee), load.clock
    slipping = _unit((load.top - clock) * _SLIP_ONSET) * _unit((clock - knee) * _SLIP_FADE)
    work_clock = clock * (1 - np.float32(model.slip) * slipping)
    above = np.maximum(work_clock - knee, 0)
    voltage = np.float32(model.floor) + np.float32(model.rising) * above
    squared = voltage * voltage
    switching = np.float32(model.clock_power) * work_clock * squared
    slower: Floats = np.divide(_ONE, work_clock)
    needed = np.maximum(load.compute * slower, load.memory * np.maximum(slower * np.float32(model.reach), 1))
    throughput: Floats = np.divide(_ONE, np.maximum(needed, 1))
    die = throughput * squared * load.die_watts + load.traffic_watts
    own = throughput * load.memory_watts
    base = np.float32(model.base) + switching + load.warmth * squared
    working = die + own
    cut = _unit(np.divide(load.limit * np.float32(model.peak) - base, np.maximum(working, _NOTHING)))
    kept = cut * load.busy
    np.maximum(base + kept * working, 0, out=load.power)  # far below the reference, leakage would exceed all else
    np.multiply(kept, own, out=load.memory_power)
    np.add(kept * throughput * squared * load.sm_watts, switching - np.float32(model.resting), out=load.sm_power)
    np.multiply(throughput, cut, out=load.throughput)
    slope: Floats = (kept * die + switching) * (slower + np.float32(model.steep) * (above > 0) / voltage)
    slope += load.memory_power * slower
    return slope


def _unit(values: Floats) -> Floats:
    """Limit values to 0 to 1, in place."""
    np.maximum(values, 0, out=values)
    return np.minimum(values, 1, out=values)


def _progress(dt: float, seconds: float) -> np.float32:
    return np.float32(-math.expm1(-dt / seconds))


def _warm(block: Block, model: Constants, load: _Load, step: Delays) -> None:
    """Update die and memory temperature: heat passes through stages, each with a time constant."""
    die_power = block.power - load.memory_power
    sources = dict(zip(SOURCES, (load.sm_power, die_power, load.memory_power, block.power), strict=True))
    die = np.zeros_like(block.power)
    memory = np.zeros_like(block.power)
    for row, (source, _) in enumerate(model.filters):
        stage = block.heat[row]
        stage += (sources[source] - stage) * step.heat[row]
        if model.die_heat[row]:
            die += np.float32(model.die_heat[row]) * stage
        if model.memory_heat[row]:
            memory += np.float32(model.memory_heat[row]) * stage
    np.add(block.inlet, die * block.resistance, out=block.die_temperature)
    np.add(block.inlet, memory * block.resistance, out=block.memory_temperature)


def _throttle(block: Block, model: Constants, top: Floats, step: Delays) -> None:
    """Set the throttle reasons, and the clock limit due to temperature."""
    hottest, lowest_cap = block.die_temperature.max(initial=-273), block.cap.min(initial=1)
    below = top - block.clock > _THROTTLED * np.float32(model.clock_step)
    below &= block.context > 0
    below |= block.sensed > block.limit * np.float32(model.target)
    block.hold -= step.seconds
    np.maximum(block.hold, 0, out=block.hold)
    np.copyto(block.hold, np.float32(model.hold), where=below)
    np.multiply(block.hold > 0, np.uint16(POWER_CAP), out=block.reasons)
    block.reasons += block.context <= 0
    if hottest >= np.float32(min(model.hottest, model.slowdown)) or lowest_cap < 1:
        _cool(block, model, step)


def _cool(block: Block, model: Constants, step: Delays) -> None:
    """Lower the clock limit while a card is above its maximum temperature, and raise it again later."""
    hot = block.die_temperature - np.float32(model.hottest)
    hysteresis = np.float32(model.hysteresis)
    block.cap += np.where(hot > 0, -hot, hysteresis * (hot < -hysteresis)) * step.cooling
    np.clip(block.cap, np.float32(model.lowest_cap), 1, out=block.cap)
    block.reasons |= ((hot >= 0) | (block.cap < 1)).astype(np.uint16) * np.uint16(SOFTWARE_THERMAL)
    slow = block.die_temperature >= np.float32(model.slowdown)
    block.reasons |= slow.astype(np.uint16) * np.uint16(HARDWARE_THERMAL | HARDWARE_SLOWDOWN)
