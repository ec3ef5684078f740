"""Pictures of `simgpu simulate` that need a library which takes seconds to load."""

from __future__ import annotations

from pathlib import Path

from simgpu.cli import main


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    load, picture = tmp_path / "load.yaml", tmp_path / "load.png"
    load.write_text("phases: [{seconds: 2, shape: idle}, {seconds: 4, name: work, shape: matmul-bf16, fb_mib: 5000}]")
    assert main.run(["simulate", "--profile", str(load), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
