"""Loads a scenario: renders its file, inserts modules, reads it, and checks the templates of its objects."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from simgpu import errors, yaml_text
from simgpu.loadtest.gotemplate import functions
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.executing import Library
from simgpu.loadtest.gotemplate.rendering import Template
from simgpu.loadtest.scenario import fields, files, reading
from simgpu.loadtest.scenario.fields import Problems, Section
from simgpu.loadtest.scenario.files import Files
from simgpu.loadtest.scenario.model import ObjectTemplate, Scenario, ScenarioStep
from simgpu.loadtest.scenario.reading import Methods

_MAX_MODULE_DEPTH = 20
_STARTING = ("start", "reset")  # actions of measurements


class LoadOptions(msgspec.Struct, frozen=True):
    """What the command line adds to a scenario."""

    identifier: str = ""
    nodes: int | None = None
    seed: int | None = None
    note: str = ""


def load(path: Path, variables: Mapping[str, Any], methods: Methods, options: LoadOptions | None = None) -> Scenario:
    """Load a scenario; ScenarioError has all of its mistakes."""
    options = options or LoadOptions()
    problems = Problems(str(path))
    beside = Files(path)
    library = functions.library(beside.folders, random.Random(options.seed))
    document = _render_document(path, variables, library, problems)
    top = Section(document, "", problems)
    name = top.require("name", fields.text, "test")
    if "/" in name or len(name) > 100:
        problems.add("name", f"{errors.shown(name)}: must not contain '/', nor be longer than 100 characters")
    top.reject("chaosMonkey", "is not supported")
    spaces = reading.namespaces(top)
    needs = reading.dependencies(top, methods)
    for call in needs:
        methods.check_dependency(call, variables, problems)
    tuning = reading.tuning_sets(top)
    flattened = _flattened(top.sections("steps"), _Modules(beside, library, dict(variables), problems))
    if not flattened:
        problems.add("steps", "must have at least one step")
    if len(flattened) > reading.MAX_STEPS:
        problems.add("steps", f"{len(flattened)} with those of modules: at most {reading.MAX_STEPS}")
    steps = reading.steps(flattened, tuning, methods, beside)
    top.raw("overridePaths")
    top.finish()
    _check_namespaces(steps, spaces.number, problems)
    _check_templates(steps, variables, library, problems)
    _check_gathered(steps, methods, problems)
    problems.check()
    notes = tuple(filter(None, (options.note, *beside.notes)))
    return Scenario(
        name, path, options.identifier, spaces, needs, tuning, steps, dict(variables), document or {}, notes
    )


def _render_document(
    path: Path, variables: Mapping[str, Any], library: Library, problems: Problems, where: str = ""
) -> Any:
    try:
        documents = Template(files.read(path), library).documents(variables)
    except TemplateError as error:
        hint = "; --nodes sets Nodes" if "<nil> to float64" in str(error) and "Nodes" not in variables else ""
        problems.add(where, f"{error}{hint}")
        problems.check()
        return None
    if len(documents) > 1:
        problems.add(where, f"{path.name} has {len(documents)} documents; one is expected")
    return documents[0] if documents else None


class _Modules(msgspec.Struct, frozen=True):
    files: Files
    library: Library
    variables: dict[str, Any]
    problems: Problems


def _flattened(sections: list[Section], modules: _Modules, depth: int = 0) -> list[Section]:
    """Replace each step that names a module by the module's steps."""
    found: list[Section] = []
    for section in sections:
        if not section.has("module"):
            found.append(section)
            continue
        module = section.section("module")
        if section.has("phases") or section.has("measurements"):
            section.problems.add(section.path, "must have exactly one of phases, measurements and module")
        given = module.require("path", fields.text, "")
        params = module.take("params", fields.mapping, dict[str, Any]())
        module.finish("path, params")
        path = modules.files.find(given) if given else None
        if path is None:
            module.problems.add(module.at("path"), f"{given}: no such file in {modules.files.folder}")
        elif depth >= _MAX_MODULE_DEPTH:
            module.problems.add(module.at("path"), f"modules nested more than {_MAX_MODULE_DEPTH} levels deep")
        else:
            found += _module_steps(module, path, modules, params, depth)
    return found


def _module_steps(module: Section, path: Path, modules: _Modules, params: dict[str, Any], depth: int) -> list[Section]:
    variables = {**modules.variables, **params}
    document = _render_document(path, variables, modules.library, modules.problems, module.at("path"))
    inner = Section(document, f"{module.path}({path.name})", modules.problems)
    steps = inner.sections("steps")
    inner.finish("steps")
    return _flattened(steps, msgspec.structs.replace(modules, variables=variables), depth + 1)


