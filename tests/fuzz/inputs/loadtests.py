"""What load tests read: scenarios with their templates and modules, override files, and templates alone."""

from __future__ import annotations

import functools
import math
import random
from pathlib import Path
from typing import Any

from simgpu import errors
from simgpu.loadtest.gotemplate import executing, functions
from simgpu.loadtest.gotemplate.errors import TemplateError
from simgpu.loadtest.gotemplate.rendering import Template
from simgpu.loadtest.reports import comparison, page
from simgpu.loadtest.running import runner
from simgpu.loadtest.scenario import durations, kube_syntax, loading, variables
from simgpu.loadtest.scenario.fields import ScenarioError
from tests.fixtures import scenarios
from tests.fuzz.target import Target, encoded, files, scratch, text

_SEPARATOR = b"\n#===\n"
_NAMES = ("config.yaml", "pod.yaml", "module.yaml")
_MODULE = "steps:\n- module: {path: module.yaml, params: {A: 1}}\n"
_TEMPLATES = (
    "{{$x := DefaultParam .CL2_X 3}}{{range $i := IntRange 0 $x}}{{if eq $i 1}}a{{else if gt $i 2}}b{{end}}{{end}}",
    '{{with .Map}}{{.a.c | printf "%s-%d" 3}}{{else}}{{end}}{{- /* c */ -}}{{YamlQuote .Name 2}}',
    "{{AddInt .Nodes 3}} {{MultiplyFloat .Rate 2}} {{RandInt 5}} {{len .List}} {{index .List 0}} {{not .On}}",
)  # fmt: skip
_HEAD = '"scenario":"s","identifier":"i","config":"c","run":"r","server":"x","started":1,"pods":3,"startup":[[1,0.5]]'
_TIMED = '{"name":"Timed","content":{"create":{"Perc50":1500000,"Perc99":2e6},"count":3},"time":1}'
_LATENCY = (
    '{"name":"PodStartup","content":{"version":"1.0","dataItems":'
    '[{"data":{"Perc50":3,"Perc99":4.5},"unit":"ms","labels":{"Metric":"pod_startup"}}]},"time":1}'
)
_REPORTS = encoded([f'{{{_HEAD},"summaries":[{_TIMED},{_LATENCY}]}}', f"{{{_HEAD}}}"])


def _scenario(data: bytes) -> None:
    """A scenario with its template and its module loads, or all of its mistakes are reported."""
    folder = _folder()
    for name, part in zip(_NAMES, (data + _SEPARATOR * 2).split(_SEPARATOR), strict=False):
        (folder / name).write_bytes(part)
    try:
        found = loading.load(folder / _NAMES[0], _variables(), runner.METHODS, loading.LoadOptions(seed=1))
    except ScenarioError as error:
        assert len(str(error)) < 1 << 20
        str(error).encode()
        return
    assert found.steps


@functools.cache
def _folder() -> Path:
    made = scratch() / "scenario"
    made.mkdir()
    return made


@functools.cache
def _variables() -> dict[str, Any]:
    return variables.gather([], {}, 3)


def _overrides(data: bytes) -> None:
    """An override file has variables, or is refused; so is a variable of the environment."""
    path = scratch() / "overrides.yaml"
    path.write_bytes(data)
    try:
        variables.gather([path], {"CL2_X": text(data)}, 3)
    except ScenarioError as error:
        str(error).encode()


def _template(data: bytes) -> None:
    """A template renders within its bounds, or is refused with the line."""
    library = _library()
    try:
        nodes = executing.parse(text(data), library)
        pieces = executing.execute(nodes, scenarios.DATA, library)
        assert sum(len(piece.text) for piece in pieces) <= executing.MAX_OUTPUT
        Template(text(data), library).documents(scenarios.DATA)
    except TemplateError as error:
        str(error).encode()


@functools.cache
def _library() -> executing.Library:
    return functions.library([], random.Random(0))


def _duration(data: bytes) -> None:
    """A duration is a number of seconds, or refused."""
    try:
        assert durations.parse(text(data)) >= 0
    except ValueError as error:
        str(error).encode()


def _selector(data: bytes) -> None:
    """A label selector is accepted, also twice with a comma, or refused."""
    given = text(data)
    try:
        assert kube_syntax.label_selector(given) == given
    except ValueError as error:
        str(error).encode()
        return
    if given.strip():
        kube_syntax.label_selector(f"{given},{given}")


def _report(data: bytes) -> None:
    """A report is compared with itself, and each figure is a number that did not change, or it is refused."""
    path = _folder() / "report.json"
    path.write_bytes(data)
    try:
        found = comparison.read(path)
    except errors.InputError as error:
        str(error).encode()
        return
    compared = comparison.compare(found, found)
    page.render(found, compared, "before").encode()
    for figure in compared:
        assert math.isfinite(figure.before)
        assert figure.before == figure.after


TARGETS = (
    Target(
        "scenarios", _scenario,
        (
            *(_SEPARATOR.join(encoded([scenarios.GOOD + more, scenarios.POD, _MODULE])) for more in ("", _MODULE)),
            *files("src/simgpu/loadtest/scenarios/*/*config.yaml", "examples/15-loadtest/config.yaml"),
        ),
        tuple(runner.METHODS.measurements),
    ),
    Target("go-templates", _template, (*encoded(_TEMPLATES), *files("src/simgpu/loadtest/scenarios/*/*job.yaml"))),
    Target("override-files", _overrides, encoded(["CL2_A: 3\nNodes: 3\nb: [1, {c: d}]\n"])),
    Target("label-selectors", _selector, encoded(["a = b, c in (d, e), !f", "x.io/a != b,g > 5"]), max_length=256),
    Target("reports", _report, _REPORTS, ("dataItems", "labels", "data", "unit", "summaries", "content")),
    Target("durations", _duration, encoded(["1h30m", "500ms", "1.5s", "-3us"]), max_length=256),
)  # fmt: skip
