"""Which release file each program comes from, and what its checksum is."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from simgpu.cluster import binaries, checksums, releases

SUM = "0123456789abcdef" * 4
EVERY = [(name, architecture) for name in binaries.ALL for architecture in releases.ARCHITECTURES]


@pytest.mark.parametrize(("name", "architecture"), EVERY)
def test_every_program_has_a_release_file_for_both_architectures(name: str, architecture: str) -> None:
    binary = binaries.ALL[name]
    release = releases.release_of(binary, architecture)
    assert binary.module.version in release.file.name
    assert architecture in release.file.name
    assert bool(release.member) == release.file.name.endswith(".tar.gz")
    assert (release.member or release.file.name).rpartition("/")[2].startswith(name)
    for place in (release.file.name, release.file.checksum):
        assert re.fullmatch(r"[a-z0-9.]+(/[A-Za-z0-9._-]+)+", place)


def test_release_files_are_where_their_projects_publish_them() -> None:
    names = ("kubelet", "etcd", "kwok", "helm", "ctr")
    found = {name: releases.release_of(binaries.ALL[name], "arm64") for name in names}
    kubernetes, etcd, kwok, helm, containerd = (binaries.ALL[name].module.version for name in names)
    assert {name: release.file.name for name, release in found.items()} == {
        "kubelet": f"dl.k8s.io/release/v{kubernetes}/bin/linux/arm64/kubelet",
        "etcd": f"github.com/etcd-io/etcd/releases/download/v{etcd}/etcd-v{etcd}-linux-arm64.tar.gz",
        "kwok": f"github.com/kubernetes-sigs/kwok/releases/download/v{kwok}/kwok-linux-arm64",
        "helm": f"get.helm.sh/helm-v{helm}-linux-arm64.tar.gz",
        "ctr": f"github.com/containerd/containerd/releases/download/v{containerd}/"
        f"containerd-static-{containerd}-linux-arm64.tar.gz",
    }
    assert {name: release.member for name, release in found.items() if release.member} == {
        "etcd": f"etcd-v{etcd}-linux-arm64/etcd",
        "helm": "linux-arm64/helm",
        "ctr": "bin/ctr",
    }


def test_pinned_checksums_are_of_files_that_are_still_used() -> None:
    used = {releases.release_of(binaries.ALL[name], architecture).file.name for name, architecture in EVERY}
    lines = [line for line in checksums.PINS.read_text().splitlines() if not line.startswith("#")]
    assert len(checksums.pinned()) == len(lines), "a line is no checksum, or a file is listed twice"
    assert set(checksums.pinned()) <= used


@pytest.mark.parametrize(
    ("published", "found"),
    [
        (SUM, SUM),
        (f"{SUM.upper()}\n", SUM),
        (f"{SUM}  tool.tar.gz\n", SUM),
        (f"{SUM} *tool.tar.gz\n", SUM),
        (f"{'0' * 64}  other\n{SUM}  ./release/tool.tar.gz\n", SUM),
        (f'{{"assets": [{{"name": "tool.tar.gz", "digest": "sha256:{SUM}"}}]}}', SUM),
        ('{"assets": [{"name": "tool.tar.gz", "digest": "sha512:00"}]}', None),
        ('{"message": "API rate limit exceeded"}', None),
        (f"{SUM}  other\n", None),
        ("<html>welcome to our network</html>", None),
        ("", None),
    ],
)
def test_checksums_are_read_in_each_format_that_projects_publish(published: str, found: str | None) -> None:
    assert checksums.published(published.encode(), "host/path/tool.tar.gz") == found


def test_finding_a_program_imports_nothing_that_downloads() -> None:
    script = "import sys; from simgpu.cluster import locate; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "'aiohttp'" not in done.stdout
