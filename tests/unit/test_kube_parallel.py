"""Many requests at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import simgpu
from simgpu.errors import SimgpuError
from simgpu.kube import errors, parallel


async def test_every_item_has_its_turn() -> None:
    seen: list[int] = []

    async def work(item: int) -> None:
        seen.append(item)

    await parallel.each(range(100), work, in_flight=3)
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize(
    ("failures", "shown"),
    [
        ([SimgpuError("no GPUs"), errors.ConnectError("refused")], errors.ConnectError),
        ([SimgpuError("no GPUs"), errors.ConnectError("refused"), TypeError("a bug")], TypeError),
    ],
)
async def test_the_first_failure_is_raised_by_itself_bugs_before_errors_of_the_api_and_these_before_others(
    failures: list[Exception], shown: type[Exception]
) -> None:
    async def work(failure: Exception) -> None:
        raise failure

    with pytest.raises(shown):
        await parallel.each(failures, work)


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
