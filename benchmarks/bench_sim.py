"""The engine: what a step of a large fleet costs, and what a card takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator

from benchmarks import frame
from simgpu.app.step_threads import StepThreads
from simgpu.catalog import models, shapes
from simgpu.sim import activity, cards, engine

COUNT = 1_000_000
TURNS = 9
STEADY, REDRAWN = activity.constant(0.97), activity.Value(0.5, 1.0)


def fleet(made: engine.Engine, usage: activity.Value) -> engine.Engine:
    """Cards that train, every one of them."""
    ids = made.add_cards(models.load().models["h200"], COUNT)
    mix = activity.mix(shapes.load()["training"].demand, usage=usage, memory_mib=100_000)
    made.add_workload(activity.Profile("training", (activity.Activity(mix),), repeat=0), ids)
    for _ in range(4):
        made.step(made.now + 1)
    return made


def step(made: engine.Engine) -> tuple[float, float]:
    """Milliseconds of one step: by the clock, and of all processors together."""
    wall, processors = time.perf_counter(), time.process_time()
    made.step(made.now + 1)
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - processors)


def alternate(usage: activity.Value) -> tuple[tuple[float, float], tuple[float, float], int]:
    """Medians of ours and of the baseline, and the bytes of a card."""
    ours = fleet(engine.Engine(seed=1, parallel=StepThreads()), usage)
    bare = fleet(engine.Engine(seed=1, compiled=False), usage)
    pairs = [(step(ours), step(bare)) for _ in range(TURNS)]
    walls, processors = ([statistics.median(pair[who][kind] for pair in pairs) for who in (0, 1)] for kind in (0, 1))
    return (walls[0], walls[1]), (processors[0], processors[1]), ours.state_bytes("h200")


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    assert cards.load_kernel() is not None, "native/ is not built"
    numpy = "numpy alone, one thread"
    for name, usage in (("sim.step", STEADY), ("sim.redraw", REDRAWN)):
        wall, processors, size = alternate(usage)
        yield frame.Figure(name, *wall, "ms", numpy)
        yield frame.Figure(f"{name}_cpu", *processors, "ms", f"{numpy}; CPU time")
        if usage is STEADY:
            yield frame.Figure("sim.state", size, 1024, "B/card", "a kilobyte")
