"""The folder that Run:ai's container toolkit reads."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.identities import identity, render
from simgpu.machines import profiles, users
from simgpu.machines.box import Box
from simgpu.machines.users import PodRef
from simgpu.node import runai
from simgpu.node.runai import Entry, Tree
from simgpu.topology import devices

H200 = models.load().models["h200"]
EVENTS = "proc/events"


class Folder:
    """A tree, and what is in it. Each look is a second later."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = Tree(root, {})
        self.now = 0.0

    def show(self, *entries: Entry) -> dict[str, str]:
        self.now += runai.SECONDS
        self.tree.show(lambda: entries, now=self.now)
        return self.files()

    def files(self) -> dict[str, str]:
        pods = self.root / "proc" / "pod"
        return {str(path.relative_to(pods)): path.read_text() for path in pods.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "runai")


def test_each_pod_has_files_for_each_gpu(folder: Folder) -> None:
    assert folder.show(Entry("u", 3, 40, 500), Entry("v", 3, 0, 250), Entry("u", 0, 7, 1)) == {
        "u/metrics/gpu/3/utilization.sm": "40", "u/metrics/gpu/3/memory.allocated": "500000000",
        "v/metrics/gpu/3/utilization.sm": "0", "v/metrics/gpu/3/memory.allocated": "250000000",
        "u/metrics/gpu/0/utilization.sm": "7", "u/metrics/gpu/0/memory.allocated": "1000000",
    }  # fmt: skip
    assert not list((folder.root / EVENTS).iterdir())


def test_everybody_may_read_it_whatever_the_umask(folder: Folder) -> None:
    before = os.umask(0o077)
    try:
        folder.show(Entry("u", 3, 40, 500))
    finally:
        os.umask(before)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in (folder.root, *folder.root.rglob("*"))}
    assert modes == {True: 0o755, False: 0o644}


def test_what_stays_is_not_touched_and_what_changes_is_replaced(folder: Folder) -> None:
    folder.show(Entry("u", 3, 40, 500))
    usage, memory = (folder.root / "proc/pod/u/metrics/gpu/3" / name for name in ("utilization.sm", "memory.allocated"))
    inodes = {path: path.stat().st_ino for path in (usage, memory, *usage.parents)}
    with usage.open() as reading:
        assert folder.show(Entry("u", 3, 41, 500))["u/metrics/gpu/3/utilization.sm"] == "41"
        assert reading.read() == "40"
    changed = {path for path, inode in inodes.items() if path.stat().st_ino != inode}
    assert changed == {usage}


def test_another_agent_goes_on_with_what_is_there(folder: Folder) -> None:
    folder.show(Entry("u", 3, 40, 500), Entry("v", 3, 40, 500))
    file = folder.root / "proc/pod/u/metrics/gpu/3/utilization.sm"
    inode = file.stat().st_ino
    again = Folder(folder.root)
    assert {path.partition("/")[0] for path in again.show(Entry("u", 3, 40, 500))} == {"u"}
    assert file.stat().st_ino == inode


def test_what_others_put_there_stays(folder: Folder) -> None:
    folder.show(Entry("u", 3, 40, 500), Entry("v", 3, 40, 500))
    others = [folder.root / name for name in ("other", "proc/pod/u/notes", "proc/pod/u/metrics/gpu/3/temperature")]
    for path in others:
        path.write_text("theirs")
    folder.show()
    assert all(path.read_text() == "theirs" for path in others)
    assert folder.files().keys() == {"u/notes", "u/metrics/gpu/3/temperature"}
    assert not (folder.root / "proc/pod/v").exists()


def test_it_is_written_once_in_a_second(folder: Folder) -> None:
    folder.show(Entry("u", 3, 40, 500))
    folder.tree.show(lambda: [Entry("u", 3, 99, 500)], now=folder.now + 0.5)
    assert folder.files()["u/metrics/gpu/3/utilization.sm"] == "40"
    folder.tree.show(lambda: [Entry("u", 3, 99, 500)], now=folder.now + 1.0)
    assert folder.files()["u/metrics/gpu/3/utilization.sm"] == "99"


