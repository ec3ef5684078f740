"""The programs of a cluster: the Go module of each, and the supported versions.

One Go module in `module/` requires them all, so that they are built together. Pinned versions are read from its go.mod.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from simgpu import errors

MODULE = Path(__file__).parent / "module"

Version = tuple[int, int, int]

_KUBE_VERSIONS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


class Module(msgspec.Struct, frozen=True):
    """A Go module with programs, its supported versions, and the symbols that its version is linked into."""

    name: str
    path: str
    oldest: Version  # supported
    below: Version  # the first unsupported version
    stamps: tuple[str, ...] = ()  # values for the linker's -X, with {version}, {major} and {minor}

    @property
    def version(self) -> str:
        """The pinned version, without the leading v."""
        return pinned_version(MODULE / "go.mod", self.path)

    @property
    def pinned(self) -> Version:
        """The pinned version as numbers."""
        found = parse_version(self.version)
        assert found is not None  # noqa: S101 - pinned versions are x.y.z, which a unit test checks
        return found

    def fits(self, version: Version) -> bool:
        """Return whether a program of this version is supported."""
        return self.oldest <= version < self.below


class Binary(msgspec.Struct, frozen=True):
    """A program: the Go package it is built from, and the arguments that print its version."""

    name: str
    module: Module
    package: str
    version_args: tuple[str, ...] = ("--version",)

    @property
    def output(self) -> str:
        """The file name that `go build` gives the program: the last part of its package except a major version."""
        parts = self.package.split("/")
        return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


def _kubernetes_stamps() -> tuple[str, ...]:
    return tuple(
        stamp
        for package in _KUBE_VERSIONS
        for stamp in (
            f"{package}.gitVersion=v{{version}}",
            f"{package}.gitMajor={{major}}",
            f"{package}.gitMinor={{minor}}",
            f"{package}.gitTreeState=clean",
        )
    )


KUBERNETES = Module("kubernetes", "k8s.io/kubernetes", (1, 36, 0), (1, 37, 0), _kubernetes_stamps())
ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", (3, 5, 13), (3, 7, 0))
KWOK = Module("kwok", "sigs.k8s.io/kwok", (0, 8, 0), (0, 9, 0), ("sigs.k8s.io/kwok/pkg/consts.Version=v{version}",))
HELM = Module(
    "helm", "helm.sh/helm/v4", (3, 18, 0), (5, 0, 0), ("helm.sh/helm/v4/internal/version.version=v{version}",)
)
CONTAINERD = Module(
    "containerd",
    "github.com/containerd/containerd/v2",
    (2, 0, 0),
    (3, 0, 0),
    ("github.com/containerd/containerd/v2/version.Version=v{version}",),
)


def _of(module: Module, *names: str, version_args: tuple[str, ...] = ("--version",)) -> dict[str, Binary]:
    return {name: Binary(name, module, f"{module.path}/cmd/{name}", version_args) for name in names}


ALL: dict[str, Binary] = {
    "etcd": Binary("etcd", ETCD, ETCD.path),
    **_of(KUBERNETES, "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"),
    **_of(KUBERNETES, "kubectl", version_args=("version", "--client")),
    **_of(KWOK, "kwok", "kwokctl"),
    **_of(HELM, "helm", version_args=("version", "--short")),
    **_of(CONTAINERD, "containerd", "ctr"),
    **_of(CONTAINERD, "containerd-shim-runc-v2", version_args=("-v",)),
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
LOCAL_CLUSTER = (*CONTROL_PLANE, "kubectl")


def named(name: str) -> Binary:
    """Return a program by name; InputError if there is none."""
    try:
        return ALL[name]
    except KeyError:
        raise errors.InputError("NAME", f"no tool named {name!r}; there are: {', '.join(ALL)}") from None


@functools.cache
def pinned_version(go_mod: Path, module_path: str) -> str:
    """Return the version of a module that a go.mod requires, without the leading v."""
    found = re.search(rf"^(?:require|\t)\s*{re.escape(module_path)} v(\S+)", go_mod.read_text(), re.MULTILINE)
    if found is None:
        raise AssertionError(f"{go_mod} does not require {module_path}")
    return found[1]


def oldest_go() -> Version:
    """Return the minimum Go version that the go.mod requires."""
    found = re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?$", (MODULE / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise AssertionError(f"{MODULE / 'go.mod'} does not require a version of Go")
    return int(found[1]), int(found[2]), int(found[3] or 0)


def dotted(version: Version) -> str:
    """Format a version: (1, 36, 4) is 1.36.4."""
    return ".".join(map(str, version))


def parse_version(text: str) -> Version | None:
    """Return the first x.y.z in the output of a program, or None."""
    found = re.search(r"\bv?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:\D|$)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
