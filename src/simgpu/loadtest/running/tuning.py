"""Tuning sets: when each action of a phase starts.

Schedules are absolute: an action that is late does not delay the ones after it, so rates do not drift.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence

from simgpu.loadtest.scenario.model import TuningSet

Perform = Callable[[], Awaitable[None]]
_MAX_STARTED = 1000  # actions at a time


class TokenBucket:
    """The rate that all phases of a `globalQPSLoad` share."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens = burst
        self._at: float | None = None

    def wait(self, now: float) -> float:
        """Take a token, and return the seconds after which it may be used."""
        if self._at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)


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
            bucket = TokenBucket(wanted.settings["qps"], wanted.settings["burst"])
            self._buckets[wanted.name] = bucket
        clock = asyncio.get_running_loop().time
        started = clock()
        await _scheduled(actions, (clock() - started + bucket.wait(clock()) for _ in actions))


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
