"""Clock, power, temperature and throttling of a card from the demand on it.

`advance` steps a block of cards of one model by `dt` seconds. All cards of the block share the model's constants; what
differs per card is in arrays. Every delay is integrated exactly for a demand that is constant over the step, so steps
may be of any length.
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

_SETTLED = 5.0
_NEAR = 0.06  # change of the clock below which another Newton step changes no reading
_SLIP_ONSET = np.float32(0.1)
_SLIP_FADE = np.float32(0.15)
_NOTHING = np.float32(1e-9)


class Constants(msgspec.Struct, frozen=True):
    """A model's relations as constants: powers in watts, clocks as shares of the maximum, times in seconds."""

    limit: float
    idle: float
    idle_clock: float
    lowest_clock: float
    clock_step: float
    floor: float
    knee: float
    idle_switching: float
    clock: float
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
    return Constants(
        limit=limit,
        idle=model.power_w.idle,
        idle_clock=idle_clock,
        lowest_clock=clocks.sm_min / clocks.sm_max,
        clock_step=clocks.sm_step / clocks.sm_max,
        floor=floor,
        knee=knee,
        idle_switching=min(0.99, idle_clock * idle_voltage**2),
        clock=power.clock * limit,
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


def advance(block: Block, model: Constants, dt: float) -> None:
    """Advance the cards by `dt` seconds."""
    top = np.minimum(block.highest, block.cap)
    open_context = block.context > 0
    np.copyto(block.clock, np.float32(model.idle_clock), where=~open_context)
    opened = open_context & (block.clock <= np.float32(model.idle_clock)) & (block.hold <= 0)
    np.copyto(block.clock, top, where=opened)
    sm_power, memory_power = _regulate(block, model, top, dt)
    _warm(block, model, sm_power, memory_power, dt)
    _throttle(block, model, dt)


class _DemandPower(msgspec.Struct, frozen=True):
    """Power in watts that the demand draws at full clock, and what does not depend on the clock."""

    compute: Floats
    sm: Floats
    die: Floats
    memory: Floats
    traffic: Floats
    warmth: Floats


def _demand_power(block: Block, model: Constants) -> _DemandPower:
    sm = block.sm * (block.efficiency * np.float32(model.sm))
    die = block.tensor * np.float32(model.tensor) + block.memory * np.float32(model.memory_die)
    die *= block.efficiency
    die += sm
    die *= 1 + np.float32(model.flicker) * block.hunt
    return _DemandPower(
        compute=np.maximum(block.sm, block.tensor),
        sm=sm,
        die=die,
        memory=block.memory * (block.efficiency * np.float32(model.memory)),
        traffic=block.pcie * np.float32(model.pcie) + block.nvlink * np.float32(model.nvlink),
        warmth=block.leak * (block.die_temperature - np.float32(model.reference)),
    )


def _regulate(block: Block, model: Constants, top: Floats, dt: float) -> tuple[Floats, Floats]:
    """Compute the power at the present clock and let the regulator change the clock. Return SM and memory power.

    The regulator takes a Newton step towards the clock at which the sensed power is its target: a short time step goes
    only as far as the delays allow, a long one iterates until it converges.
    """
    settles = dt >= _SETTLED * max(model.fall, model.rise, model.sense)
    seen, fall, rise = (
        _progress(math.inf if settles else dt, seconds) for seconds in (model.sense, model.fall, model.rise)
    )
    demand = _demand_power(block, model)
    target = block.limit * np.float32(model.target) * (1 + np.float32(model.hunting) * block.hunt)
    sm_power, memory_power = np.empty_like(block.power), np.empty_like(block.power)
    for _ in range(3 if settles else 1):
        slope = _draw(block, model, demand, top, sm=sm_power, memory=memory_power)
        block.sensed += (block.power - block.sensed) * seen
        upper = top - np.float32(model.clock_step) * (block.hold > 0)
        goal = block.clock + (target - block.sensed) / np.maximum(slope, block.limit * np.float32(0.07))
        np.clip(goal, np.float32(model.lowest_clock), upper, out=goal)
        goal -= block.clock
        if fall != rise:
            goal *= np.where(goal < 0, fall, rise)
        goal *= block.context
        block.clock += goal
        if np.abs(goal).max(initial=0) < _NEAR:
            break
    return sm_power, memory_power


def _draw(block: Block, model: Constants, demand: _DemandPower, top: Floats, *, sm: Floats, memory: Floats) -> Floats:
    """Write the power at the present clock into the arrays. Return its derivative by the clock."""
    knee, clock = np.float32(model.knee), block.clock
    steep = np.float32(2 * (1 - model.floor) / (1 - model.knee))
    regulated = np.clip((top - clock) / _SLIP_ONSET, 0, 1) * np.clip((clock - knee) / _SLIP_FADE, 0, 1)
    work_clock = clock * (1 - np.float32(model.slip) * regulated)
    above = np.maximum(work_clock - knee, 0)
    voltage = np.float32(model.floor) + steep / 2 * above
    squared = voltage * voltage
    clock_power = np.float32(model.clock / (1 - model.idle_switching))
    resting = clock_power * np.float32(model.idle_switching)
    switching = clock_power * work_clock * squared
    slower = 1 / work_clock
    needed = np.maximum(demand.compute * slower, block.memory * np.maximum(slower * np.float32(model.reach), 1))
    throughput = 1 / np.maximum(needed, 1)
    die = throughput * squared * demand.die + demand.traffic
    own = throughput * demand.memory
    base = (np.float32(model.idle) - resting) + switching + demand.warmth * squared
    working = die + own
    cut = np.clip((block.limit * np.float32(model.peak) - base) / np.maximum(working, _NOTHING), 0, 1)
    kept = cut * block.busy
    np.add(base, kept * working, out=block.power)
    np.multiply(kept, own, out=memory)
    np.add(kept * throughput * squared * demand.sm, switching - resting, out=sm)
    np.multiply(throughput, cut, out=block.throughput)
    slope: Floats = (kept * die + switching) * (slower + steep * (above > 0) / voltage)
    slope += memory * slower
    return slope


def _progress(dt: float, seconds: float) -> np.float32:
    return np.float32(-math.expm1(-dt / seconds))


def _warm(block: Block, model: Constants, sm_power: Floats, memory_power: Floats, dt: float) -> None:
    """Update die and memory temperature: heat passes through stages, each with a time constant."""
    sources = {"sm": sm_power, "die": block.power - memory_power, "memory": memory_power, "board": block.power}
    die = np.zeros_like(block.power)
    memory = np.zeros_like(block.power)
    for row, (source, seconds) in enumerate(model.filters):
        stage = block.heat[row]
        stage += (sources[source] - stage) * _progress(dt, seconds)
        if model.die_heat[row]:
            die += np.float32(model.die_heat[row]) * stage
        if model.memory_heat[row]:
            memory += np.float32(model.memory_heat[row]) * stage
    np.add(block.inlet, die * block.resistance, out=block.die_temperature)
    np.add(block.inlet, memory * block.resistance, out=block.memory_temperature)


def _throttle(block: Block, model: Constants, dt: float) -> None:
    """Set the throttle reasons, and the clock limit due to temperature."""
    hottest, lowest_cap = block.die_temperature.max(initial=-273), block.cap.min(initial=1)
    below = np.minimum(block.highest, block.cap) - block.clock > np.float32(1.5 * model.clock_step)
    below &= block.context > 0
    below |= block.sensed > block.limit * np.float32(model.target)
    block.hold -= np.float32(dt)
    np.maximum(block.hold, 0, out=block.hold)
    np.copyto(block.hold, np.float32(model.hold), where=below)
    np.multiply(block.hold > 0, np.uint16(POWER_CAP), out=block.reasons)
    block.reasons += block.context <= 0
    if hottest > model.hottest or lowest_cap < 1:
        _cool(block, model, dt)


def _cool(block: Block, model: Constants, dt: float) -> None:
    """Lower the clock limit while a card is above its maximum temperature, and raise it again later."""
    hot = block.die_temperature - np.float32(model.hottest)
    change = np.where(hot > 0, -hot, np.float32(model.hysteresis) * (hot < -model.hysteresis))
    block.cap += change * np.float32(model.slope * min(dt, 1.0))
    np.clip(block.cap, np.float32(model.lowest_cap), 1, out=block.cap)
    block.reasons |= ((hot >= 0) | (block.cap < 1)).astype(np.uint16) * np.uint16(SOFTWARE_THERMAL)
    slow = block.die_temperature >= np.float32(model.slowdown)
    block.reasons |= slow.astype(np.uint16) * np.uint16(HARDWARE_THERMAL | HARDWARE_SLOWDOWN)
