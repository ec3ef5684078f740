"""Who is at the other end of a socket, from the kernel's word alone."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.node import peers

UID = "0f5c2a6e-9b1d-4c55-8f0e-0a4f1b2c3d4e"
UNDER = UID.replace("-", "_")
ID = "3b" * 32


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{UID}/{ID}",
        f"/kubepods/pod{UID}/{ID}",
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope",
        f"/../../pod{UID}/{ID}",
        f"/../../kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope/init",
        f"/machine-7/kubelet/kubepods/besteffort/pod{UID}/{ID}/pod11111111-1111-1111-1111-111111111111/{'c' * 64}",
    ],
)
@pytest.mark.parametrize("lines", ["0::{}\n", "12:cpuset:/\n11:cpu,cpuacct:{0}\n1:name=systemd:{0}\n"])
def test_a_container_is_known_by_its_cgroup(path: str, lines: str) -> None:
    assert peers.container(lines.format(path)) == peers.Peer(UID, ID)


@pytest.mark.parametrize(
    "path", ["/", "/user.slice/session-1.scope", f"/system.slice/docker-{ID}.scope", "/kubepods/podx"]
)
def test_what_is_in_no_pod_is_no_container(path: str) -> None:
    assert peers.container(f"0::{path}\n") is None


@given(st.text(max_size=300))
def test_no_text_is_too_odd(text: str) -> None:
    peers.container(text)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def fake_proc(folder: Path, cgroup: str, *, apart: bool = False) -> Path:
    for name in ("self", str(os.getpid())):
        (folder / name / "ns").mkdir(parents=True)
        (folder / name / "ns" / "pid").symlink_to(f"pid:[{name if apart else 1}]")
        (folder / name / "cgroup").write_text(cgroup)
    return folder


def test_the_process_that_connected_is_asked_for(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, f"0::/kubepods/pod{UID}/{ID}\n")
    assert peers.of(ends[0], proc=proc) == peers.Peer(UID, ID)


def test_the_nodes_own_administrator_is_in_no_pod(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    assert peers.of(ends[0], proc=fake_proc(tmp_path, "0::/\n")) == peers.HOST


def test_a_process_names_its_own_groups_as_it_likes(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "")
    (proc / str(os.getpid()) / "cgroup").write_bytes(f"0::/kubepods/pod{UID}/{ID}/".encode() + b"\xff\xfe\n")
    assert peers.of(ends[0], proc=proc) == peers.Peer(UID, ID)


def test_a_container_that_is_not_recognised_is_not_taken_for_the_node(
    ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    with pytest.raises(peers.Unknown, match="is in no pod"):
        peers.of(ends[0], proc=fake_proc(tmp_path, "0::/strange\n", apart=True))


def test_a_peer_is_known_however_many_files_are_open(ends: tuple[socket.socket, socket.socket], tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, f"0::/kubepods/pod{UID}/{ID}\n")
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, 1200), hard))
    opened = [os.dup(ends[0].fileno())]
    try:
        while opened[-1] < 1100:
            opened.append(os.dup(ends[0].fileno()))
        assert peers.of(ends[0], proc=proc) == peers.Peer(UID, ID)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def test_a_process_that_ended_is_nobody(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        child = os.fork()
        if not child:
            with socket.socket(socket.AF_UNIX) as connecting:
                connecting.connect(str(path))
                os.set_inheritable(connecting.fileno(), True)
                os._exit(0)
        os.waitpid(child, 0)
        accepted, _ = listening.accept()
        with accepted, pytest.raises(peers.Unknown, match="has ended"):
            peers.of(accepted)
