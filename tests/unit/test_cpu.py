"""Processor time of containers, from trees of cgroups as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.node import cpu

UID = "0f5c2a6e-9b1d-4c55-8f0e-0a4f1b2c3d4e"
ID = "3b" * 32
OTHER = "4c" * 32
SLICE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


def version_one(root: Path, container: str, nanoseconds: int) -> None:
    folder = root / "cpuacct" / "machine" / "kubepods" / "besteffort" / f"pod{UID}" / container
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpuacct.usage").write_text(f"{nanoseconds}\n")


def version_two(root: Path, container: str, nanoseconds: int) -> None:
    (root / "cgroup.controllers").touch()
    folder = root / SLICE / f"cri-containerd-{container}.scope"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(f"nr_periods 0\nusage_usec {nanoseconds // 1000}\nuser_usec 1\n")


@pytest.mark.parametrize("write", [version_one, version_two])
def test_cores_are_what_was_used_since_the_last_look(tmp_path: Path, write: object) -> None:
    assert callable(write)
    write(tmp_path, OTHER, 99 * 10**9)
    write(tmp_path, ID, 5 * 10**9)
    meter = cpu.Meter(tmp_path)
    assert meter.cores(UID, ID, 10.0) == 0
    write(tmp_path, ID, 6 * 10**9)
    assert meter.cores(UID, ID, 12.0) == pytest.approx(0.5)
    assert meter.cores(UID, ID, 13.0) == 0


def test_a_container_that_is_not_there_uses_nothing(tmp_path: Path) -> None:
    meter = cpu.Meter(tmp_path)
    assert meter.cores(UID, ID, 1.0) == 0
    assert meter.cores(UID, "", 1.0) == 0
    version_one(tmp_path, ID, 10**9)
    meter = cpu.Meter(tmp_path)
    assert meter.cores("another", ID, 1.0) == 0


def test_a_container_that_ends_and_one_that_restarts_are_no_trouble(tmp_path: Path) -> None:
    version_one(tmp_path, ID, 10**9)
    meter = cpu.Meter(tmp_path)
    meter.cores(UID, ID, 1.0)
    usage = next(tmp_path.rglob("cpuacct.usage"))
    usage.unlink()
    assert meter.cores(UID, ID, 2.0) == 0
    usage.write_text("500\n")
    assert meter.cores(UID, ID, 3.0) == 0
    meter.keep(set())
    assert meter.cores(UID, ID, 4.0) == 0


def test_a_container_that_is_not_there_is_looked_for_less_and_less_often(tmp_path: Path) -> None:
    version_one(tmp_path, OTHER, 0)
    meter = cpu.Meter(tmp_path)
    for now in (0.0, 1.0, 3.0):  # due again at 7
        assert meter.cores(UID, ID, now) == 0
    version_one(tmp_path, ID, 10**9)
    assert meter.cores(UID, ID, 6.0) == 0
    version_one(tmp_path, ID, 2 * 10**9)
    assert meter.cores(UID, ID, 6.5) == 0
    assert meter.cores(UID, ID, 7.0) == 0
    version_one(tmp_path, ID, 3 * 10**9)
    assert meter.cores(UID, ID, 8.0) == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["usage_usec\n", "usage_usec x\n", f"usage_usec {'9' * 4000}\n", ""])
def test_a_time_that_is_none_counts_as_no_use(tmp_path: Path, text: str) -> None:
    version_two(tmp_path, ID, 1000)
    meter = cpu.Meter(tmp_path)
    meter.cores(UID, ID, 1.0)
    (tmp_path / SLICE / f"cri-containerd-{ID}.scope" / "cpu.stat").write_text(text)
    assert meter.cores(UID, ID, 2.0) == 0.0
