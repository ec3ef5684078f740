"""Tuning sets: when each action of a phase starts.

Schedules are absolute: an action that is late does not delay the ones after it, so rates do not drift.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence

from simgpu.kube.token_bucket import TokenBucket
from simgpu.loadtest.scenario.model import TuningSet

Perform = Callable[[], Awaitable[None]]
_MAX_STARTED = 1000  # actions at a time


class Tuning:
    """Performs actions as tuning sets ask for."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._buckets: dict[str, TokenBucket] = {}

    async def perform(self, actions: Sequence[Perform], wanted: TuningSet) -> None:
        """Perform all actions, which do not raise."""
        if wanted.kind == "parallelismLimitedLoad":
            await _limited(actions, int(wanted.settings["parallelismLimit"]))
        elif wanted.kind == "globalQPSLoad":
            await self._shared(actions, wanted)
        else:
            await _scheduled(actions, delays(len(actions), wanted, self._chance))

    async def _shared(self, actions: Sequence[Perform], wanted: TuningSet) -> None:
        bucket = self._buckets.get(wanted.name)
        if bucket is None:
            bucket = self._buckets[wanted.name] = TokenBucket(wanted.settings["qps"], int(wanted.settings["burst"]))
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            for action in actions:
                while (wait := bucket.wait(clock())) > 0:
                    await asyncio.sleep(wait)
                bucket.take(clock())
                group.create_task(_one(action))


def delays(count: int, wanted: TuningSet, chance: random.Random) -> Iterator[float]:
    """Yield the start of each action, in seconds since the first may start."""
    settings = wanted.settings
    match wanted.kind:
        case "qpsLoad":
            yield from (index / settings["qps"] for index in range(count))
        case "randomizedLoad":
            at = 0.0
            for _ in range(count):
                yield at
                at += chance.uniform(0.0, 2.0 / settings["averageQps"])
        case "steppedLoad":
            size, pause = int(settings["burstSize"]), settings["stepDelay"]
            yield from (index // size * pause for index in range(count))
        case "timeLimitedLoad":
            yield from (index * settings["timeLimit"] / count for index in range(count))
        case "randomizedTimeLimitedLoad":
            yield from sorted(chance.uniform(0.0, settings["timeLimit"]) for _ in range(count))
        case "poissonLoad":
            at = 0.0
            for _ in range(count):
                yield at
                at += chance.expovariate(settings["expectedActionsPerSecond"])
        case _:
            raise ValueError(f"{wanted.kind}: not a tuning set with a schedule")


async def _scheduled(actions: Sequence[Perform], starts: Iterator[float]) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    slots = asyncio.Semaphore(_MAX_STARTED)
    async with asyncio.TaskGroup() as group:
        for action, start in zip(actions, starts, strict=True):
            wait = began + start - clock()
            if wait > 0:
                await asyncio.sleep(wait)
            await slots.acquire()
            group.create_task(_one(action)).add_done_callback(lambda _task: slots.release())


async def _one(action: Perform) -> None:
    await action()


async def _limited(actions: Sequence[Perform], workers: int) -> None:
    waiting = iter(actions)

    async def work() -> None:
        for action in waiting:
            await action()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(workers, len(actions))):
            group.create_task(work())
