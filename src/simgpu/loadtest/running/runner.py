"""Runs a scenario from its namespaces to its last trace.

Whatever happens, what the run made is removed: after success, failure, a time-out and an interrupt. At the end the
cluster is looked through for anything that is left.
"""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from simgpu import errors
from simgpu.catalog import models
from simgpu.kube import errors as kube_errors
from simgpu.kube import parallel, resources
from simgpu.kube.client import Client
from simgpu.loadtest import abandoned, concurrency, heartbeat, ownership, watched
from simgpu.loadtest.abandoned import Trace
from simgpu.loadtest.dependencies import fake_gpus
from simgpu.loadtest.dependencies.workbench import Dependency, DependencyError, Workbench
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.measurements import percentiles, registry
from simgpu.loadtest.measurements.bench import Bench, Measured, Measurement
from simgpu.loadtest.run_progress import RunProgress
from simgpu.loadtest.running import namespaces, phases, placement
from simgpu.loadtest.running.objects import Creator
from simgpu.loadtest.running.results import CaseResult, RunResult
from simgpu.loadtest.running.timeline import Census, TimelineSample
from simgpu.loadtest.scenario.model import MeasurementCall, Scenario, ScenarioStep
from simgpu.loadtest.scenario.reading import Methods
from simgpu.loadtest.served import Served
from simgpu.loadtest.watched import PODS, Selection, Watches

_SHOW_SECONDS = 0.5
_TEARDOWN_SECONDS = 120.0
_MAX_POINTS = 20_000  # of pods in the report
_CLEANUP = "'simgpu loadtest cleanup' can remove the rest"


def methods(catalog: models.Catalog | None = None) -> Methods:
    """Return the methods that scenarios can name; `catalog` has the models of their GPUs, by default built-in ones."""
    return Methods(
        fake_gpus.PARAMETERS,
        registry.PARAMETERS,
        fake_gpus.ALIASES,
        registry.REQUIRED,
        functools.partial(fake_gpus.check_call, catalog=catalog),
    )


METHODS = methods()


class RunnerSettings(msgspec.Struct, frozen=True):
    """What the command line adds to a run."""

    nodes: int | None = None
    server: str = ""
    scheduler: Callable[[], Awaitable[str]] | None = None
    prometheus: str = ""
    seed: int | None = None


