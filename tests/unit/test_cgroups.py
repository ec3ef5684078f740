"""Processes of containers, from trees of cgroups as the kernel shows them."""

from __future__ import annotations

from pathlib import Path

from simgpu.kube import views
from simgpu.machines.users import PodRef
from simgpu.node.cgroups import MAX_PROCESSES, ContainerProcesses
from simgpu.node.pod_processes import PodProcesses

UID = "0f5c2a6e-9b1d-4c55-8f0e-0a4f1b2c3d4e"
ID = "3b" * 32


def group(root: Path, *pids: int, below: str = "") -> None:
    (root / "cgroup.controllers").touch()
    folder = root / "kubepods" / "besteffort" / f"pod{UID}" / ID / below
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))


def test_a_containers_processes_are_those_of_its_group_and_of_groups_within(tmp_path: Path) -> None:
    group(tmp_path, 30, 0, 10)  # 0 is one that cannot be seen from here
    group(tmp_path, 20, below="nested")
    listed = ContainerProcesses(tmp_path)
    assert listed.pids(UID, ID, 1.0) == (10, 20, 30)
    assert listed.pids("another", "4c" * 32, 1.0) == ()


def test_processes_are_listed_anew_after_a_second(tmp_path: Path) -> None:
    listed = ContainerProcesses(tmp_path, every=1.0)
    group(tmp_path, 10)
    assert listed.pids(UID, ID, 1.0) == (10,)
    group(tmp_path, 10, 11)
    assert listed.pids(UID, ID, 1.5) == (10,)
    assert listed.pids(UID, ID, 2.0) == (10, 11)


def test_a_group_whose_processes_cannot_be_seen_is_not_searched_for_again(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    root.mkdir()
    listed = ContainerProcesses(root)
    group(root, 0)
    assert listed.pids(UID, ID, 1.0) == ()
    (root / "kubepods").rename(tmp_path / "outside")
    (root / "kubepods").symlink_to(tmp_path / "outside")  # a known path goes through it, a search does not
    group(root, 10)
    assert listed.pids(UID, ID, 2.0) == (10,)


def test_a_group_that_is_gone_is_searched_for_again(tmp_path: Path) -> None:
    listed = ContainerProcesses(tmp_path)
    group(tmp_path, 10)
    assert listed.pids(UID, ID, 1.0) == (10,)
    (tmp_path / "kubepods").rename(tmp_path / "kubepods.slice")
    assert listed.pids(UID, ID, 2.0) == ()
    assert listed.pids(UID, ID, 3.0) == (10,)


def test_a_container_with_very_many_processes_costs_no_more_than_a_large_one(tmp_path: Path) -> None:
    group(tmp_path, *range(1, 5000))
    assert len(ContainerProcesses(tmp_path).pids(UID, ID, 1.0)) == MAX_PROCESSES


def test_a_pods_processes_are_found_by_the_container_id_in_its_status(tmp_path: Path) -> None:
    group(tmp_path, 10)
    status = views.ContainerStatus("main", container_id=f"containerd://{ID}")
    pod = views.Pod(
        metadata=views.ObjectMeta(name="p", namespace="ns", uid=UID),
        spec=views.PodSpec((views.Container("main"),)),
        status=views.PodStatus("Running", container_statuses=(status,)),
    )
    found = PodProcesses(ContainerProcesses(tmp_path), lambda ref: pod if ref.name == "p" else None, lambda: 1.0)

    assert found.of(PodRef("p", "ns", "main", UID)) == (10,)
    assert found.of(PodRef("p", "ns", "other", UID)) == ()
    assert found.of(PodRef("p", "ns", "main", "uid-of-another")) == ()
    assert found.of(PodRef("q", "ns", "main", UID)) == ()
    found.forget_others()
    assert found.of(PodRef("p", "ns", "main", UID)) == (10,)


def test_lists_of_processes_that_are_none_are_read_as_far_as_they_are(tmp_path: Path) -> None:
    group(tmp_path, 10)
    folder = tmp_path / "kubepods" / "besteffort" / f"pod{UID}" / ID
    (folder / "cgroup.procs").write_bytes("7\n\u0668\n".encode() + b"\xff\n-1\n" + b"9" * 5000)
    assert ContainerProcesses(tmp_path).pids(UID, ID, 1.0) == (7,)
