"""Where each program's official release file is, and whether it may be fetched from there.

A file is named by host and path, without a scheme. The same name is its path below a mirror and its name in
`checksums.txt`.
"""

from __future__ import annotations

import os
import platform
import urllib.parse
from typing import TYPE_CHECKING

import msgspec

from simgpu import errors, vocabulary

if TYPE_CHECKING:
    from simgpu.cluster.binaries import Binary

ARCHITECTURES = ("amd64", "arm64")
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class File(msgspec.Struct, frozen=True):
    """A file of a release, and the file that states its SHA-256."""

    name: str
    checksum: str


class Release(msgspec.Struct, frozen=True):
    """What a program comes from: a file, and the member of it where the file is an archive."""

    file: File
    member: str = ""


class _Pattern(msgspec.Struct, frozen=True):
    name: str
    checksum: str
    member: str = ""


_KUBERNETES = _Pattern("dl.k8s.io/release/v{version}/bin/linux/{architecture}/{program}", "{name}.sha256")
_ETCD = _Pattern(
    "github.com/etcd-io/etcd/releases/download/v{version}/etcd-v{version}-linux-{architecture}.tar.gz",
    "github.com/etcd-io/etcd/releases/download/v{version}/SHA256SUMS",
    "etcd-v{version}-linux-{architecture}/{program}",
)
_KWOK = _Pattern(
    "github.com/kubernetes-sigs/kwok/releases/download/v{version}/{program}-linux-{architecture}",
    # KWOK publishes no checksums; GitHub computes one of each file when it is uploaded.
    "api.github.com/repos/kubernetes-sigs/kwok/releases/tags/v{version}",
)
_HELM = _Pattern(
    "get.helm.sh/helm-v{version}-linux-{architecture}.tar.gz", "{name}.sha256sum", "linux-{architecture}/{program}"
)
_CONTAINERD = _Pattern(
    # The static one, as our own build is: the other needs a recent glibc.
    "github.com/containerd/containerd/releases/download/v{version}/"
    "containerd-static-{version}-linux-{architecture}.tar.gz",
    "{name}.sha256sum",
    "bin/{program}",
)
_PATTERNS = {
    "etcd": _ETCD,
    "kube-apiserver": _KUBERNETES,
    "kube-controller-manager": _KUBERNETES,
    "kube-scheduler": _KUBERNETES,
    "kubelet": _KUBERNETES,
    "kube-proxy": _KUBERNETES,
    "kubectl": _KUBERNETES,
    "kwok": _KWOK,
    "kwokctl": _KWOK,
    "helm": _HELM,
    "containerd": _CONTAINERD,
    "ctr": _CONTAINERD,
    "containerd-shim-runc-v2": _CONTAINERD,
}


def release_of(binary: Binary, architecture: str) -> Release:
    """What a program of its pinned version comes from."""
    pattern = _PATTERNS[binary.name]
    known = {"version": binary.module.version, "architecture": architecture, "program": binary.name}
    name = pattern.name.format(**known)
    return Release(File(name, pattern.checksum.format(name=name, **known)), pattern.member.format(**known))


def architecture() -> str | None:
    """This machine's, as releases name it; None where there are no release files for it."""
    return _MACHINES.get(platform.machine().lower()) if platform.system() == "Linux" else None


class Source(msgspec.Struct, frozen=True):
    """Where release files are fetched from, if at all."""

    mirror: str | None = None
    allowed: bool = True

    def url(self, name: str) -> str:
        """The address of a file."""
        return f"https://{name}" if self.mirror is None else f"{self.mirror}/{name}"

    def host(self, name: str) -> str:
        """The host and port of a file's address."""
        return urllib.parse.urlsplit(self.url(name)).netloc.rpartition("@")[2]


def choose(mirror: str | None = None, *, download: bool = True) -> Source:
    """The source that options and the environment name."""
    setting = os.environ.get(vocabulary.DOWNLOAD_ENV, "")
    if setting not in {"", "auto", "never"}:
        raise errors.InputError(vocabulary.DOWNLOAD_ENV, f"{setting!r}: must be auto or never")
    given = _checked(mirror, "--mirror") or _checked(os.environ.get(vocabulary.MIRROR_ENV), vocabulary.MIRROR_ENV)
    return Source(given, allowed=download and setting != "never")


def _checked(mirror: str | None, field: str) -> str | None:
    if not mirror:
        return None
    try:
        parts = urllib.parse.urlsplit(mirror)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query and not parts.fragment
        _ = parts.port  # raises where it is none
    except ValueError:
        valid = False
    if not valid:
        raise errors.InputError(field, f"{mirror!r}: must be an http or https address, such as https://mirror/releases")
    return mirror.rstrip("/")
