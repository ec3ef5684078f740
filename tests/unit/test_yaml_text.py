"""YAML from anybody is read or rejected: no text crashes a process, takes all memory or never ends."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import errors, yaml_text

TOO_DEEP = "nested more than 64 levels deep"
TOO_MANY = "more than 250000 values"
TOO_LONG = "more than 4 MiB of text"


def bomb(first: str, line: str, levels: int = 9) -> str:
    """Each line refers to the one before ten times."""
    lines = [f"a0: &a0 {first}"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} {line.replace('ALIASES', aliases)}")
    return "\n".join(lines) + "\n"


CHAIN = "a0: &a0 x\n" + "".join(f"a{n}: &a{n} {'[' * 50}*a{n - 1}{']' * 50}\n" for n in range(1, 80))
MERGES, LISTS = bomb("{x: 1}", "{<<: [ALIASES]}"), bomb("[x]", "[ALIASES]")


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process that forks another for each text, with all readers loaded."""
    command = [sys.executable, "-m", "tests.fixtures.yaml_readers", str(tmp_path_factory.mktemp("readers"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("unhealthy:\n  " + "- " * 40_000 + "1", TOO_DEEP, id="lists"),
        pytest.param("[" * 30_000, TOO_DEEP, id="brackets"),
        pytest.param("[" * 5_000 + "]" * 5_000, TOO_DEEP, id="closed brackets"),
        pytest.param("{a: " * 30_000, TOO_DEEP, id="braces"),
        pytest.param("? " * 30_000, TOO_DEEP, id="keys"),
        pytest.param("\n".join(" " * level + "a:" for level in range(2_000)), TOO_DEEP, id="indentation"),
        pytest.param(CHAIN + "nodePools: {x: {gpuCount: *a79}}", TOO_DEEP, id="aliases in aliases"),
        pytest.param(MERGES, TOO_MANY, id="merge keys of merge keys"),
        pytest.param(LISTS + "nodePools: {x: {gpuCount: *a8}}", TOO_MANY, id="lists of lists"),
        pytest.param("a: &a [*a]", "alias of a value that contains it", id="a list within itself"),
        pytest.param(f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 10_000}]", TOO_LONG, id="a long text many times"),
        pytest.param(
            f"%TAG !e! tag:{'x' * 100_000}\n--- [{'!e!y z, ' * 5_000}]", "a tag of", id="a long tag many times"
        ),
        pytest.param("a: 1" + ":1" * 100_000, "a number or time of 200001 characters", id="hours of hours"),
        pytest.param(
            "".join(f"{(2**61 - 1) * key}: 1\n" for key in range(9, 60_000)), "a number", id="keys of one hash"
        ),
        pytest.param("<<: {}\n" * 100_000, "more than 64 merge keys in a mapping", id="many merge keys"),
    ],
)
def test_no_text_ends_a_process_or_keeps_it_busy(text: str, problem: str, readers: subprocess.Popen[str]) -> None:
    assert readers.stdin
    assert readers.stdout
    readers.stdin.write(f"{json.dumps(text)}\n")
    readers.stdin.flush()
    code, reports = json.loads(readers.stdout.readline())
    assert code == 0
    assert problem in reports["any"]
    for name, report in reports.items():
        assert report or name in {"published", "remembered"}  # these leave out views that somebody broke
        assert len(report) < 1000, name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x" * (4 << 20) + "x", "^larger than 4 MiB"),
        ("- \n" * 250_000, f"^{TOO_MANY}"),
        ("a: 0b" + "1" * 19, "a number or time of 21 characters; at most 20.* line 1, column 4"),
        ("a: 1" + ":1" * 400 + ".5", "a number or time of 803 characters; at most 64"),
        ("a: *b", "^not YAML: alias of an undefined anchor"),
        ("a: &a 1\nb: &a 2", "^not YAML: duplicate anchor.* line 2"),
        ("--- 1\n--- 2", "^not YAML: a second document begins here"),
        ("a: 1\nb: {c: 2,\n c: 3}", "^not YAML: duplicate key c.* line 3, column 2"),
        ("{a: 1, b: 2, a: 3}", "duplicate key a.* column 14"),
        ("!!int x", "^not YAML: "), ("!!int ''", "^not YAML: "), ("!!bool x", "^not YAML: "),
        ("!!timestamp x", "^not YAML: "), ("!!float [", "^not YAML: "), ("2024-13-45", "^not YAML: "),
        ("!!python/object:os.system {}", "^not YAML: could not determine a constructor"),
        ("a: \x07", "^not YAML: "), ("\ud800", "^not YAML: "), (b"\xff\xfe\xff", "^not YAML: "),
    ],
)  # fmt: skip
def test_what_is_rejected_is_reported_with_its_place(text: str | bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        yaml_text.parse(text)


def test_as_much_as_is_allowed_is_read() -> None:
    deep: Any = yaml_text.parse("[" * 64 + "]" * 64)
    for _ in range(63):
        [deep] = deep
    assert deep == []
    assert yaml_text.parse(f"- &a {'[' * 31}{']' * 31}\n- {'[' * 32}*a{']' * 32}")
    assert len(yaml_text.parse(f"a: &a [{'1, ' * 24_000}]\nb: [{'*a, ' * 9}]")["b"]) == 9
    assert len(yaml_text.parse("x" * (4 << 20))) == 4 << 20
    assert yaml_text.parse("- 18446744073709551615\n- 0xffffffffffffffff") == [2**64 - 1] * 2


def test_a_problem_is_reported_in_one_short_line() -> None:
    with pytest.raises(ValueError, match="duplicate key") as caught:
        yaml_text.parse(f"{'k' * 1000}: 1\n" * 2)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_anchors_and_merge_keys_mean_what_they_mean_to_others() -> None:
    text = "base: &base {a: 1, b: 2}\nnested: {x: &mid {<<: *base, a: 3}}\ntop: {<<: [*mid, {c: 4}], b: 5}\nsame: *base"
    assert yaml_text.parse(text) == yaml.safe_load(text)
    assert yaml_text.parse(text)["top"] == {"a": 3, "b": 5, "c": 4}


def test_a_key_may_stand_twice_where_that_is_allowed() -> None:
    assert yaml_text.parse("{a: 1, a: 2}", repeats=True) == {"a": 2}


def test_documents_are_read_one_by_one(tmp_path: Path) -> None:
    assert yaml_text.parse_all("a: &a 1\n---\nb: &a 2\n---\n") == [{"a": 1}, {"b": 2}, None]
    assert yaml_text.parse("") is None
    (tmp_path / "utf-16").write_bytes("a: ü".encode("utf-16"))
    assert yaml_text.parse_file(tmp_path / "utf-16") == {"a": "ü"}


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ValueError, match="larger than 4 MiB"):
        yaml_text.parse_file(Path("/dev/zero"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
    | st.dates() | st.datetimes(timezones=st.none() | st.just(datetime.UTC)) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(VALUES, st.booleans())
def test_what_others_write_is_read_as_they_read_it(value: Any, flow: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    assert yaml_text.parse(text) == yaml.safe_load(text)


PIECES = st.sampled_from(
    ["- ", "? ", ": ", "a: ", "a", "\n", "\n  ", "[", "]", "{", "}", ", ", "&a ", "*a ", "<<: ", "!!int ", "!!set ",
     "!!omap ", "!!bool ", "!!timestamp ", "!!binary ", "!x ", "'", '"', "|\n", ">\n", "#", "%TAG ! x\n", "---\n",
     "...\n", "1:2:3", "0x", "1e9", ".inf", ".nan", "~", "=", "2024-02-30", "@", "`", "\t", "\ufeff", "\x85"]
)  # fmt: skip


@given(st.text() | st.binary() | st.lists(PIECES, max_size=30).map("".join))
def test_any_text_is_read_or_rejected(text: str | bytes) -> None:
    problem = ""
    try:
        yaml_text.parse_all(text)
    except ValueError as error:
        problem = str(error)
    assert len(problem.splitlines()) <= 1
    assert len(problem) < 400


@settings(max_examples=25)
@given(st.recursive(st.text() | st.binary() | st.integers() | st.dates(), lambda inner: st.lists(inner, min_size=9)))
def test_a_value_in_a_message_is_short(value: Any) -> None:
    assert len(errors.shown(value)) < 130


def test_small_values_are_shown_as_they_are() -> None:
    for value in ("80 GB", 17, -1.5, None, True, ["a", 1], {"a": 1}):
        assert errors.shown(value) == repr(value)
