"""What a container is started with to see its GPUs: environment, pages, library and tool. Pure but for `install`.

Pages are mounted as directories, so that they can be made anew beneath a running container. Library and tool are
files, and stay with it as they were when it started: each version lies at a place of its own, and stays there, because
the kubelet starts a pod's containers again with the mounts that the pod was first given, be it after a restart.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from simgpu.node import files, messages
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


class Programs(msgspec.Struct, frozen=True):
    """Library and tool on the node."""

    library: Path
    tool: Path


class Source(msgspec.Struct, frozen=True):
    """What containers have mounted, as it lies on the node: folders of pages and of the socket, and the programs."""

    pages: Path
    run: Path
    programs: Programs


def install(library: Path, tool: Path, state: Path) -> Programs:
    """Put library and tool for this processor below the state folder, where containers can have them from."""
    made = {LIBRARY: library.read_bytes(), SMI: tool.read_bytes()}
    digest = hashlib.sha256(b"".join(made.values())).hexdigest()[:16]
    folder = state / "programs" / digest
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        files.put(folder / name, content, 0o755, lasting=True)
    return Programs(folder / LIBRARY, folder / SMI)


def gpus(ids: Sequence[str], *, node: str, source: Source) -> messages.ContainerAllocateResponse:
    """For a container with GPUs, or shares of them."""
    names = list(dict.fromkeys(map(sharing.device, ids)))
    visible = ",".join(names)
    return messages.ContainerAllocateResponse(
        envs={
            VISIBLE_DEVICES_ENV: visible, MOCK_DEVICES_ENV: visible, NODE_NAME_ENV: node,
            SOCKET_ENV: POD_SOCKET,
        },
        mounts=(
            *(_mount(f"{PAGES_DIR}/{name}", source.pages / name) for name in names),
            _mount(str(Path(POD_SOCKET).parent), source.run),
            *_programs(source.programs),
        ),
    )  # fmt: skip


def others(*, node: str) -> messages.ContainerAllocateResponse:
    """For a container with devices of another resource: nothing that could clash with what its GPUs bring."""
    return messages.ContainerAllocateResponse(envs={NODE_NAME_ENV: node})


def _programs(programs: Programs) -> Iterator[messages.Mount]:
    machine = platform.machine()  # folders of Debian, of Debian's musl, of Red Hat, and of Alpine
    for folder in (f"/usr/lib/{machine}-linux-gnu", f"/usr/lib/{machine}-linux-musl", "/usr/lib64", "/usr/lib"):
        yield _mount(f"{folder}/{LIBRARY}", programs.library)
    for folder in _TOOL_PLACES:
        yield _mount(f"{folder}/{SMI}", programs.tool)


def _mount(inside: str, outside: Path) -> messages.Mount:
    return messages.Mount(inside, str(outside), read_only=True)