def test_a_folder_that_cannot_be_written_is_told_once_and_tried_again(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    folder.root.write_text("a file")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            folder.now += runai.SECONDS
            folder.tree.show(lambda: [Entry("u", 3, 40, 500)], now=folder.now)
    assert len(caplog.records) == 1
    assert str(folder.root) in caplog.text
    folder.root.unlink()
    assert len(folder.show(Entry("u", 3, 40, 500))) == 2


def link(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("made", [os.mkfifo, link, lambda path: path.write_bytes(b"4" * 100)])
def test_whatever_lies_where_a_file_should_be_is_replaced(folder: Folder, made: Callable[[Path], object]) -> None:
    place = folder.root / "proc/pod/u/metrics/gpu/3"
    place.mkdir(parents=True)
    made(place / "utilization.sm")
    assert folder.show(Entry("u", 3, 40, 500))["u/metrics/gpu/3/utilization.sm"] == "40"
    assert stat.S_ISREG((place / "utilization.sm").lstat().st_mode)


def test_what_stands_in_the_way_of_one_file_is_told_once_and_stops_no_other(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    gone, wanted = (folder.root / "proc/pod" / uid / "metrics/gpu/3/utilization.sm" for uid in "tu")
    for path in (gone, wanted):
        (path / "full").mkdir(parents=True)
    for percent in (40, 41):
        files = folder.show(Entry("u", 3, percent, 500), Entry("v", 3, percent, 500))
        assert (files["u/metrics/gpu/3/memory.allocated"], files["v/metrics/gpu/3/utilization.sm"]) == (
            "500000000", str(percent),
        )  # fmt: skip
    said = sorted(record.getMessage().partition("Run:ai: ")[2] for record in caplog.records)
    assert said == [f"{gone}: Is a directory", f"{wanted}: Is a directory"]


entries = st.lists(
    st.builds(Entry, st.sampled_from("uvw"), st.integers(0, 2), st.integers(0, 100), st.integers(0, 10)),
    max_size=5, unique_by=lambda entry: (entry.uid, entry.gpu),
)  # fmt: skip


@given(st.lists(entries, max_size=5))
@settings(deadline=None)
def test_it_holds_what_is_shown_and_nothing_from_before(
    tmp_path_factory: pytest.TempPathFactory, shown: list[list[Entry]]
) -> None:
    folder = Folder(tmp_path_factory.mktemp("runai"))
    for found in shown:
        files = folder.show(*found)
        assert len(files) == 2 * len(found)
        for item in found:
            assert files[f"{item.uid}/metrics/gpu/{item.gpu}/utilization.sm"] == str(item.percent)
        assert {path.name for path in (folder.root / "proc/pod").glob("*")} == {item.uid for item in found}


def test_programs_are_put_there_if_they_are_missing_or_others(tmp_path: Path) -> None:
    tool, preloader = tmp_path / "tool", tmp_path / "library"
    tool.write_bytes(b"tool")
    preloader.write_bytes(b"library")
    root = tmp_path / "runai"
    (root / "bin").mkdir(parents=True)
    (root / "bin/nvidia-smi").write_bytes(b"older")
    found = runai.programs(tool, preloader)
    Tree(root, found).show(list, now=0.0)
    placed = {place: (root / place).read_bytes() for place in found}
    assert placed == {
        "bin/nvidia-smi": b"tool", "shared/memory/preloader.so": b"library", "shared/pid/preloader.so": b"library",
    }  # fmt: skip
    assert all(stat.S_IMODE((root / place).stat().st_mode) == 0o755 for place in found)
    inodes = [(root / place).stat().st_ino for place in found]
    Tree(root, found).show(list, now=0.0)
    assert [(root / place).stat().st_ino for place in found] == inodes


# What pods have.


@given(st.integers(0, 100), st.lists(st.floats(0, 1), max_size=6))
def test_what_sharers_have_is_together_what_the_gpu_shows(percent: int, asked: list[float]) -> None:
    found = runai.split(percent, asked)
    assert sum(found) == (percent if sum(asked) > 0 else 0)
    for value, item in zip(found, asked, strict=True):
        assert abs(value - percent * item / (sum(asked) or 1)) < 1 + 1e-9


def box_with(*spans: tuple[str, str, int, float]) -> Box:
    """Two GPUs, the second of which pods use: namespace, name, percent, share of memory."""
    box = Box([devices.device("n", index, H200) for index in range(2)], seed=1, hostname="")
    for namespace, name, percent, share in spans:
        profile = profiles.level(name, users.Range(percent, percent), share=share)
        box.admit(profile, [1], pod=PodRef(name, namespace, "main", f"uid-{name}"))
    for second in range(1, 6):
        box.step(float(second), clock=0.0)
    return box


def shown(box: Box, family: str) -> float:
    page = render.Renderer(box.machine, identity.load("dcgm")).page().decode()
    [line] = [line for line in page.splitlines() if line.startswith(f"{family}{{") and 'gpu="1"' in line]
    return float(line.rpartition(" ")[2])


def test_pods_have_what_metrics_show_of_their_gpu() -> None:
    box = box_with(("res", "r", 0, 0.0), ("team", "a", 30, 0.5), ("team", "b", 20, 0.25))
    found = runai.entries(box.machine, namespace="res")
    assert [(item.uid, item.gpu, item.percent) for item in found] == [("uid-a", 1, 30), ("uid-b", 1, 20)]
    assert sum(item.percent for item in found) == shown(box, "DCGM_FI_DEV_GPU_UTIL")
    assert sum(item.memory_mib for item in found) == pytest.approx(shown(box, "DCGM_FI_DEV_FB_USED"), abs=1)
    assert box.machine.pods[1].name == "r"


def test_pods_that_want_more_than_there_is_have_their_part_of_it() -> None:
    box = box_with(("res", "r", 0, 0.0), ("team", "a", 100, 0.5), ("team", "b", 100, 0.5), ("team", "c", 50, 0.0))
    assert [item.percent for item in runai.entries(box.machine, namespace="res")] == [40, 40, 20]


def test_a_reservation_alone_uses_nothing_of_its_gpu() -> None:
    box = box_with(("res", "r", 0, 0.0))
    assert runai.entries(box.machine, namespace="res") == []
    unused, reserved = box.machine.column("power")
    assert reserved == pytest.approx(unused, rel=0.05)
    assert shown(box, "DCGM_FI_DEV_FB_USED") == 0


def test_gpus_that_nobody_reserved_are_not_told_of() -> None:
    box = box_with(("team", "a", 30, 1.0))
    assert runai.entries(box.machine, namespace="res") == []
