"""What tests import: helpers of `tests/fixtures`, never another test, and no more of them than their level needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import levels

TESTS = levels.ROOT / "tests"
MODULES = sorted(TESTS.rglob("*.py"))
HELPERS = "tests.fixtures."
COLLECT = """
import sys, pytest
code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/unit"])
print("loaded", *(name for name in sys.modules if name.startswith("tests.fixtures.")))
sys.exit(code)
"""


def imported(path: Path) -> Iterator[str]:
    """Modules that a module imports, and names that could be modules, with their packages."""
    package = (*path.relative_to(levels.ROOT).parts[:-1],)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TESTS)))
def test_no_test_is_imported(path: Path) -> None:
    """Neither a module of a level's folder nor a conftest.py."""
    private = tuple(f"tests.{name}." for name in (*levels.ORDER, "conftest"))
    assert not [name for name in imported(path) if f"{name}.".startswith(private)]


def test_unit_tests_load_no_helpers_but_those_that_they_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=levels.ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    loaded = done.stdout.splitlines()[-1].split()[1:]
    named = {name for path in (TESTS / "unit").glob("*.py") for name in imported(path) if name.startswith(HELPERS)}
    assert loaded
    assert not [helper for helper in loaded if not any(f"{name}.".startswith(f"{helper}.") for name in named)]
