"""Where the programs for pods come from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from simgpu import errors
from simgpu.app import running
from simgpu.page import native


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree in which nothing is built yet."""
    monkeypatch.setattr(native, "BUILT", tmp_path / "built")
    monkeypatch.setattr(native, "SOURCES", tmp_path / "native")
    monkeypatch.setattr(native, "LAYOUT", tmp_path / "layout.py")
    (tmp_path / "layout.py").touch()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "build.py").touch()
    return tmp_path


def test_in_a_source_tree_they_are_built_when_first_needed(clone: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = ".PHONY: native\nnative:\n\t@mkdir -p built/x86_64\n\t@touch built/x86_64/nvidia-smi\n\t@echo made\n"
    (clone / "Makefile").write_text(recipe)
    assert native.tool("x86_64") == clone / "built" / "x86_64" / "nvidia-smi"
    printed = capfd.readouterr()
    assert "made" in printed.err
    assert printed.out == ""  # which belongs to the command that is run
    native.tool("x86_64")
    assert capfd.readouterr().err == ""


def test_a_source_that_has_changed_is_built_before_it_is_used(clone: Path) -> None:
    built = clone / "built" / "x86_64"
    built.mkdir(parents=True)
    (built / "nvidia-smi").write_text("old")
    (clone / "built" / "digest").touch()
    recipe = ".PHONY: native\nnative:\n\t@echo new > built/x86_64/nvidia-smi\n\t@touch built/digest\n"
    (clone / "Makefile").write_text(recipe)
    os.utime(clone / "native" / "build.py", (0, 0))
    os.utime(native.LAYOUT, (0, 0))
    assert native.tool("x86_64").read_text() == "old"
    changed = clone / "native" / "smi.c"
    changed.touch()
    os.utime(clone / "built" / "digest", (1, 1))
    assert native.tool("x86_64").read_text() == "new\n"


def test_what_cannot_be_built_is_an_error_with_a_way_out(clone: Path) -> None:
    (clone / "Makefile").write_text(".PHONY: native\nnative:\n\t@false\n")
    with pytest.raises(errors.SimgpuError, match="make native"):
        native.tool("x86_64")
    (clone / "native" / "build.py").unlink()
    with pytest.raises(errors.SimgpuError, match="reinstall the package"):
        native.tool("x86_64")


def test_an_unknown_processor_is_answered_with_those_there_are() -> None:
    with pytest.raises(errors.InputError, match="x86_64 and aarch64, not for sparc"):
        native.library("sparc")


async def test_a_run_has_them_built_before_it_shows_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards that nobody moves on while a compiler runs would be lost ones."""
    events: list[str] = []

    def build() -> None:
        events.append("built")
        raise errors.SimgpuError("enough")

    monkeypatch.setattr(native, "ensure", build)
    monkeypatch.setattr(running, "Box", lambda *_arguments, **_settings: events.append("shown"))
    with pytest.raises(errors.SimgpuError, match="enough"):
        await running.run_command(running.RunSettings(["true"], [], "host"))
    assert events == ["built"]
