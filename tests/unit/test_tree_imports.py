"""What tests import: helpers of `tests/fixtures`, never another test, and no more of them than their level needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import levels

TESTS = levels.ROOT / "tests"
MODULES = sorted(TESTS.rglob("*.py"))
HELPERS = "tests.fixtures."


def imported(path: Path) -> Iterator[str]:
    """Modules that a module imports or has as plugins, and names that could be modules, with their packages."""
    package = (*path.relative_to(levels.ROOT).parts[:-1],)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Assign) and "pytest_plugins" in ast.unparse(node.targets[0]):
            yield from (str(item.value) for item in ast.walk(node.value) if isinstance(item, ast.Constant))


def helper(name: str) -> Path | None:
    """The helper that a name is of, or is in."""
    path = TESTS / "fixtures" / f"{name.removeprefix(HELPERS).partition('.')[0]}.py"
    return path if name.startswith(HELPERS) and path.exists() else None


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_is_imported(path: Path) -> None:
    """Neither a module of a level's folder nor a conftest.py; but for its tests, `tests/fuzz` is a program."""
    private = tuple(f"tests.{name}." for name in (*levels.ORDER, "conftest") if name != "fuzz")
    found = [name for name in imported(path) if f"{name}.".startswith((*private, "tests.fuzz.test_"))]
    assert not found


def test_unit_tests_load_no_helpers_but_those_that_they_import() -> None:
    unit = set((TESTS / "unit").glob("*.py"))
    named = {name for path in unit for name in imported(path) if name.startswith(HELPERS)}
    seen, left = set[Path](), unit | {TESTS / "conftest.py", TESTS / "__init__.py", TESTS / "fixtures" / "__init__.py"}
    while left:
        seen |= left
        helpers = {path for item in left for name in imported(item) if (path := helper(name))}
        left = helpers - seen
    loaded = {path for path in seen if path.parent.name == "fixtures" and path.name != "__init__.py"}
    assert loaded
    assert loaded == {helper(name) for name in named}
