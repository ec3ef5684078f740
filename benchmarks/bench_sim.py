"""The engine: what a step of a large fleet costs, and what a card takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator

from benchmarks import frame
from simgpu.catalog import models, shapes
from simgpu.sim import activity, engine

LARGE, SMALL = 1_000_000, 100_000


def fleet(count: int) -> engine.Engine:
    """Cards that train, every one of them."""
    made = engine.Engine(seed=1)
    cards = made.add_cards(models.load().models["h200"], count)
    mix = activity.mix(shapes.load()["training"].demand, usage=activity.constant(0.97), memory_mib=100_000)
    made.add_workload(activity.Profile("training", (activity.Activity(mix),), repeat=0), cards)
    for _ in range(4):
        made.step(made.now + 1)
    return made


def seconds(made: engine.Engine, steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        made.step(made.now + 1)
    return time.perf_counter() - start


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    large, small = fleet(LARGE), fleet(SMALL)
    pairs = [(seconds(large, 1), seconds(small, 10)) for _ in range(9)]
    step = statistics.median(pair[0] for pair in pairs)
    tenths = statistics.median(pair[1] for pair in pairs)
    yield frame.Figure("sim.step", step * 1000, tenths * 1000, "ms", "ten steps of a tenth: is the cost linear")
    yield frame.Figure("sim.state", large.state_bytes("h200"), 1024, "B/card", "a kilobyte")
