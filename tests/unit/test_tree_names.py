"""Names in the tree: a newcomer who searches for a class finds one, and for a module its tests."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "simgpu"
OTHERS = (
    "tree",
    "chart",
    "docs",
    "dockerfile",
    "examples",
    "fidelity",
    "native",
    "soak",
    "dra",
    "nvml",
    "smi",
    "inputs",
    "levels",
    "young",
)  # what else is tested


def test_no_two_public_classes_have_the_same_name() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_files_of_tests_are_named_after_what_they_test() -> None:
    """After a module or package, and then perhaps after an aspect of it."""
    subjects = {
        path.stem
        for folder in (SOURCE, ROOT / "deploy", ROOT / "dev", ROOT / "tests" / "fixtures")
        for path in folder.rglob("*.py")
    }
    subjects |= {path.name for path in SOURCE.iterdir()} | set(OTHERS)
    for path in sorted((ROOT / "tests").glob("*/test_*.py")):
        words = path.stem.split("_")[1:]
        assert any("_".join(words[:count]) in subjects for count in range(1, len(words) + 1)), path.name
