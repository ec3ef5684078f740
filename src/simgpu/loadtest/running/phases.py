"""Phases: how many replicas of a bundle there should be, and the actions that bring that about.

A run remembers how many of each object it has. More are created, surplus ones deleted with the last first, and an
unchanged number means that all are rendered and patched again.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from simgpu import errors
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.running.objects import Creator, TemplateSource
from simgpu.loadtest.running.tuning import Perform, Tuning
from simgpu.loadtest.scenario.model import ObjectTemplate, Scenario, ScenarioPhase

MAX_ERRORS = 10  # of a phase, in its report


class PhaseResult(msgspec.Struct):
    """What became of a phase's actions."""

    done: int = 0
    total: int = 0
    failed: int = 0
    errors: list[str] = []


class Phases:
    """The objects that a run's phases have made."""

    def __init__(self, scenario: Scenario, creator: Creator, spaces: Sequence[str], chance: random.Random) -> None:
        self._scenario, self._creator, self._spaces, self._chance = scenario, creator, spaces, chance
        self._tuning = Tuning(chance)
        self._replicas: dict[tuple[str, str, tuple[tuple[str, str], ...]], int] = {}
        self._sources: dict[int, TemplateSource] = {}
        self.active: list[PhaseResult] = []

    async def run(self, phase: ScenarioPhase) -> PhaseResult:
        """Bring about the replicas of a phase."""
        result = PhaseResult()
        actions = self._actions(phase, result)
        result.total = len(actions)
        self.active.append(result)
        try:
            await self._tuning.perform(actions, self._scenario.tuning[phase.tuning])
        finally:
            self.active.remove(result)
        return result

    def namespace(self, space: str | int) -> str:
        """Return the name of a namespace of the run by its number."""
        return self._spaces[space - 1] if isinstance(space, int) else space

    def _actions(self, phase: ScenarioPhase, result: PhaseResult) -> list[Perform]:
        found: list[Perform] = []
        for space in phase.namespaces:
            name = self.namespace(space)
            keys = [self._key(item, name) for item in phase.objects]
            counts = {self._replicas.get(key, 0) for key in keys}
            if len(counts) > 1:
                result.failed += 1
                result.errors.append(f"{phase.path}: objects of the bundle have different numbers in {name}")
                continue
            [before] = counts
            for key in keys:
                self._replicas[key] = phase.replicas
            found += self._changes(phase, name, before, result)
        return found

    def _changes(self, phase: ScenarioPhase, namespace: str, before: int, result: PhaseResult) -> list[Perform]:
        wanted = phase.replicas
        if wanted > before:
            verb, numbers = self._create, range(before, wanted)
        elif wanted < before:
            verb, numbers = self._delete, range(before - 1, wanted - 1, -1)
        else:
            verb, numbers = self._patch, range(wanted)
        return [functools.partial(self._guarded, verb, phase, namespace, number, result) for number in numbers]

    def _key(self, item: ObjectTemplate, namespace: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        return namespace, item.basename, tuple(self._source(item).identities)

    def identities(self, item: ObjectTemplate) -> list[tuple[str, str]]:
        """Return apiVersion and kind of the objects of a template."""
        return self._source(item).identities

    def _source(self, item: ObjectTemplate) -> TemplateSource:
        found = self._sources.get(id(item))
        if found is None:
            found = self._sources[id(item)] = TemplateSource(item, self._scenario.variables, self._chance)
        return found

    async def _guarded(self, verb: Any, phase: ScenarioPhase, namespace: str, index: int, result: PhaseResult) -> None:
        """Do something for one bundle; an error skips the rest of this bundle only."""
        try:
            await verb(phase, namespace, index)
        except (errors.SimgpuError, TemplateError) as error:
            result.failed += 1
            if len(result.errors) < MAX_ERRORS:
                result.errors.append(f"{namespace or 'cluster'}, index {index}: {error}")
        result.done += 1

    async def _create(self, phase: ScenarioPhase, namespace: str, index: int) -> None:
        for item in phase.objects:
            for body in self._source(item).bodies(index, namespace):
                await self._creator.create(body, namespace)

    async def _patch(self, phase: ScenarioPhase, namespace: str, index: int) -> None:
        for item in phase.objects:
            for body in self._source(item).bodies(index, namespace):
                await self._creator.patch(body, namespace)

    async def _delete(self, phase: ScenarioPhase, namespace: str, index: int) -> None:
        for item in reversed(phase.objects):
            for identity in reversed(self._source(item).identities):
                await self._creator.delete(identity, f"{item.basename}-{index}", namespace)


def summary(results: Mapping[str, PhaseResult]) -> list[str]:
    """Return the errors of phases, for the report."""
    found = []
    for path, result in results.items():
        if result.failed:
            found += [f"{path}: {result.failed} of {max(result.total, 1)} actions failed", *result.errors]
    return found
