"""Templates render as Go's text/template renders them: the same bytes, or both fail."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.image import cached
from simgpu.loadtest.gotemplate import builtins, executing, functions
from simgpu.loadtest.gotemplate.errors import TemplateError
from tests.fixtures.scenarios import DATA

SOURCE = Path(__file__).parent.parent / "fixtures" / "gotemplate" / "main.go"
LIBRARY = functions.library([], random.Random(0))

Render = Callable[[str], tuple[str, str]]


@pytest.fixture(scope="module")
def go() -> Iterator[Render]:
    """What Go makes of a template: its output and its error."""
    if shutil.which("go") is None:
        pytest.skip("Go is needed to render templates with")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]

    def build(path: Path) -> None:
        subprocess.run(["go", "build", "-buildvcs=false", "-o", path, SOURCE], check=True, timeout=240)

    program = cached.made(f"gotemplate/{digest}", build)
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def render(template: str) -> tuple[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"template": template, "data": DATA}) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        return answer["output"], answer["error"]

    yield render
    process.communicate(timeout=20)


def ours(template: str) -> tuple[str, str]:
    try:
        pieces = executing.execute(executing.parse(template, LIBRARY), DATA, LIBRARY)
    except TemplateError as error:
        return "", str(error)
    return "".join(piece.text for piece in pieces), ""


def compare(go: Render, template: str) -> None:
    output, error = ours(template)
    expected, failed = go(template)
    if "not supported" not in error or failed:  # what we reject on purpose
        agree = (output, bool(error)) == ("" if failed else expected, bool(failed))
        assert agree, f"{template}\nGo: {expected!r} {failed!r}\nours: {output!r} {error!r}"


LITERALS = st.sampled_from(
    [
        "0",
        "1",
        "7",
        "-3",
        "2.5",
        "1e3",
        "0x1F",
        "017",
        "1_000",
        "'a'",
        '"text"',
        '"a\\tb\\u00e9"',
        "`raw`",
        "true",
        "nil",
    ]
)
FIELDS = st.sampled_from(
    [".", *(f".{name}" for name in DATA), ".Missing", ".Missing.more", ".Map.a.c", ".Map.a", "$.Name"]
)
VARIABLES = st.sampled_from(["$", "$x", "$y", "$x.a"])
SIMPLE = st.one_of(LITERALS, FIELDS, VARIABLES)
COMPARED = (
    "AddInt",
    "AddFloat",
    "MultiplyInt",
    "SubtractInt",
    "DivideInt",
    "DivideFloat",
    "Mod",
    "DefaultParam",
    "Loop",
)
NAMES = st.sampled_from([name for name in ("and", "or", *builtins.FUNCTIONS, *COMPARED) if name != "printf"])
FORMS = st.sampled_from(
    ['"%v"', '"%d %s"', '"%05.1f|%-4v|%q"', '"%x %t"', '"%%%v"', '"%+d"', '"%6v"', '"%e %g"', '"%"']
)


def calls(arguments: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    plain = st.builds(lambda name, words: " ".join([name, *words]), NAMES, st.lists(arguments, max_size=3))
    formatted = st.builds(
        lambda form, words: " ".join(["printf", form, *words]), FORMS, st.lists(arguments, max_size=3)
    )
    return st.one_of(plain, formatted)


ARGUMENTS = st.recursive(SIMPLE, lambda inner: calls(inner).map(lambda text: f"({text})"), max_leaves=4)
COMMANDS = st.one_of(ARGUMENTS, calls(ARGUMENTS))
PIPELINES = st.builds(lambda first, rest: " | ".join([first, *rest]), COMMANDS, st.lists(calls(SIMPLE), max_size=2))
OPEN, CLOSE = st.sampled_from(["{{", "{{ ", "{{- "]), st.sampled_from(["}}", " }}", " -}}"])
TEXTS = st.sampled_from(["text", " \n", "a: b\n", "  ", "{", "}", "-"])


def action(body: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda left, text, right: f"{left}{text}{right}", OPEN, body, CLOSE)


SETTING = st.builds(
    lambda name, sign, value: f"{name} {sign} {value}",
    st.sampled_from(["$x", "$y"]), st.sampled_from([":=", "="]), PIPELINES,
)  # fmt: skip
LEAVES = st.one_of(TEXTS, action(PIPELINES), action(SETTING), st.just("{{/* note */}}"), st.just("{{break}}"))
HEADS = st.one_of(
    PIPELINES.map(lambda text: f"if {text}"),
    PIPELINES.map(lambda text: f"with {text}"),
    st.builds(
        lambda names, value: f"range {names}{value}",
        st.sampled_from(["", "$x := ", "$x, $y := ", "$y = "]),
        st.one_of(st.sampled_from([".List", ".Map", ".None", ".Missing", "Loop 3", "2", ".Nodes", ".Name"]), PIPELINES),
    ),
)


def blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    bodies = st.lists(inner, max_size=3).map("".join)
    alternative = st.one_of(st.just(""), bodies.map(lambda text: f"{{{{else}}}}{text}"),
                            st.builds(lambda head, text: f"{{{{else {head}}}}}{text}", HEADS, bodies))  # fmt: skip
    return st.builds(lambda head, body, other: f"{head}{body}{other}{{{{end}}}}", action(HEADS), bodies, alternative)


TEMPLATES = st.lists(st.recursive(LEAVES, blocks, max_leaves=6), min_size=1, max_size=5).map("".join)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=TEMPLATES)
def test_generated_templates_render_as_go_renders_them(go: Render, body: str) -> None:
    template = "{{$x := 1}}{{$y := .Map}}" + body
    compare(go, template)


@pytest.mark.parametrize(
    "template",
    [
        "{{- /* trimmed */ -}} a {{- 3}} {{3 -}} b",
        "{{if and .On (gt .Nodes 2)}}yes{{else if .Off}}no{{end}}",
        "{{range $i, $v := .List}}{{if eq $i 1}}{{continue}}{{end}}{{$i}}={{$v}};{{end}}",
        "{{range .List}}{{break}}{{end}}{{range $k, $v := .Map}}{{$k}}{{end}}",
        "{{with $z := .Name}}{{$z}}{{end}}{{.Missing}}{{.List}}{{.Map}}{{.Big}}{{.Rate}}",
        "{{$n := DivideInt (MultiplyInt .Nodes 90) 100}}{{$n = AddInt $n 1}}{{$n}}",
        "{{DefaultParam .Missing 5}} {{DefaultParam .Nodes 5}} {{.Missing | DefaultParam 30000}}",
        '{{index .List 1}}{{index .Map "a" "c"}}{{slice .Name 1 2}}{{len .Name}}{{len .Map}}',
        '{{print 1 2 "a" 3 nil}}{{println 1 "b"}}{{printf "%d %d" 1}}{{printf "x" 1 true}}',
        '{{template "other"}}', "{{end}}", "{{if}}", "{{.Name", "{{nope 1}}", "{{$u}}", "{{.Name 1}}", "{{1 | 2}}",
        '{{"a\n"}}', "{{'ab'}}", "{{99999999999999999999}}", "{{1.2.3}}", "{{.Name.x}}", "{{len 3}}", "{{lt 1 2.0}}",
        "{{$x, $y := .List}}", "{{range .Rate}}{{end}}", "{{range $a, $b := 3}}{{end}}", "{{(.Map).b}}{{(print 1).x}}",
        '{{eq .Missing nil}}{{eq .Name "abc" 1}}{{eq .List .List}}', "{{break}}", "{{else}}", "{{:}}", "{{(1}}",
    ],
)  # fmt: skip
def test_templates_of_every_form_render_as_go_renders_them(go: Render, template: str) -> None:
    compare(go, template)