class Runner:
    """One run of a scenario."""

    def __init__(self, client: Client, scenario: Scenario, settings: RunnerSettings, progress: RunProgress) -> None:
        self._client, self._scenario, self._settings, self._progress = client, scenario, settings, progress
        self._chance = random.Random(settings.seed)
        self.run_id = ownership.new_run(random.SystemRandom())
        self._spaces = namespaces.names(scenario.namespaces, self.run_id)
        self._census = Census(frozenset((*self._spaces, *_listed(scenario))))
        self._served = Served(client)
        self._watches = Watches(client)
        self._heartbeat = heartbeat.Heartbeat(client, self.run_id)
        self._dependencies: list[Dependency] = []
        self._placement: placement.RunPlacement | None = None
        self._made: frozenset[str] = frozenset()
        self._creator: Creator | None = None
        self._measurements: dict[tuple[str, str], Measurement] = {}
        self._bench: Bench | None = None
        self._phases: phases.Phases | None = None
        self.result = RunResult(
            scenario=scenario.name,
            identifier=scenario.identifier,
            config=str(scenario.file),
            run=self.run_id.id,
            server=settings.server,
            started=self._census.started,
            notes=list(scenario.notes),
            variables=scenario.variables,
        )

    async def run(self) -> RunResult:
        """Run the scenario and remove its traces; the result has what failed. Cancellation ends it early."""
        for note in self._scenario.notes:
            self._progress.note(note)
        shown = asyncio.create_task(self._show())
        try:
            await self._work()
        except asyncio.CancelledError:
            self.result.interrupted = True
            self.result.errors.append("interrupted")
            self._progress.note("interrupted: removing what the run made")
        except (errors.SimgpuError, TimeoutError) as error:
            self.result.errors.append(str(error) or type(error).__name__)
        finally:
            shown.cancel()
            if not await concurrency.insistent(self._end(shown), self._warn):
                self.result.interrupted = True
                self.result.errors.append(f"teardown was interrupted: {_CLEANUP} a minute from now")
        return self.result

    def _warn(self) -> None:
        self._progress.note(f"removing what the run made; if you interrupt it once more, {_CLEANUP}")

    # Working

    async def _work(self) -> None:
        await self._prepare()
        await self._begin_heartbeat()
        try:
            await self._set_up()
        except BaseExceptionGroup as failures:
            raise parallel.first(failures) from None
        for number, step in enumerate(self._scenario.steps, 1):
            await self._step(number, step)

    async def _prepare(self) -> None:
        """Look whether everything can be done; nothing is created before that."""
        bench = Workbench(
            self._client,
            self._served,
            self.run_id,
            self._scenario.variables,
            (*self._spaces, *_listed(self._scenario)),
            self._progress,
        )
        calls = self._scenario.dependencies
        wanted = [fake_gpus.settings(call, self._scenario.variables, self._settings.nodes) for call in calls]
        for call, item in zip(calls, wanted, strict=True):
            self._dependencies.append(fake_gpus.FakeGpus(bench, item, name=call.name))
        self._placement = placement.of_run(self.run_id, wanted)
        problems = [problem for dependency in self._dependencies for problem in await dependency.check()]
        self._bench = Bench(
            self._client,
            self._served,
            self._watches,
            self._progress,
            self._settings.scheduler,
            self._settings.prometheus,
            await self._served.dra_version(),
            self._census.spaces,
        )
        problems += await self._check_kinds()
        if problems:
            raise errors.SimgpuError("; ".join(dict.fromkeys(problems)))

    async def _begin_heartbeat(self) -> None:
        """Show that the run is alive. Without the permission it runs too: no clean-up removes it unasked."""
        try:
            await self._heartbeat.start()
        except kube_errors.Forbidden:
            self._note("leases cannot be created here: 'loadtest cleanup' will not know whether this run is alive")

    async def _check_kinds(self) -> list[str]:
        """Return which kinds of templates the server does not serve."""
        problems = []
        creator = Creator(self._client, self._served, {}, frozenset(), self._census.called)
        checked = phases.Phases(self._scenario, creator, self._spaces, self._chance)
        for step in self._scenario.steps:
            for phase in step.phases:
                for item in phase.objects:
                    for identity in checked.identities(item):
                        try:
                            await self._served.resource(*identity)
                        except kube_errors.KubeError as error:
                            problems.append(f"{item.path}.objectTemplatePath: {error}")
        for note in self._served.notes:
            self._note(note)
        return problems

    async def _set_up(self) -> None:
        wanted = self._scenario.namespaces
        self._made = frozenset(self._spaces)  # also those of a creation that fails half-way are the run's to delete
        self._made = await namespaces.create(self._client, self._spaces, self.run_id, existing=wanted.existing)
        self._creator = Creator(
            self._client,
            self._served,
            self.run_id.labels,
            self._made,
            self._census.called,
            placement=self._placement,
        )
        self._phases = phases.Phases(self._scenario, self._creator, self._spaces, self._chance)
        for call, dependency in zip(self._scenario.dependencies, self._dependencies, strict=True):
            try:
                async with asyncio.timeout(call.seconds or None):
                    await dependency.setup()
            except TimeoutError:
                raise DependencyError(f"{call.name}: not set up in {call.seconds:g} s (timeout)") from None
        await self._watch()

    async def _watch(self) -> None:
        """Follow the run's pods and claims, in one namespace or in all."""
        assert self._bench is not None  # noqa: S101 - prepared before
        selection = Selection(self._bench.own_namespace)
        await self._bench.follow(PODS, selection, self._census.pod)
        self._census.times.begin()
        if self._bench.dra_version is not None:
            await self._bench.follow(watched.claims(self._bench.dra_version), selection, self._census.claim)

    async def _step(self, number: int, step: ScenarioStep) -> None:
        title = step.name or f"step {number}"
        self.result.steps.append((round(time.time() - self._census.started, 3), title))
        self._progress.update("step", f"{number} of {len(self._scenario.steps)}: {title}")
        prefix = f"[step: {number:02d}] {step.name}".rstrip()
        if step.phases:
            await self._phase_step(step, prefix)
        else:
            await self._measurement_step(step, prefix)

    async def _phase_step(self, step: ScenarioStep, prefix: str) -> None:
        assert self._phases is not None  # noqa: S101 - set up before
        case = CaseResult(prefix)
        self.result.cases.append(case)
        started = time.monotonic()
        found: dict[str, phases.PhaseResult] = {}

        async def one(index: int) -> None:
            assert self._phases is not None  # noqa: S101 - set up before
            phase = step.phases[index]
            found[phase.path] = await self._phases.run(phase)

        await parallel.each(range(len(step.phases)), one, in_flight=len(step.phases))
        case.seconds = round(time.monotonic() - started, 3)
        case.errors = phases.summary(found)
        for note in self._served.notes:
            self._note(note)

    async def _measurement_step(self, step: ScenarioStep, prefix: str) -> None:
        async def one(index: int) -> None:
            call = step.measurements[index]
            case = CaseResult(f"{prefix} [{index:02d}] - {call.identifier}")
            cases[index] = case
            started = time.monotonic()
            try:
                measured = await self._measure(call)
            except (errors.SimgpuError, TimeoutError) as error:
                case.errors = [str(error) or type(error).__name__]
                self._progress.note(f"{call.identifier}: {case.errors[0]}")
            else:
                case.errors, case.skipped = measured.violations, measured.skipped
                if case.skipped:
                    self._note(f"{call.identifier}: skipped, {case.skipped}")
                self.result.summaries += measured.summaries
            case.seconds = round(time.monotonic() - started, 3)

        cases: dict[int, CaseResult] = {}
        try:
            await parallel.each(range(len(step.measurements)), one, in_flight=len(step.measurements))
        finally:
            self.result.cases += [cases[index] for index in sorted(cases)]

    async def _measure(self, call: MeasurementCall) -> Measured:
        assert self._bench is not None  # noqa: S101 - prepared before
        key = (call.method, call.identifier)
        if key not in self._measurements:
            self._measurements[key] = registry.MAKERS[call.method](self._bench)
        return await self._measurements[key].execute(call.identifier, call.params)

    def _note(self, line: str) -> None:
        if line not in self.result.notes:
            self.result.notes.append(line)
            self._progress.note(line)

    # Showing

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(min(_SHOW_SECONDS, self._census.interval))
            sample = self._census.sample()
            if self._phases is not None and self._phases.active:
                done = sum(result.done for result in self._phases.active)
                total = sum(result.total for result in self._phases.active)
                self._progress.update("objects", f"{done} of {total} of this step")
            if sample.pending or sample.running or sample.done:
                self._progress.update("pods", self._pods_line(sample))

    def _pods_line(self, sample: TimelineSample) -> str:
        counts = f"{sample.pending} pending, {sample.running} running, {sample.done} done"
        latencies = sorted(self._census.times.latencies(2000))
        if not latencies:
            return counts
        p50, p99 = percentiles.at(latencies, 50), percentiles.at(latencies, 99)
        return f"{counts}; start-up p50 {p50:.2f} s, p99 {p99:.2f} s"

    def _show_totals(self, sample: TimelineSample) -> None:
        """Replace what was shown of the steps, which are over."""
        if self.result.steps:
            self._progress.done("step", f"{len(self.result.steps)} of {len(self._scenario.steps)} begun")
        if sample.objects:
            self._progress.done("objects", f"{sample.objects} created")
            self._progress.done("pods", self._pods_line(sample))

    # The end

    async def _end(self, shown: asyncio.Task[None]) -> None:
        await asyncio.gather(shown, return_exceptions=True)
        self._show_totals(self._census.sample(last=True))
        result, census = self.result, self._census
        result.timeline = census.samples
        result.pods = len(census.times)
        step = max(1, len(census.times) // _MAX_POINTS)
        result.startup = [(round(at - census.started, 3), round(took, 4)) for at, took in census.times.points()[::step]]
        result.seconds = round(time.time() - census.started, 3)
        await self._watches.close()
        self._progress.update("teardown", "removing what the run made")
        if await concurrency.until(self._answers, seconds=_TEARDOWN_SECONDS):
            await self._tear_down()
        else:
            result.leftovers.append(f"unknown: the API server does not answer; later {_CLEANUP}")
        if result.leftovers:
            result.errors.append(f"left behind: {', '.join(result.leftovers[:10])}{_more(result.leftovers[10:])}")
            self._progress.note(result.errors[-1])
        else:
            self._progress.done("teardown", "nothing is left")

    async def _answers(self) -> bool:
        await self._client.raw("/version")
        return True

    async def _tear_down(self) -> None:
        keep, errors_before = not self._scenario.namespaces.delete, len(self.result.errors)
        if self._creator is not None and not keep:
            await self._attempt("objects", self._delete_scattered(self._creator))
        if keep:
            self.result.notes.append(f"namespaces are kept: {', '.join(sorted(self._made))}")
        elif self._made:
            if self._creator is not None:
                await self._attempt("objects", namespaces.empty(self._client, self._made, self._creator.used))
            await self._attempt("namespaces", self._delete_namespaces())
        for dependency in reversed(self._dependencies):
            await self._attempt("dependencies", dependency.teardown())
        await self._attempt("check", self._look_for_leftovers())
        clean = not self.result.leftovers and len(self.result.errors) == errors_before
        await self._attempt("lease", self._heartbeat.stop(clean=clean))

    async def _attempt(self, what: str, work: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(_TEARDOWN_SECONDS + self._scenario.namespaces.delete_seconds):
                await work
        except (errors.SimgpuError, TimeoutError, TemplateError) as error:
            self.result.errors.append(f"teardown of {what}: {str(error) or 'not finished in time'}")

    async def _delete_namespaces(self) -> None:
        seconds = self._scenario.namespaces.delete_seconds
        left = await namespaces.delete(self._client, self.run_id, seconds=seconds)
        self.result.leftovers += [f"Namespace {name}" for name in left]

    async def _delete_scattered(self, creator: Creator) -> None:
        """Delete objects outside of the run's own namespaces, and wait until they are gone."""
        listed = list(creator.scattered)

        async def delete(index: int) -> None:
            resource, space, name = listed[index]
            await self._client.delete(resource, name, namespace=space)

        await parallel.each(range(len(listed)), delete)

        async def gone() -> bool:
            left = []
            for resource, space, name in listed:
                if await self._client.find(resource, name, namespace=space) is not None:
                    left.append((resource, space, name))
            listed[:] = left
            return not left

        if not await concurrency.until(gone, seconds=_TEARDOWN_SECONDS):
            self.result.leftovers += [f"{resource.kind} {space}/{name}" for resource, space, name in listed]

    async def _look_for_leftovers(self) -> None:
        """Look for anything with the run's label, and wait a while until it is gone."""
        left: list[str] = []
        known = set(self.result.leftovers)

        async def nothing() -> bool:
            found = [str(item) for item in await abandoned.left_by(self._client, self.run_id) if not self._keeps(item)]
            left[:] = [line for line in found if line not in known]
            return not left

        if not await concurrency.until(nothing, seconds=_TEARDOWN_SECONDS):
            self.result.leftovers += left or ["unknown: the API server does not answer"]

    def _keeps(self, trace: Trace) -> bool:
        """Return whether an object is to stay: where namespaces are kept, so is what the phases created."""
        if self._scenario.namespaces.delete:
            return False
        if not trace.namespace and trace.resource.kind != resources.NAMESPACES.kind:
            scattered = self._creator.scattered if self._creator is not None else {}
            return (trace.resource.kind, trace.name) in {(resource.kind, name) for resource, _, name in scattered}
        return (trace.namespace or trace.name) in self._census.spaces


def _more(names: list[str]) -> str:
    return f" and {len(names)} more" if names else ""


def _listed(scenario: Scenario) -> list[str]:
    """Return names of namespaces that phases name themselves."""
    found = [
        space
        for step in scenario.steps
        for phase in step.phases
        for space in phase.namespaces
        if isinstance(space, str) and space
    ]
    return list(dict.fromkeys(found))
