"""Many requests at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import simgpu
from simgpu.kube import errors, parallel


async def test_every_item_has_its_turn() -> None:
    seen: list[int] = []

    async def work(item: int) -> None:
        seen.append(item)

    await parallel.each(range(100), work, in_flight=3)
    assert sorted(seen) == list(range(100))


async def test_the_first_failure_is_raised_by_itself_and_errors_of_the_api_before_others() -> None:
    async def work(item: int) -> None:
        raise errors.ConnectError("refused") if item else ValueError(item)

    with pytest.raises(errors.ConnectError, match="refused"):
        await parallel.each(range(4), work)


def raising_in_groups(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that raise within `except*`, where before Python 3.11.4 a group would be raised."""
    for group in (node for node in ast.walk(tree) if isinstance(node, ast.TryStar)):
        for handler in group.handlers:
            yield from (node.lineno for node in ast.walk(handler) if isinstance(node, ast.Raise))


def test_no_error_becomes_a_group_on_older_pythons() -> None:
    assert list(raising_in_groups(ast.parse("try: x\nexcept* E: raise F"))) == [2]
    root = Path(simgpu.__file__).parent
    sources = ((path, path.read_text()) for path in sorted(root.rglob("*.py")))
    found = [
        f"{path.relative_to(root)}:{line}"
        for path, text in sources
        if "except*" in text
        for line in raising_in_groups(ast.parse(text))
    ]
    assert found == []
