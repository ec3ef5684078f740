"""The programs that a cluster is made of: which module each is built from, and which versions will do.

Pinned versions are not repeated here: they are read from the Go module files in `modules/`.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from simgpu import errors

MODULES = Path(__file__).parent / "modules"

Version = tuple[int, int, int]

_KUBE_VERSIONS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


class Module(msgspec.Struct, frozen=True):
    """A Go module that holds programs, and the range of versions that we work with."""

    name: str
    path: str
    oldest: Version
    below: Version
    stamps: tuple[str, ...] = ()
    disk_gib: float = 1.0

    @property
    def directory(self) -> Path:
        """The folder with the go.mod that pins it."""
        return MODULES / self.name

    @property
    def version(self) -> str:
        """The pinned version, without the v."""
        return pinned_version(self.directory / "go.mod", self.path)

    def fits(self, version: Version) -> bool:
        """Whether another build of this version can stand in for ours."""
        return self.oldest <= version < self.below


class Binary(msgspec.Struct, frozen=True):
    """A program: the package it is built from, and how to ask it for its version."""

    name: str
    module: Module
    package: str
    version_args: tuple[str, ...] = ("--version",)


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


KUBERNETES = Module(
    "kubernetes", "k8s.io/kubernetes", (1, 36, 0), (1, 37, 0), stamps=_kubernetes_stamps(), disk_gib=4.0
)
ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", (3, 5, 13), (3, 7, 0))
KWOK = Module(
    "kwok",
    "sigs.k8s.io/kwok",
    (0, 8, 0),
    (0, 9, 0),
    stamps=("sigs.k8s.io/kwok/pkg/consts.Version=v{version}",),
    disk_gib=2.0,
)
HELM = Module(
    "helm",
    "helm.sh/helm/v4",
    (3, 18, 0),
    (5, 0, 0),
    stamps=("helm.sh/helm/v4/internal/version.version=v{version}",),
    disk_gib=2.0,
)
CONTAINERD = Module(
    "containerd",
    "github.com/containerd/containerd/v2",
    (2, 0, 0),
    (3, 0, 0),
    stamps=("github.com/containerd/containerd/v2/version.Version=v{version}",),
    disk_gib=2.0,
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
    """The program of that name."""
    try:
        return ALL[name]
    except KeyError:
        raise errors.InputError("NAME", f"no tool named {name!r}; there are: {', '.join(ALL)}") from None


@functools.cache
def pinned_version(go_mod: Path, module_path: str) -> str:
    """The version that a go.mod requires of a module, without the v."""
    found = re.search(rf"^(?:require|\t)\s*{re.escape(module_path)} v(\S+)", go_mod.read_text(), re.MULTILINE)
    if found is None:
        raise AssertionError(f"{go_mod} does not require {module_path}")
    return found[1]


@functools.cache
def oldest_go() -> Version:
    """The oldest Go that builds every module, as their go.mod files say."""
    texts = [(module.directory / "go.mod").read_text() for module in {binary.module for binary in ALL.values()}]
    found = [parse_version(line[3:]) for text in texts for line in text.splitlines() if line.startswith("go ")]
    return max(version for version in found if version is not None)


def parse_version(text: str) -> Version | None:
    """The first x.y.z in what a program prints."""
    found = re.search(r"\bv?(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
