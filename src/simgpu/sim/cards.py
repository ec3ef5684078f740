"""All cards of one model: demand, settings, state, readings and counters, one array per quantity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from simgpu.catalog import models
from simgpu.sim import kernel, noise, packing, physics

Rows = npt.NDArray[np.intp]
Doubles = npt.NDArray[np.float64]
Parallel = Callable[[Sequence[Callable[[], None]]], None]  # runs independent jobs, and returns when all are done

DEMAND: Final = ("context", "busy", "sm", "tensor", "memory", "pcie", "nvlink")
SETTINGS: Final = ("limit", "highest", "inlet", "efficiency", "leak", "resistance")
WIRING: Final = ("linked",)  # 1 if the card has NVLink peers
LAST: Final = ("hangs_at", "uncorrected_at", "lost_at")  # time of the last event; 0 if none
STATE: Final = ("clock", "sensed", "hold", "cap", "hunt", "die_temperature", "memory_temperature")
RESULTS: Final = ("power", "throughput", "memory_used", "memory_clock")
READINGS: Final = (
    "power_average", "power_instant", "temperature", "temperature_memory", "sm_clock", "usage", "memory_usage",
)  # fmt: skip
WINDOWS: Final = ("busy_seconds", "memory_seconds", "tick_energy")
COUNTERS: Final = (
    "energy", "busy_time", "power_throttle", "thermal_throttle", "hardware_throttle", "pcie_bytes", "fabric_bytes",
    "memory_bytes",
    "hangs", "corrected", "uncorrected", "xids",
)  # fmt: skip

OUTLIVING: Final = (*COUNTERS, *LAST)  # kept across any downtime

INLETS: Final = (-100.0, 200.0)  # allowed coolant temperatures, in °C

STEPPED: Final = COUNTERS[: COUNTERS.index("hangs")]  # by steps; the others by events
COLUMNS: Final = (*DEMAND, *SETTINGS, *WIRING, *LAST, *STATE, *RESULTS, *READINGS, *WINDOWS)
READABLE: Final = (*DEMAND, "limit", "highest", *LAST, *RESULTS, *READINGS, *COUNTERS, "reasons")  # what views show
_PASSING: Final = {*DEMAND, *WIRING, *WINDOWS}  # derived from others, or transient
_BLOCK = 16384  # rows that numpy steps together, which fit into a processor's cache
_PIECE = 4 * _BLOCK  # rows of a job
_HUNT_KEPT, _HUNT_ADDED = np.float32(0.6), np.float32(0.8 / noise.DEVIATION)
_TEMPERATURES = (-200.0, 500.0)
_LATEST = 1e10  # seconds
MAX_COUNTED: Final = dict.fromkeys(COUNTERS, _LATEST) | {
    "energy": 1e15, "pcie_bytes": 1e24, "fabric_bytes": 1e24, "memory_bytes": 1e24,
    "hangs": 1e15, "corrected": 1e15, "uncorrected": 1e15, "xids": 1e15,
}  # fmt: skip
_PCIE_PAYLOAD = 0.944  # measured: 59.5 GB/s of an x16 link of generation 5
_AT_REST = ("die", "board")  # heat sources that draw power when idle
_SPREAD = {"efficiency": 0.015, "leak": 0.05, "resistance": 0.02}


class _Step(msgspec.Struct, frozen=True):
    """A step: what is the same for all cards."""

    dt: float
    ticks: int
    windows: int
    key: np.uint32  # of the noise
    delays: physics.Delays
    # Bytes for each share of the capacity.
    memory_bytes: np.float32
    pcie_bytes: np.float32
    fabric_bytes: np.float32
    # Factors from seconds and energies to readings.
    window: np.float32
    tick: np.float32
    slot: np.float32
    average: np.float32


def highest_rates(model: models.Model) -> dict[str, float]:
    """Return the most traffic of each kind that a card can have, in bytes per second."""
    lane = 3.94e9 * 2.0 ** (model.pci.generation - 5)
    return {
        "bandwidth": model.memory_gb_per_second * 1e9,
        "pcie": _PCIE_PAYLOAD * model.pci.width * lane,
        "fabric": model.links.count * model.links.gb_per_second * 1e9 if model.links else 0.0,
    }


class Cards:
    """Cards of one model, by row. Rows are freed and reused."""

    def __init__(self, model: models.Model, rng: np.random.Generator, *, compiled: bool, parallel: Parallel) -> None:
        self.model = model
        self._parallel = parallel
        self.constants = physics.constants(model)
        self._kernel = load_kernel() if compiled else None
        self._model = np.array([getattr(self.constants, name) for name in kernel.MODEL], np.float32)
        self.count = 0
        self.free: list[int] = []
        self._rng = rng
        self._names = (*COLUMNS, *(f"heat_{stage}" for stage in range(len(self.constants.filters))))
        self._floats: npt.NDArray[np.float32] = np.zeros((len(self._names), 0), np.float32)
        self._counters: Doubles = np.zeros((len(COUNTERS), 0))
        self._reasons: npt.NDArray[np.uint16] = np.zeros((2, 0), np.uint16)
        self._ring: npt.NDArray[np.float32] | None = None
        self._ring_at = 0
        self._ring_seconds: list[float] = []
        self._tick_seconds = 0.0
        self._window_seconds = 0.0
        sensors = model.relations.sensors
        self._ticks = max(1, round(sensors.power / sensors.refresh))
        self._ranges = self._valid_ranges()
        self.highest = highest_rates(model)
        peak = max(1.0, model.relations.regulator.peak)  # for a moment a card draws more than its limit
        self._fastest = {
            "energy": model.power_w.max * peak, "busy_time": 1.0, "power_throttle": 1.0, "thermal_throttle": 1.0,
            "hardware_throttle": 1.0, "pcie_bytes": self.highest["pcie"], "fabric_bytes": self.highest["fabric"],
            "memory_bytes": self.highest["bandwidth"],
        }  # fmt: skip

    def _valid_ranges(self) -> dict[str, tuple[float, float]]:
        """Return the valid range of each quantity in a saved state."""
        regulator = self.model.relations.regulator
        most = self.model.power_w.max * max(1.0, regulator.peak)
        clocks = (self.constants.lowest_clock, self.constants.idle_clock)
        found = {
            "limit": (self.model.power_w.min, self.model.power_w.max), "highest": (self.constants.lowest_clock, 1.0),
            "inlet": INLETS, "clock": (min(clocks), 1.0), "cap": (self.constants.lowest_cap, 1.0),
            "hold": (0.0, regulator.hold), "hunt": (-100.0, 100.0), "throughput": (0.0, 1.0),
            "memory_used": (0.0, self.model.memory_mib.total), "sm_clock": (0.0, self.model.clocks_mhz.sm_max),
            "memory_clock": (0.0, self.model.clocks_mhz.memory_max), "reasons": (0.0, 65535.0),
            "efficiency": (0.5, 2.0), "resistance": (0.5, 2.0),
            "leak": (0.5 * self.constants.leakage, 2 * self.constants.leakage),
        }  # fmt: skip
        found |= dict.fromkeys(("usage", "memory_usage"), (0.0, 100.0)) | dict.fromkeys(LAST, (0.0, _LATEST))
        found |= dict.fromkeys(("sensed", "power", "power_average", "power_instant"), (0.0, most))
        found |= dict.fromkeys((name for name in self._names if name.startswith("heat_")), (-most, most))
        temperatures = ("die_temperature", "memory_temperature", "temperature", "temperature_memory")
        found |= dict.fromkeys(temperatures, _TEMPERATURES)
        return found | {name: (0.0, highest) for name, highest in MAX_COUNTED.items()}

    # Rows.

    def add(self, count: int, *, inlet: float | None, spread: float) -> Rows:
        """Add idle cards and return their rows. `inlet` is in °C; None is the model's own."""
        reused = [self.free.pop() for _ in range(min(count, len(self.free)))]
        fresh = count - len(reused)
        self._grow(self.count + fresh)
        rows = np.array([*sorted(reused), *range(self.count, self.count + fresh)], dtype=np.intp)
        self.count += fresh
        self._rest(rows, inlet=self.constants.inlet if inlet is None else inlet, spread=spread)
        return rows

    def remove(self, rows: Rows) -> None:
        """Clear the demand of removed cards, and free their rows for new ones."""
        self._floats[: len(DEMAND), rows] = 0
        self.free.extend(int(row) for row in rows)

    def _grow(self, needed: int) -> None:
        have = self._floats.shape[1]
        if needed <= have:
            return
        more = max(needed - have, have // 2, 16)
        self._floats = np.pad(self._floats, ((0, 0), (0, more)))
        self._counters = np.pad(self._counters, ((0, 0), (0, more)))
        self._reasons = np.pad(self._reasons, ((0, 0), (0, more)))
        if self._ring is not None:
            self._ring = np.pad(self._ring, ((0, 0), (0, more)))

    def _rest(self, rows: Rows, *, inlet: float, spread: float) -> None:
        model, constants = self.model, self.constants
        self._floats[:, rows] = 0
        self._counters[:, rows] = 0
        start: dict[str, float] = {
            "limit": constants.limit, "highest": 1.0, "linked": 1.0, "inlet": inlet, "efficiency": 1.0,
            "leak": constants.leakage, "resistance": 1.0, "clock": constants.idle_clock, "cap": 1.0,
            "memory_clock": model.clocks_mhz.memory_idle,
        }  # fmt: skip
        for name, value in start.items():
            self[name][rows] = value
        if spread:
            for name, deviation in _SPREAD.items():
                self[name][rows] *= 1 + np.clip(self._rng.standard_normal(len(rows)), -3, 3) * deviation * spread
        idle = constants.idle * np.ones(len(rows), np.float32)
        for row, (source, _) in enumerate(constants.filters):
            self._floats[len(COLUMNS) + row, rows] = idle if source in _AT_REST else 0
        for name in ("power", "sensed", "power_average", "power_instant"):
            self[name][rows] = idle
        for name, reading, heat in (
            ("die_temperature", "temperature", constants.die_heat),
            ("memory_temperature", "temperature_memory", constants.memory_heat),
        ):
            rise = sum(h * (s in _AT_REST) for h, (s, _) in zip(heat, constants.filters, strict=True)) * constants.idle
            self[name][rows] = self[reading][rows] = inlet + rise * self["resistance"][rows]
        self["sm_clock"][rows] = model.clocks_mhz.sm_idle
        self._reasons[:, rows] = physics.IDLE
        if self._ring is not None:
            self._ring[:, rows] = np.float32(constants.idle) * np.array(self._ring_seconds, np.float32)[:, None]

    # Quantities.

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a view of a quantity for all rows, free ones included."""
        if name in COUNTERS:
            return self._counters[COUNTERS.index(name), : self.count]
        if name == "reasons":
            return self._reasons[1, : self.count]
        return self._floats[self._names.index(name), : self.count]

    def counters(self, rows: Rows) -> Doubles:
        """Return all counters of some rows: a row per card, in the order of `COUNTERS`."""
        return np.asarray(self._counters[:, rows].T)

    @property
    def state_bytes(self) -> int:
        """Bytes of memory per card."""
        arrays: tuple[npt.NDArray[Any] | None, ...] = (self._floats, self._counters, self._reasons, self._ring)
        return sum(array.shape[0] * array.itemsize for array in arrays if array is not None)

    # Time.

    def step(self, dt: float, *, ticks: int, windows: int) -> None:
        """Advance by `dt` seconds, in which `ticks` sensor refreshes and `windows` usage windows end."""
        self._tick_seconds += dt
        self._window_seconds += dt
        if self._ring is None and ticks < self._ticks and (ticks == 0 or dt < self.model.relations.sensors.power):
            refresh = self.model.relations.sensors.refresh
            self._ring = np.repeat(self["power_average"][None, :] * np.float32(refresh), self._ticks, axis=0)
            self._ring_seconds = [refresh] * self._ticks
            self._ring = np.pad(self._ring, ((0, 0), (0, self._floats.shape[1] - self.count)))
        for tick in range(min(ticks, self._ticks) if self._ring is not None else 0):
            self._ring_seconds[(self._ring_at + tick) % self._ticks] = self._tick_seconds / ticks
        if ticks >= self._ticks:
            self._ring = None
        step = self._stepping(dt, ticks=ticks, windows=windows)
        call = self._call(step)
        pieces = ((start, min(start + _PIECE, self.count)) for start in range(0, self.count, _PIECE))
        self._parallel([partial(self._step_rows, start, stop, step, call) for start, stop in pieces])
        if ticks:
            self._ring_at += ticks
            self._tick_seconds = 0.0
        if windows:
            self._window_seconds = 0.0

    def _stepping(self, dt: float, *, ticks: int, windows: int) -> _Step:
        return _Step(
            dt=dt,
            ticks=ticks,
            windows=windows,
            key=noise.draw_key(self._rng) if ticks else np.uint32(0),
            delays=physics.delays(self.constants, dt),
            memory_bytes=np.float32(self.highest["bandwidth"] * dt),
            pcie_bytes=np.float32(self.highest["pcie"] * dt),
            fabric_bytes=np.float32(self.highest["fabric"] * dt),
            window=np.float32(100 / self._window_seconds),
            tick=np.float32(1 / self._tick_seconds),
            slot=np.float32(self._tick_seconds / max(1, ticks)),
            average=np.float32(1 / sum(self._ring_seconds)) if self._ring is not None else np.float32(1),
        )

    def _call(self, step: _Step) -> kernel.StepCall:
        model, delays = self.constants, step.delays
        sources = (physics.SOURCES.index(source) for source, _ in model.filters)
        stages = zip(sources, delays.heat, model.die_heat, model.memory_heat, strict=True)
        return kernel.StepCall(
            columns=self._floats,
            counters=self._counters,
            reasons=self._reasons,
            ring=self._ring,
            model=self._model,
            step=np.array(
                [
                    delays.seconds, delays.seen, delays.fall, delays.rise, delays.cooling, step.memory_bytes,
                    step.pcie_bytes, step.fabric_bytes, step.window, step.tick, step.slot, step.average,
                ],
                np.float32,
            ),
            stages=np.array(list(stages), kernel.STAGE),
            seconds=step.dt,
            first_slot=self._ring_at % self._ticks,
            ticks=step.ticks,
            windows=step.windows,
            settles=delays.settles,
            has_fabric=self.highest["fabric"] > 0,
            moves_memory_clock=model.memory_range > 0,
            key=int(step.key),
        )  # fmt: skip

    def _step_rows(self, start: int, stop: int, step: _Step, call: kernel.StepCall) -> None:
        if self._kernel is not None:
            self._kernel.step(call, start, stop)
            return
        for first in range(start, stop, _BLOCK):
            self._step_block(first, min(first + _BLOCK, stop), step)

    def _step_block(self, start: int, stop: int, step: _Step) -> None:
        q = dict(zip(self._names, self._floats[:, start:stop], strict=True))
        if step.ticks:
            q["hunt"] *= _HUNT_KEPT
            q["hunt"] += noise.bell(start, stop, step.key) * _HUNT_ADDED
        block = physics.Block(
            heat=self._floats[len(COLUMNS) :, start:stop],
            reasons=self._reasons[0, start:stop],
            **{name: q[name] for name in (*DEMAND, *SETTINGS, *STATE, "power", "throughput")},
        )
        physics.advance(block, self.constants, step.delays)
        served = q["busy"] * q["throughput"]
        traffic = served * q["memory"]
        self._count(q, served, traffic, slice(start, stop), step)
        q["busy_seconds"] += q["busy"] * step.delays.seconds
        q["memory_seconds"] += traffic * step.delays.seconds
        q["tick_energy"] += q["power"] * step.delays.seconds
        self._move_memory_clock(q, traffic)
        if step.windows:
            _close_window(q, step.window)
        if step.ticks:
            self._refresh(q, start, stop, step)

    def _count(
        self,
        q: dict[str, npt.NDArray[np.float32]],
        served: npt.NDArray[np.float32],
        traffic: npt.NDArray[np.float32],
        block: slice,
        step: _Step,
    ) -> None:
        """Add to the counters, which never decrease."""
        of = dict(zip(COUNTERS, self._counters[:, block], strict=True))
        reasons = self._reasons[0, block]
        of["energy"] += q["power"] * step.delays.seconds
        of["busy_time"] += q["busy"] * step.delays.seconds
        of["memory_bytes"] += traffic * step.memory_bytes
        of["pcie_bytes"] += served * q["pcie"] * step.pcie_bytes
        if self.highest["fabric"]:
            of["fabric_bytes"] += served * q["nvlink"] * step.fabric_bytes
        if (seen := int(reasons.max(initial=0))) > physics.IDLE:
            of["power_throttle"] += ((reasons & physics.POWER_CAP) != 0) * step.dt
            if seen >= physics.SOFTWARE_THERMAL:
                of["thermal_throttle"] += ((reasons & physics.SOFTWARE_THERMAL) != 0) * step.dt
                of["hardware_throttle"] += ((reasons & physics.HARDWARE_THERMAL) != 0) * step.dt

    def _move_memory_clock(self, q: dict[str, npt.NDArray[np.float32]], traffic: npt.NDArray[np.float32]) -> None:
        """Set the memory clock: a card that lowers it when idle raises it with its traffic."""
        if self.constants.memory_range > 0:
            units = np.maximum(traffic, np.maximum(q["pcie"], q["nvlink"]) * q["busy"])
            wanted = np.minimum(units * np.float32(4) + np.float32(0.5) * q["busy"], 1)
            lowest, span = np.float32(self.constants.memory_idle), np.float32(self.constants.memory_range)
            q["memory_clock"][:] = lowest + span * wanted

    def _refresh(self, q: dict[str, npt.NDArray[np.float32]], start: int, stop: int, step: _Step) -> None:
        """Update the readings."""
        average = q["power_average"]
        np.multiply(q["tick_energy"], step.tick, out=average)
        q["tick_energy"][:] = 0
        if self._ring is not None:
            ring = self._ring[:, start:stop]
            for tick in range(step.ticks):
                np.multiply(average, step.slot, out=ring[(self._ring_at + tick) % self._ticks])
            average[:] = ring[0]
            for slot in ring[1:]:
                average += slot
            average *= step.average
        q["power_instant"][:] = q["sensed"]
        q["temperature"][:] = q["die_temperature"]
        q["temperature_memory"][:] = q["memory_temperature"]
        steps = np.rint(q["clock"] * np.float32(self.constants.clock_steps))
        steps *= np.float32(self.constants.step_mhz)
        np.minimum(steps, np.float32(self.constants.highest_mhz), out=q["sm_clock"])
        self._reasons[1, start:stop] = self._reasons[0, start:stop]

    # Keeping.

    def keep(self, row: int) -> dict[str, float]:
        """Return the state of a card: its settings, state, readings and counters by name."""
        columns = zip(self._names, self._floats[:, row].tolist(), strict=True)
        counters = zip(COUNTERS, self._counters[:, row].tolist(), strict=True)
        kept = {name: value for name, value in columns if name not in _PASSING}
        return {**kept, **dict(counters), "reasons": float(self._reasons[1, row])}

    def resume(self, row: int, kept: Mapping[str, float], *, seconds: float = 0.0) -> list[str]:
        """Restore the state of a card from `keep`. Return the names of values out of range, which are ignored.

        Counters never decrease, and grow by the most that they can in `seconds`. Unknown names are ignored too.
        """
        impossible = []
        since = min(max(0.0, seconds), _LATEST)
        for name, saved in kept.items():
            if name not in self._ranges:
                continue
            lowest, highest = self._ranges[name]
            value = saved + since * self._fastest.get(name, 0.0)
            slack = 1e-4 * max(abs(lowest), abs(highest))  # rounding of single precision
            if not lowest - slack <= value <= highest + slack:
                impossible.append(name)
                continue
            possible = min(max(value, lowest), highest)
            if name in COUNTERS:
                self[name][row] = max(self[name][row], possible)
            elif name == "reasons":
                self._reasons[:, row] = int(possible)
            else:
                self[name][row] = possible
        if self._ring is not None:
            self._ring[:, row] = self["power_average"][row] * np.array(self._ring_seconds, np.float32)
        return impossible

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain data, for `restore`."""
        return {
            "count": self.count,
            "free": list(self.free),
            "floats": packing.pack(self._floats[:, : self.count]),
            "counters": packing.pack(self._counters[:, : self.count]),
            "reasons": packing.pack(self._reasons[:, : self.count]),
            "ring": None if self._ring is None else packing.pack(self._ring[:, : self.count]),
            "rng": packing.random_state(self._rng),
            "at": [self._ring_at, self._tick_seconds, self._window_seconds, self._ring_seconds],
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Restore a snapshot."""
        self.count, self.free = kept["count"], list(kept["free"])
        self._floats = packing.unpack(kept["floats"], np.float32)
        self._counters = packing.unpack(kept["counters"], np.float64)
        self._reasons = packing.unpack(kept["reasons"], np.uint16)
        self._ring = None if kept["ring"] is None else packing.unpack(kept["ring"], np.float32)
        self._rng.bit_generator.state = packing.random_state_from(kept["rng"])
        self._ring_at, self._tick_seconds, self._window_seconds, self._ring_seconds = kept["at"]


def _close_window(q: dict[str, npt.NDArray[np.float32]], scale: np.float32) -> None:
    for name, seconds in (("usage", "busy_seconds"), ("memory_usage", "memory_seconds")):
        np.minimum(q[seconds] * scale, 100, out=q[name])
        q[seconds][:] = 0


def in_turn(jobs: Sequence[Callable[[], None]]) -> None:
    """Run jobs one after the other."""
    for job in jobs:
        job()


def load_kernel() -> kernel.Kernel | None:
    """Return the compiled step for these columns, if there is one."""
    return kernel.load(COLUMNS, STEPPED)