def _check_namespaces(steps: tuple[ScenarioStep, ...], number: int, problems: Problems) -> None:
    for step in steps:
        for phase in step.phases:
            highest = max((space for space in phase.namespaces if isinstance(space, int)), default=0)
            if highest > number:
                problems.add(f"{phase.path}.namespaceRange.max", f"{highest}: the scenario has {number} namespaces")


def _check_gathered(steps: tuple[ScenarioStep, ...], methods: Methods, problems: Problems) -> None:
    """Report measurements that are gathered and were not started before, in the same step at the latest."""
    started: set[tuple[str, str]] = set()
    for step in steps:
        calls = [call for call in step.measurements if call.method in methods.measurements]
        started |= {(call.method, call.identifier) for call in calls if call.params.get("action") in _STARTING}
        for call in calls:
            if call.params.get("action") == "gather" and (call.method, call.identifier) not in started:
                what = f"{errors.shown(call.identifier)}: is gathered, but {call.method} was not started with it before"
                problems.add(f"{call.path}.identifier", what)


def _check_templates(
    steps: tuple[ScenarioStep, ...], variables: Mapping[str, Any], library: Library, problems: Problems
) -> None:
    """Render each template once, so that mistakes show before anything is created."""
    for step in steps:
        for phase in step.phases:
            for item in phase.objects:
                if not item.file.is_file():
                    continue
                where = f"{item.path}.objectTemplatePath"
                try:
                    identities(item.file)
                    objects = Template(files.read(item.file), library).documents(example(item, variables))
                except (TemplateError, ValueError) as error:
                    problems.add(where, f"{item.file.name}: {error}")
                    continue
                for problem in filter(None, map(problem_of, objects)):
                    problems.add(where, f"{item.file.name}: {problem}")


def example(item: ObjectTemplate, variables: Mapping[str, Any], *, index: int = 0, space: str = "ns") -> dict[str, Any]:
    """Return the variables of one object."""
    own = {"Name": f"{item.basename}-{index}", "Index": index, "BaseName": item.basename, "Namespace": space}
    return {**variables, **item.fill, **own}


def problem_of(body: Any) -> str:
    """Return what is wrong with an object of a template; nothing is wrong with an empty document."""
    if body is None:
        return ""
    if not isinstance(body, dict) or not all(isinstance(body.get(key), str) for key in ("apiVersion", "kind")):
        return "must be objects with apiVersion and kind"
    return "" if isinstance(body.get("metadata") or {}, dict) else "metadata: must be a mapping"


_PLACEHOLDER = "simgpu-action"


def identities(file: Path) -> list[tuple[str, str]]:
    """Return apiVersion and kind of the objects in a template, which must not depend on variables."""
    text = files.read(file)
    readings = [found for found in map(_literal_identities, _readings(text)) if found is not None]
    if not readings:
        raise ValueError("apiVersion and kind must be given without variables")
    found = max(readings, key=len)
    for identity in found:
        if found.count(identity) > 1:
            raise ValueError(f"two objects of kind {identity[1]}: a template has one of each kind")
    return found


def _readings(text: str) -> Iterator[list[Any]]:
    """Yield the documents of a template that is not rendered, by all ways in which they can be read."""
    without = "\n".join(_blanked(line) for line in text.split("\n"))
    for readable in (without, _with_placeholders(text)):  # the second reads objects in one line of flow style
        with contextlib.suppress(ValueError):
            yield yaml_text.parse_all(readable)
    yield [
        dict(re.findall(r"^(apiVersion|kind):[ \t]*[\"']?([\w./-]+)", part, re.MULTILINE))
        for part in re.split(r"^---\s*$", without, flags=re.MULTILINE)
    ]


def _with_placeholders(text: str) -> str:
    """Return a template with a placeholder for each action."""
    before, *parts = text.split("{{")
    return before + "".join(_PLACEHOLDER + part.partition("}}")[2] for part in parts)


def _blanked(line: str) -> str:
    """Return a line without what stands from its first action to its last."""
    start, end = line.find("{{"), line.rfind("}}")
    return line[:start] + line[end + 2 :] if 0 <= start < end else line


def _literal_identities(documents: list[Any]) -> list[tuple[str, str]] | None:
    """Return apiVersion and kind of each document; None if one of them is missing or has an action in it."""
    found = []
    for document in documents:
        if not isinstance(document, dict):
            continue
        version, kind = document.get("apiVersion"), document.get("kind")
        if not isinstance(version, str) or not isinstance(kind, str) or _PLACEHOLDER in version + kind:
            return None
        found.append((version, kind))
    return found
