"""What a scenario consists of, after rendering and checking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class NamespaceSettings(msgspec.Struct, frozen=True):
    """Namespaces that a run makes: `<prefix>-1` to `<prefix>-<number>`."""

    number: int = 1
    prefix: str = ""  # a random one for each run if empty
    delete: bool = True  # at the end of the run
    existing: bool = False  # namespaces of these names may exist already, and are kept
    delete_seconds: float = 600.0


class DependencyCall(msgspec.Struct, frozen=True):
    """Something that has to be set up before the steps."""

    path: str  # field path
    name: str
    method: str
    params: dict[str, Any] = {}
    seconds: float = 0.0  # for the whole set-up; 0: no limit beyond its own


class TuningSet(msgspec.Struct, frozen=True):
    """How fast objects are created, changed and deleted."""

    name: str
    kind: str
    settings: dict[str, float]


class ObjectTemplate(msgspec.Struct, frozen=True):
    """Objects `<basename>-<index>` from one template file."""

    path: str  # field path
    basename: str
    file: Path
    fill: dict[str, Any] = {}


class ScenarioPhase(msgspec.Struct, frozen=True):
    """How many replicas of a bundle of objects there should be in each namespace."""

    path: str
    namespaces: tuple[str | int, ...]  # numbers are of the run's own; an empty name is the cluster scope
    replicas: int
    tuning: str
    objects: tuple[ObjectTemplate, ...]


class MeasurementCall(msgspec.Struct, frozen=True):
    """An action of a measurement."""

    path: str
    method: str
    identifier: str
    params: dict[str, Any]


class ScenarioStep(msgspec.Struct, frozen=True):
    """Phases or measurements that run side by side."""

    path: str
    name: str
    phases: tuple[ScenarioPhase, ...] = ()
    measurements: tuple[MeasurementCall, ...] = ()


class Scenario(msgspec.Struct, frozen=True):
    """A whole load test."""

    name: str
    file: Path
    identifier: str
    namespaces: NamespaceSettings
    dependencies: tuple[DependencyCall, ...]
    tuning: dict[str, TuningSet]
    steps: tuple[ScenarioStep, ...]
    variables: dict[str, Any]
    document: dict[str, Any]  # as rendered, for the report
    notes: tuple[str, ...] = ()  # for the user
