"""The vocabulary: every name of the interface stands once in the source, and is in the reference."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import simgpu
from simgpu import vocabulary

SOURCE = Path(simgpu.__file__).parent
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "vocabulary.py")
OURS = ("simgpu.dev/", "run.ai/", "nvidia.com/", "SIMGPU_")


def listed() -> set[str]:
    """Every text of the vocabulary that can mean nothing else: plain words and versions have other uses too."""
    constants = [value for name, value in vars(vocabulary).items() if name.isupper()]
    texts = {text for value in constants for text in ((value,) if isinstance(value, str) else value_texts(value))}
    return {text for text in texts if re.search(r"[/._-]", text) and not text[0].isdigit()}


def value_texts(value: object) -> Iterator[str]:
    if isinstance(value, tuple):
        yield from (item for item in value if isinstance(item, str))


def literals(tree: ast.Module) -> Iterator[str]:
    """Texts of a module but for docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_takes_names_of_the_interface_from_the_vocabulary(path: Path) -> None:
    written = set(literals(ast.parse(path.read_text())))
    assert sorted(text for text in written if text in listed() or text.startswith(OURS)) == []


def test_the_vocabulary_has_what_it_is_searched_for() -> None:
    assert {"nvidia.com/gpu", "simgpu.dev/gpus", "topology.yml", "SIMGPU_SOCKET", "gpu-operator"} <= listed()
    assert not {"topology", "pod", "app"} & listed()


def test_every_name_is_defined_once() -> None:
    names = [term.name for terms in vocabulary.TERMS.values() for term in terms]
    assert sorted(names) == sorted(set(names))


def test_manifests_have_no_keys_of_ours_that_the_vocabulary_has_not() -> None:
    found = {key for path in SOURCE.rglob("*.yaml") for key in re.findall(r"simgpu\.dev/[a-z-]+", path.read_text())}
    assert found
    assert found <= listed()
