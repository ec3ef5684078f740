"""What took how long the last time."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu import units
from simgpu.cluster import durations


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "simgpu"


def test_a_duration_is_recalled_until_there_is_a_newer_one() -> None:
    assert durations.recall("build") is None
    durations.remember("build", 261.04)
    durations.remember("up 3", 6.3)
    durations.remember("build", 250.0)
    assert (durations.recall("build"), durations.recall("up 3")) == (250.0, 6.3)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"build": "long"}', b"x" * 100_000, b'{"\xff": 1}', b"[" * 4000])
def test_a_damaged_record_is_forgotten(cache: Path, text: bytes) -> None:
    cache.mkdir()
    (cache / "durations.json").write_bytes(text)
    assert durations.recall("build") is None
    durations.remember("build", 1.0)
    assert durations.recall("build") == 1.0


def test_the_record_does_not_grow_without_end(cache: Path) -> None:
    for number in range(300):
        durations.remember(f"up {number}", 1.0)
    assert (cache / "durations.json").stat().st_size < 4096
    assert durations.recall("up 299") == 1.0


@pytest.mark.parametrize(("seconds", "text"), [(3, "10 s"), (44, "40 s"), (100, "2 min"), (290, "5 min")])
def test_estimates_are_rough(seconds: float, text: str) -> None:
    assert units.format_rough_seconds(seconds) == text
