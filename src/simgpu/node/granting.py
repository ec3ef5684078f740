"""Environment and mounts that let a container see its GPUs: pages, library and tool. Pure but for `install`.

Pages are mounted as directories, so that they can be replaced under a running container. Library and tool are mounted
as files. Each version has its own path and is never removed, because the kubelet restarts a pod's containers with the
mounts of the pod's first allocation, even after a reboot.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from simgpu.node import files, messages
from simgpu.page import writer
from simgpu.topology import sharing
from simgpu.vocabulary import (
    LIBRARY,
    MOCK_DEVICES_ENV,
    NODE_NAME_ENV,
    PAGES_DIR,
    POD_SOCKET,
    SMI,
    SOCKET_ENV,
    VISIBLE_DEVICES_ENV,
)

_TOOL_PLACES = ("/usr/bin", "/bin")

_MAX_MOUNTS = 1024  # of pages that are kept: more than a node has GPUs and instances


class Programs(msgspec.Struct, frozen=True):
    """Paths of the library and the tool on the node."""

    library: Path
    tool: Path


class Source(msgspec.Struct, frozen=True):
    """Paths on the node of what containers mount: folders of the pages and of the socket, and the programs."""

    pages: Path
    run: Path
    programs: Programs


def install(library: Path, tool: Path, state: Path) -> Programs:
    """Copy library and tool below the state folder, for containers to mount, and return their paths."""
    made = {LIBRARY: library.read_bytes(), SMI: tool.read_bytes()}
    digest = hashlib.sha256(b"".join(made.values())).hexdigest()[:16]
    folder = state / "programs" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        files.put(folder / name, content, 0o755, durable=True)
    return Programs(folder / LIBRARY, folder / SMI)


def gpus(ids: Sequence[str], *, node: str, source: Source) -> messages.ContainerAllocateResponse:
    """Return the allocation of a container with GPUs, or shares of them, by device id."""
    names = list(dict.fromkeys(map(sharing.device, ids)))
    visible = ",".join(names)
    return messages.ContainerAllocateResponse(
        envs={
            VISIBLE_DEVICES_ENV: visible, MOCK_DEVICES_ENV: visible, NODE_NAME_ENV: node,
            SOCKET_ENV: POD_SOCKET,
        },
        mounts=(*(page(name, source) for name in names), *common(source)),
    )  # fmt: skip


@functools.lru_cache(maxsize=_MAX_MOUNTS)
def page(name: str, source: Source) -> messages.Mount:
    """Return the mount of the page of a GPU or MIG instance, by id."""
    return _mount(f"{PAGES_DIR}/{name}", writer.folder(source.pages, name))


@functools.lru_cache(maxsize=1)
def common(source: Source) -> tuple[messages.Mount, ...]:
    """Return the mounts of every container with GPUs: the workload socket's folder, library and tool."""
    return _mount(str(Path(POD_SOCKET).parent), source.run), *_programs(source.programs)


def others(*, node: str) -> messages.ContainerAllocateResponse:
    """Return the allocation of a container with devices of another resource: nothing that conflicts with its GPUs'."""
    return messages.ContainerAllocateResponse(envs={NODE_NAME_ENV: node})


def _programs(programs: Programs) -> Iterator[messages.Mount]:
    machine = platform.machine()  # folders of Debian, of Debian's musl, of Red Hat, and of Alpine
    for folder in (f"/usr/lib/{machine}-linux-gnu", f"/usr/lib/{machine}-linux-musl", "/usr/lib64", "/usr/lib"):
        yield _mount(f"{folder}/{LIBRARY}", programs.library)
    for folder in _TOOL_PLACES:
        yield _mount(f"{folder}/{SMI}", programs.tool)


def _mount(inside: str, outside: Path) -> messages.Mount:
    return messages.Mount(inside, str(outside), read_only=True)
