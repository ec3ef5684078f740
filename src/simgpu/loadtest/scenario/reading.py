"""Reads the document of a scenario into its model, and reports all mistakes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from simgpu import errors
from simgpu.loadtest.scenario import durations, fields
from simgpu.loadtest.scenario.fields import Problems, Section
from simgpu.loadtest.scenario.files import Files
from simgpu.loadtest.scenario.model import (
    DependencyCall,
    MeasurementCall,
    NamespaceSettings,
    ObjectTemplate,
    ScenarioPhase,
    ScenarioStep,
    TuningSet,
)

MAX_NAMESPACES = 1000
MAX_REPLICAS = 1_000_000
MAX_STEPS = 1000

Parsers = Mapping[str, Callable[[Any], Any]]  # by parameter


CheckDependency = Callable[[DependencyCall, Mapping[str, Any], Problems], None]


def _nothing_to_check(_call: DependencyCall, _variables: Mapping[str, Any], _problems: Problems) -> None:
    pass


class Methods(msgspec.Struct, frozen=True):
    """The dependencies and measurements that exist, with parsers of their parameters.

    `aliases` are names by which `dependencyConfigs` means a method, `required` the parameters that an action of a
    measurement needs. `check_dependency` reports mistakes that no parameter has alone.
    """

    dependencies: Mapping[str, Parsers]
    measurements: Mapping[str, Parsers]
    aliases: Mapping[str, str] = {}
    required: Mapping[str, Mapping[str, tuple[str, ...]]] = {}  # by method, by action
    check_dependency: CheckDependency = _nothing_to_check


_TUNING: dict[str, dict[str, Callable[[Any], float]]] = {
    "qpsLoad": {"qps": fields.positive},
    "randomizedLoad": {"averageQps": fields.positive},
    "steppedLoad": {"burstSize": fields.count(1, MAX_REPLICAS), "stepDelay": durations.parse},
    "timeLimitedLoad": {"timeLimit": durations.parse},
    "randomizedTimeLimitedLoad": {"timeLimit": durations.parse},
    "parallelismLimitedLoad": {"parallelismLimit": fields.count(1, 10_000)},
    "globalQPSLoad": {"qps": fields.positive, "burst": fields.count(1, MAX_REPLICAS)},
    "poissonLoad": {"expectedActionsPerSecond": fields.positive},
}


def namespaces(top: Section) -> NamespaceSettings:
    """Read `namespace`, or its older form `automanagedNamespaces`."""
    legacy = top.take("automanagedNamespaces", fields.count(0, MAX_NAMESPACES), 1)
    section = top.section("namespace")
    section.reject("deleteStaleNamespaces", "is not supported: a run deletes only what it made")
    section.reject("enablePodSecurity", "is not supported")
    found = NamespaceSettings(
        number=section.take("number", fields.count(0, MAX_NAMESPACES), legacy),
        prefix=section.take("prefix", fields.name, ""),
        delete=section.take("deleteAutomanagedNamespaces", fields.flag, default=True),
        existing=section.take("enableExistingNamespaces", fields.flag, default=False),
        delete_seconds=section.take("deleteNamespaceTimeout", durations.parse, 600.0),
    )
    section.finish()
    return found


def dependencies(top: Section, methods: Methods) -> tuple[DependencyCall, ...]:
    """Read `dependencies`, and `dependencyConfigs`, which names methods by other names."""
    found = []
    for section in top.sections("dependencyConfigs"):
        name = section.require("name", fields.text, "")
        if name and name not in methods.aliases:
            section.problems.add(section.at("name"), f"{name!r}: must be one of {', '.join(methods.aliases)}")
        found.append(_dependency(section, name, methods.aliases.get(name, ""), methods))
    for section in top.sections("dependencies"):
        name = section.require("name", fields.text, "")
        method = section.require("method", fields.text, "")
        if method and method not in methods.dependencies:
            known = ", ".join(methods.dependencies)
            section.problems.add(section.at("method"), f"{errors.shown(method)}: must be one of {known}")
        found.append(_dependency(section, name, method, methods))
    return tuple(found)


def _dependency(section: Section, name: str, method: str, methods: Methods) -> DependencyCall:
    call = DependencyCall(
        path=section.path,
        name=name,
        method=method,
        params=section.take("params", fields.mapping, {}),
        seconds=section.take("timeout", durations.parse, 0.0),
    )
    section.finish("name, method, params, timeout")
    parsers = methods.dependencies.get(method)
    if parsers is not None:
        params = Section(call.params, section.at("params"), section.problems)
        for param, parse in parsers.items():
            params.take(param, parse, None)
        params.finish(", ".join(parsers))
    return call


def tuning_sets(top: Section) -> dict[str, TuningSet]:
    """Read `tuningSets`."""
    found: dict[str, TuningSet] = {}
    for section in top.sections("tuningSets"):
        name = section.require("name", fields.text, "")
        section.raw("initialDelay")  # declared by ClusterLoader2, and never used
        kinds = [kind for kind in _TUNING if section.has(kind)]
        if len(kinds) != 1:
            section.problems.add(section.path, f"must have exactly one of {', '.join(_TUNING)}")
        settings: dict[str, float] = {}
        for kind in kinds:
            load = section.section(kind)
            settings = {key: load.require(key, parse, 1.0) for key, parse in _TUNING[kind].items()}
            load.finish(", ".join(_TUNING[kind]))
        if name in found:
            section.problems.add(section.at("name"), f"{name!r}: defined twice")
        found[name] = TuningSet(name, kinds[0] if kinds else "", settings)
        section.finish()
    return found


def steps(
    sections: list[Section], tuning: Mapping[str, TuningSet], methods: Methods, files: Files
) -> tuple[ScenarioStep, ...]:
    """Read steps whose modules have been replaced by their steps."""
    return tuple(_step(section, tuning, methods, files) for section in sections)


def _step(section: Section, tuning: Mapping[str, TuningSet], methods: Methods, files: Files) -> ScenarioStep:
    name = section.take("name", fields.text, "")
    if section.has("phases") == section.has("measurements"):
        section.problems.add(section.path, "must have exactly one of phases, measurements and module")
    phases = tuple(_phase(each, tuning, files) for each in section.sections("phases"))
    calls = [call for each in section.sections("measurements") for call in _measurements(each, methods)]
    section.finish("name, phases, measurements, module")
    return ScenarioStep(section.path, name, phases, tuple(calls))


def _phase(section: Section, tuning: Mapping[str, TuningSet], files: Files) -> ScenarioPhase:
    spaces = _namespaces_of(section)
    chosen = section.require("tuningSet", fields.text, "")
    if chosen and chosen not in tuning:
        known = ", ".join(tuning) or "none"
        section.problems.add(section.at("tuningSet"), f"{chosen!r}: not declared; tuning sets are: {known}")
    phase = ScenarioPhase(
        path=section.path,
        namespaces=spaces,
        replicas=section.require("replicasPerNamespace", fields.count(0, MAX_REPLICAS), 0),
        tuning=chosen,
        objects=tuple(_object(each, files) for each in section.sections("objectBundle")),
    )
    if not phase.objects:
        section.problems.add(section.at("objectBundle"), "must have at least one object")
    section.finish("namespaceRange, namespaceList, replicasPerNamespace, tuningSet, objectBundle")
    return phase


def _namespaces_of(section: Section) -> tuple[str | int, ...]:
    listed = section.items("namespaceList")
    if not section.has("namespaceRange"):
        return tuple(str(name) for _, name in listed) or ("",)
    if listed:
        section.problems.add(section.at("namespaceList"), "cannot be given together with namespaceRange")
    span = section.section("namespaceRange")
    low = span.take("min", fields.count(1, MAX_NAMESPACES), 1)
    high = span.take("max", fields.count(0, MAX_NAMESPACES), low)
    base = span.take("basename", fields.name, "")
    span.finish("min, max, basename")
    if high < low - 1:
        span.problems.add(span.at("max"), f"{high}: must not be below min ({low})")
    return tuple(f"{base}-{number}" if base else number for number in range(low, high + 1))


def _object(section: Section, files: Files) -> ObjectTemplate:
    section.reject("listUnknownObjectOptions", "is not supported: a run deletes only what it made")
    given = section.require("objectTemplatePath", fields.text, "")
    found = files.find(given) if given else None
    if given and found is None:
        section.problems.add(section.at("objectTemplatePath"), f"{given}: no such file in {files.folder}")
    made = ObjectTemplate(
        path=section.path,
        basename=section.require("basename", fields.name, "object"),
        file=found or files.folder / "missing",
        fill=section.take("templateFillMap", fields.mapping, {}),
    )
    section.finish("basename, objectTemplatePath, templateFillMap")
    return made


def _measurements(section: Section, methods: Methods) -> list[MeasurementCall]:
    """Read one measurement; `instances` is a list of identifiers with parameters that are added to its own."""
    method = section.require("method", fields.text, "")
    shared: dict[str, Any] = section.take("params", fields.mapping, dict[str, Any]())
    if section.has("instances"):
        calls = []
        for each in section.sections("instances"):
            identifier = each.require("identifier", fields.text, "")
            params = {**shared, **each.take("params", fields.mapping, dict[str, Any]())}
            each.finish()
            calls.append(MeasurementCall(each.path, method, identifier, params))
    else:
        identifier = section.require("identifier", fields.text, "")
        calls = [MeasurementCall(section.path, method, identifier, shared)]
    section.finish("identifier, method, params, instances")
    if method and method not in methods.measurements:
        known = ", ".join(sorted(methods.measurements))
        section.problems.add(section.at("method"), f"{errors.shown(method)}: not supported; supported are: {known}")
    else:
        for call in calls:
            _check_params(call, methods, section.problems)
    return calls


def _check_params(call: MeasurementCall, methods: Methods, problems: Problems) -> None:
    """Check the parameters that a measurement reads; ClusterLoader2 ignores others, and so do we."""
    required = methods.required.get(call.method, {}).get(str(call.params.get("action")), ())
    for param, parse in methods.measurements.get(call.method, {}).items():
        value = call.params.get(param)
        if value is None or (param in required and value == ""):
            if param in {"action", *required}:
                problems.add(f"{call.path}.params.{param}", "is missing")
            continue
        try:
            parse(value)
        except ValueError as error:
            problems.add(f"{call.path}.params.{param}", f"{errors.shown(value)}: {error}")
