"""The official release file of each program, and where to download it from.

A file is named by host and path, without a scheme. The same name is its path on a mirror and its name in
`checksums.txt`.
"""

from __future__ import annotations

import os
import platform
import urllib.parse

import msgspec

from simgpu import errors
from simgpu.cluster.binaries import Binary
from simgpu.vocabulary import DOWNLOAD_ENV, MIRROR_ENV

ARCHITECTURES = ("amd64", "arm64")
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class File(msgspec.Struct, frozen=True):
    """A release file, and the file that holds its SHA-256 checksum."""

    name: str
    checksum: str


class Release(msgspec.Struct, frozen=True):
    """Where a program is: a release file, and the member of it if that is an archive."""

    file: File
    member: str = ""


class _Pattern(msgspec.Struct, frozen=True):
    name: str
    checksum: str
    member: str = ""


_PATTERNS = {  # by module
    "kubernetes": _Pattern("dl.k8s.io/release/v{version}/bin/linux/{architecture}/{program}", "{name}.sha256"),
    "etcd": _Pattern(
        "github.com/etcd-io/etcd/releases/download/v{version}/etcd-v{version}-linux-{architecture}.tar.gz",
        "github.com/etcd-io/etcd/releases/download/v{version}/SHA256SUMS",
        "etcd-v{version}-linux-{architecture}/{program}",
    ),
    "kwok": _Pattern(
        "github.com/kubernetes-sigs/kwok/releases/download/v{version}/{program}-linux-{architecture}",
        # KWOK publishes no checksums; GitHub computes one for each uploaded file.
        "api.github.com/repos/kubernetes-sigs/kwok/releases/tags/v{version}",
    ),
    "helm": _Pattern(
        "get.helm.sh/helm-v{version}-linux-{architecture}.tar.gz", "{name}.sha256sum", "linux-{architecture}/{program}"
    ),
    "containerd": _Pattern(
        # The static build, like our own: the other needs a recent glibc.
        "github.com/containerd/containerd/releases/download/v{version}/"
        "containerd-static-{version}-linux-{architecture}.tar.gz",
        "{name}.sha256sum",
        "bin/{program}",
    ),
}


def release_of(binary: Binary, architecture: str) -> Release:
    """Return the release of a program in its pinned version."""
    pattern = _PATTERNS[binary.module.name]
    known = {"version": binary.module.version, "architecture": architecture, "program": binary.name}
    name = pattern.name.format(**known)
    return Release(File(name, pattern.checksum.format(name=name, **known)), pattern.member.format(**known))


def architecture() -> str | None:
    """Return this machine's architecture as releases name it; None if there are no release files for it."""
    return _MACHINES.get(platform.machine().lower()) if platform.system() == "Linux" else None


class ReleaseSource(msgspec.Struct, frozen=True):
    """Where release files are downloaded from."""

    mirror: str | None = None  # URL that HOST/PATH is appended to; the official hosts if None
    allowed: bool = True  # whether to download at all

    def url(self, name: str) -> str:
        """Return the URL of a file."""
        return f"https://{name}" if self.mirror is None else f"{self.mirror}/{name}"

    def host(self, name: str) -> str:
        """Return the host and port of a file's URL."""
        return urllib.parse.urlsplit(self.url(name)).netloc.rpartition("@")[2]


def choose(mirror: str | None = None, *, download: bool = True) -> ReleaseSource:
    """Return the source that options and environment variables configure."""
    setting = os.environ.get(DOWNLOAD_ENV, "")
    if setting not in {"", "auto", "never"}:
        raise errors.InputError(DOWNLOAD_ENV, f"{setting!r}: must be auto or never")
    given = _checked(mirror, "--mirror") or _checked(os.environ.get(MIRROR_ENV), MIRROR_ENV)
    return ReleaseSource(given, allowed=download and setting != "never")


def _checked(mirror: str | None, field: str) -> str | None:
    if not mirror:
        return None
    try:
        parts = urllib.parse.urlsplit(mirror)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.query and not parts.fragment
        _ = parts.port  # raises if it is not a number
    except ValueError:
        valid = False
    if not valid:
        raise errors.InputError(field, f"{mirror!r}: must be an http or https URL, such as https://mirror/releases")
    return mirror.rstrip("/")
