"""One soak from start to end: load, faults and edits at the same time, checks between them, and the result."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from simgpu.kube import nudging, resources
from soak import fleet, load, plan, state, world
from soak.edits import Edits
from soak.faults import Faults, Impossible
from soak.gate import Gate
from soak.insisting import insist
from soak.observing import Observer
from soak.results import Growth, Occurrence, Result, Sample
from soak.settings import Settings
from soak.state import Seen
from soak.world import World

Report = Callable[[str], None]

_REST_SECONDS = 150.0  # in which everything has to agree once nothing is disturbed any more
_POLL_SECONDS = 0.3
_PASSED_OVER_SECONDS = 30.0  # in which pods on nodes start, or KWOK has passed them over
_NO_PAGE = "a controller or an agent serves no page"
_STILL_SECONDS = 2.0  # without a change at rest; longer than a changed view waits
_SCHEDULING_SECONDS = 20.0  # the same while pods wait; longer than a new scheduler waits for its lease
_ENOUGH = 3  # faults of a kind, of which one has to be seen to act
_MAX_MEMORY, _MAX_FILES = 512.0, 400  # MiB, as the manifests allow; open files
_WARM_SECONDS = 300.0  # until the caches and pools of a process have their size
_MORE_COLD = {"controller": 88.0}  # MiB from the start: its fleet, and what a lost lead left, come within minutes
_MORE_MEMORY, _MORE_FILES = 16.0, 24
_LATER_FILES = 8  # on the disk: state that is saved later than at the start, and what a kill leaves of its writing


class Soak:
    """A run; `report` gets a line for each thing that happens."""

    def __init__(self, settings: Settings, running: World, report: Report) -> None:
        self._settings = settings
        self._world = running
        self._report = report
        self._start = time.monotonic()
        self._gate = Gate()
        self._faults = Faults(running)
        self._observer = Observer(running, self._since)
        self._load = load.Load(running.client, running.fleet, settings, self._gate)
        self._edits = Edits(running, settings, self._observer.counters)
        self._edited: collections.Counter[str] = collections.Counter()
        self._impossible: dict[str, str] = {}
        self._occurrences: list[Occurrence] = []
        self._failures: list[str] = []
        self._settled: list[float] = []
        self._fresh_starts = 0
        self._rests: list[Sample] = []
        self._reported = 0  # falls of counters that were reported
        self._passed_over: set[str] = set()
        self._overfilled = 0  # nodes at checks
        self._spared = False  # whether SimGPU's processes are left alive now

    def _since(self) -> float:
        return time.monotonic() - self._start

    async def run(self) -> Result:
        """Run everything, and check at the end that nothing is left."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            watching, leaked = asyncio.create_task(self._observer.run()), dict[str, int]()
            try:
                await self._load.prepare()
                if (empty := await self._rest(session, "start")) is not None:
                    files = self._world.files()
                    await self._disturb(session, watching)
                    await self._check(session, fresh=True)
                    leaked = await self._leaks(session, empty, files)
                    self._world.look_for_crashes(*plan.OURS)
            except Exception as error:  # noqa: BLE001 - what was found until then is reported
                self._report(traceback.format_exc())
                self._fail(f"the run ended early: {error!r}")
            finally:
                watching.cancel()
                (ended,) = await asyncio.gather(watching, return_exceptions=True)
            if isinstance(ended, Exception):
                self._fail(f"counters and memory were not watched to the end: {ended!r}")
        return self._result(leaked)

    async def _disturb(self, session: aiohttp.ClientSession, watching: asyncio.Task[None]) -> None:
        pause = self._settings.pause
        lanes: list[Coroutine[Any, Any, None]] = [
            self._lane(plan.lane(kinds, self._settings.chance(name), pause=pause, rarer=plan.RARER.get(name, 1.0)))
            for name, kinds in plan.LANES.items()
        ]
        workloads = [
            load.run_workloads(self._world.socket, self._settings.chance(f"workloads {number}"), self._load.counts)
            for number in range(load.WORKLOADS)
        ]
        work = [
            self._load.run(),
            self._edits.run(self._gate, pause, self._edit_done),
            self._checks(session),
            *(kubelet.run(self._gate) for kubelet in self._world.kubelets),
            *workloads,
            *lanes,
        ]
        tasks = [asyncio.create_task(item) for item in work]
        try:
            done, _ = await asyncio.wait(
                {*tasks, watching}, timeout=self._settings.seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            for task in done:
                task.result()
            async with self._gate.closed():  # nobody is in the middle of something
                await _cancel(tasks)
        finally:
            await _cancel(tasks)

    async def _lane(self, planned: Iterator[plan.Planned]) -> None:
        for fault in planned:
            await asyncio.sleep(fault.wait)
            if fault.kind in self._impossible:
                continue
            async with self._gate.inside():
                if self._spared and fault.kind in plan.KILLS_OF_OURS:
                    continue
                at = self._since()
                self._report(f"{at:7.1f} s  {fault.kind}, for {fault.seconds:.1f} s")
                try:
                    await self._faults.kinds[fault.kind](fault)
                except Impossible as why:
                    self._impossible[fault.kind] = str(why)
                    continue
                self._world.faults[fault.kind] += 1
                self._occurrences.append(Occurrence(round(at, 1), fault.kind, round(self._since() - at, 1)))

    def _edit_done(self, kind: str) -> None:
        self._edited[kind] += 1

    async def _checks(self, session: aiohttp.ClientSession) -> None:
        """Check at random moments, and when the part without kills begins, with fresh processes that stay."""
        chance, begin = self._settings.chance("checks"), self._since()
        while True:
            pause = chance.uniform(60, 150)
            until = max(0.0, begin + self._settings.seconds_with_kills - self._since())
            due = not self._spared and (self._settings.short or until <= pause)
            await asyncio.sleep(until if due else pause)
            async with self._gate.closed():
                fresh = due or (not self._spared and chance.random() < 0.6)
                self._spared |= due
                await self._check(session, fresh=fresh)

    async def _check(self, session: aiohttp.ClientSession, *, fresh: bool) -> None:
        """Wait until everything agrees; with `fresh`, compare that with what a new controller and agents make of it."""
        at = self._since()
        before = await self._rest(session, "check")
        if before is not None and fresh:
            for name in ("controller", *fleet.AGENTS):
                await self._world.stop(name, kill=self._fresh_starts % 2 == 0)
            await self._world.revive()
            self._fresh_starts += 1
            await self._same(session, before)
        self._occurrences.append(Occurrence(round(at, 1), "check", round(self._since() - at, 1)))
        self._report(f"{at:7.1f} s  check took {self._since() - at:.1f} s")
        falls = self._observer.counters.falls
        for fall in falls[self._reported :]:
            self._report(f"FAILED a counter fell: {fall}")
        self._reported = len(falls)

    async def _look(self, session: aiohttp.ClientSession) -> Seen | None:
        """Return the state; None if a page is not served, or the API server does not answer for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REST_SECONDS):
                found = await self._observer.nodes(session)
                return await insist(lambda: state.look(self._world.client, found)) if found is not None else None
        return None

    async def _rest(self, session: aiohttp.ClientSession, what: str) -> Seen | None:
        await self._world.revive()
        start, problems = time.monotonic(), [_NO_PAGE]
        started = start
        before: Seen | None = None
        while problems:
            if (seen := await self._look(session)) is not None:
                problems = state.disagreements(seen, self._world.fleet.pools)
                problems += self._world.claim_file_problems()
                if not problems and seen != before:
                    before, problems = seen, ["it changes all the time"]
                    await asyncio.sleep(_SCHEDULING_SECONDS if seen.waiting else _STILL_SECONDS)
            if not problems and seen is not None:
                self._overfilled += len(state.overfilled(seen))
                self._settled.append(round(time.monotonic() - start, 1))
                for role in await self._observer.settle(session):
                    self._fail(f"{what}: the {role} serves no page")
                self._rests.append(await self._observer.sample(session))
                return seen
            if time.monotonic() > start + _REST_SECONDS:
                self._fail(f"{what}: not at rest: {'; '.join(problems)}")
                return None
            if seen is not None and seen.starting and time.monotonic() > started + _PASSED_OVER_SECONDS:
                await self._nudge(seen.starting)
                started = time.monotonic()
            await asyncio.sleep(_POLL_SECONDS)
        return None

    async def _same(self, session: aiohttp.ClientSession, before: Seen) -> None:
        """Wait until processes that were just started show the state of those before them, and stay with it."""
        start, equal = time.monotonic(), 0
        while equal < 2:
            seen = await self._look(session)
            problems = [_NO_PAGE] if seen is None else state.differences(before, seen)
            equal = 0 if problems else equal + 1
            if problems and time.monotonic() > start + _REST_SECONDS:
                self._fail(f"a fresh start differs: {'; '.join(problems)}")
                return
            await asyncio.sleep(_POLL_SECONDS if problems else _STILL_SECONDS)
        self._rests.append(await self._observer.sample(session))

    async def _nudge(self, starting: frozenset[str]) -> None:
        """Change the pods that KWOK has passed over, as `simgpu up` does when it has started a KWOK.

        KWOK looks at the pods of a node when it has written its lease, skips them while its own cache has no such lease
        yet, and does not come back to them: so when a node is made anew, whose old lease is deleted meanwhile.
        """
        self._passed_over |= starting
        self._report(f"{self._since():7.1f} s  KWOK passed over {', '.join(sorted(starting))}")
        client = self._world.client
        pods = await insist(lambda: nudging.unfinished_pods(client, namespace=fleet.PODS))
        for pod in [pod for pod in pods or () if pod.metadata.name in starting]:
            await insist(functools.partial(nudging.nudge, client, pod))

    async def _leaks(self, session: aiohttp.ClientSession, empty: Seen, files: frozenset[str]) -> dict[str, int]:
        """Delete all pods, and return what stays that was not there before the first one."""
        for kubelet in self._world.kubelets:
            await kubelet.drain()
        async with asyncio.timeout(_REST_SECONDS):
            await self._load.drain()
        start, left = time.monotonic(), frozenset[str]()
        while True:
            found = {"everything": 1}
            exporter = await self._observer.page(session, "exporter")
            if exporter is not None and (seen := await self._look(session)) is not None:
                claims = await insist(lambda: self._world.client.list(resources.RESOURCE_CLAIMS, namespace=fleet.PODS))
                found = state.leaks(seen, self._world.fleet.pools, len(claims or ()), empty)
                found["GPUs"] += exporter.busy
                left, problems = self._world.files() - files, self._world.claim_file_problems()
                found["files"] = max(0, len(left) - _LATER_FILES) + len(problems)
            if not any(found.values()):
                return found
            if time.monotonic() > start + _REST_SECONDS:
                self._report(f"files that were not there at the start: {', '.join(sorted(left)) or 'none'}")
                return found
            await asyncio.sleep(_POLL_SECONDS)

    def _fail(self, problem: str) -> None:
        self._failures.append(f"{self._since():.1f} s: {problem}")
        self._report(f"FAILED {self._failures[-1]}")

    def _result(self, leaked: dict[str, int]) -> Result:
        observer, running, counters = self._observer, self._world, self._observer.counters
        growth = grown(observer.samples, self._rests)
        self._failures += [f"a counter fell: {fall}" for fall in counters.falls]
        self._failures += [f"{count} {what} leaked" for what, count in leaked.items() if count]
        self._failures += [f"{name} ended by itself" for name in running.crashes]
        self._failures += world.tracebacks(running.folder)
        self._failures += [f"a workload {name}" for name in self._load.counts if name.startswith(load.FAILED)]
        self._failures += [problem for name in plan.OURS if name in growth for problem in excess(name, growth[name])]
        self._failures += [f"no counter of the {role} grew" for role in plan.OURS if role not in counters.roles_grown]
        self._failures += [] if self._settings.short else without_effect(running.faults, running.effects)
        return Result(
            seed=self._settings.seed,
            seconds=round(self._since(), 1),
            cores=os.cpu_count() or 1,
            nodes=len(running.fleet.pools),
            gpus=fleet.GPUS * len(running.fleet.pools),
            failures=self._failures,
            faults=dict(running.faults),
            impossible=self._impossible,
            effects=dict(running.effects),
            edits=dict(self._edited),
            proxy=dict(running.proxy.counts),
            restarts=dict(running.restarts),
            load=dict(self._load.counts),
            peak=max(self._load.by_second.values(), default=0),
            kubelet_pods=sum(kubelet.started for kubelet in running.kubelets),
            checks=len(self._settled),
            fresh_starts=self._fresh_starts,
            settle_seconds=self._settled,
            passed_over=len(self._passed_over),
            overfilled=self._overfilled,
            scrapes=sum(observer.scrapes.values()),
            counters=len(counters.grown),
            falls=len(counters.falls),
            leaked=leaked,
            growth=growth,
            occurrences=self._occurrences,
            samples=observer.samples,
        )


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def without_effect(faults: Mapping[str, int], effects: Mapping[str, int]) -> Iterator[str]:
    """Yield the kinds of faults that have never acted."""
    for kind in plan.PROVEN:
        if faults.get(kind, 0) >= _ENOUGH and not effects.get(kind):
            yield f"{kind}: happened {faults[kind]} times, and never acted"


def grown(samples: list[Sample], rests: list[Sample]) -> dict[str, Growth]:
    """Return how much each process grew while it lived, from the first rest to the last.

    Connections come and go with faults, so that of open files the fewest count, in each half of that time.
    """
    found = {}
    for name in sorted({name for sample in rests for name in sample.pids}):
        life = _longest([sample for sample in rests if name in sample.pids], name)
        first, last = life[0], life[-1]
        warm = [sample.memory[name] for sample in life if sample.at >= first.at + _WARM_SECONDS]
        every = [sample for sample in samples if name in sample.pids]
        middle, pid = (first.at + last.at) / 2, first.pids[name]
        lived = [sample for sample in every if sample.pids[name] == pid and first.at <= sample.at <= last.at]
        found[name] = Growth(
            first.memory[name],
            last.memory[name],
            max(sample.memory[name] for sample in every),
            min((sample.files[name] for sample in lived if sample.at <= middle), default=first.files[name]),
            min((sample.files[name] for sample in lived if sample.at >= middle), default=last.files[name]),
            max(sample.files[name] for sample in every),
            round(last.at - first.at, 1),
            warm[0] if len(warm) > 1 else None,
        )
    return found


def _longest(rests: list[Sample], name: str) -> list[Sample]:
    """Return the rests of the process that has the most time between its first and its last."""
    lives: dict[int, list[Sample]] = {}
    for sample in rests:
        lives.setdefault(sample.pids[name], []).append(sample)
    return max(lives.values(), key=lambda life: life[-1].at - life[0].at)


def excess(name: str, growth: Growth) -> Iterator[str]:
    """Yield what a process used more of than it should; also if it never lived from one check to another."""
    if not growth.seconds:
        yield f"{name}: no process lived from one check to another, so that nothing is known of its growth"
    warm = growth.memory_last if growth.memory_warm is None else growth.memory_warm
    if warm > growth.memory_first + _MORE_COLD.get(name, _MORE_MEMORY):
        yield f"{name} grew from {growth.memory_first} to {warm} MiB"
    if growth.memory_last > warm + _MORE_MEMORY:
        yield f"{name} grew from {warm} to {growth.memory_last} MiB once it was warm"
    if growth.memory_most > _MAX_MEMORY:
        yield f"{name} had {growth.memory_most} MiB"
    if growth.files_last > growth.files_first + _MORE_FILES:
        yield f"{name} never had less than {growth.files_first} open files, and later {growth.files_last}"
    if growth.files_most > _MAX_FILES:
        yield f"{name} had {growth.files_most} open files"


async def run(settings: Settings, report: Report) -> Result:
    """Run a soak in a cluster of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch, _environment():
        running = World(settings, Path(scratch))
        async with running.running():
            result = None
            try:
                result = await Soak(settings, running, report).run()
            finally:
                if result is None or result.failures:
                    _keep_logs(running, settings.out)
            return result


def _keep_logs(running: World, out: Path) -> None:
    for log in running.folder.logs.glob("*.log"):
        shutil.copy(log, out)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Put the environment back as it was."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
