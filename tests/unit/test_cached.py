"""The names of what is built once, and kept in the cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.image import cached


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Go command that says of itself what is in a file."""
    about, program = tmp_path / "about", tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" = env ] && cat "{about}"\n')
    program.chmod(0o755)
    about.write_text("go1.26.3\nlinux\namd64\ngcc\n")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return about


@pytest.fixture
def module(tmp_path: Path) -> Path:
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "about"])
def test_what_go_builds_has_another_name_if_an_input_or_go_is_another(name: str, go: Path, module: Path) -> None:
    before = cached.go_key(module, "-trimpath", "a")
    assert cached.go_key(module, "-trimpath", "a") == before
    (go.parent / name).write_text("other")
    assert cached.go_key(module, "-trimpath", "a") != before


def test_what_go_builds_has_another_name_with_other_settings(go: Path, module: Path) -> None:
    assert go.exists()
    keys = {cached.go_key(module, *settings) for settings in ((), ("a",), ("a", "b"), ("ab",), ("b", "a"))}
    assert len(keys) == 5
