"""CDI files that inject the GPUs of claims into containers: one for all of them, and one for each claim.

Each file declares the lowest version of the format that has what it uses, because a runtime rejects newer versions than
it knows. They are JSON, which is YAML.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from simgpu.node import files, granting, messages
from simgpu.vocabulary import CDI_KIND, NODE_NAME_ENV, POD_SOCKET, SOCKET_ENV, VISIBLE_DEVICES_ENV

COMMON = "common"

_PREFIX, _SUFFIX = f"{CDI_KIND.replace('/', '-')}_", ".yaml"
_BASE, _DIGITS = "0.3.0", "0.5.0"  # the first version, and the one since which names may start with a digit
_OPTIONS = ("ro", "nosuid", "nodev", "bind")
_HIDDEN = "void"  # NVIDIA's container runtime adds nothing of its own


def path(folder: Path, name: str) -> Path:
    """Return the file of a claim, by uid, or of what is common to all."""
    return folder / f"{_PREFIX}{name}{_SUFFIX}"


def stale(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Yield the files of other claims than those, and unfinished ones."""
    kept = {path(folder, name).name for name in names}
    yield from (found for found in folder.glob(f"{_PREFIX}*{_SUFFIX}") if found.name not in kept)
    yield from folder.glob(files.unfinished_name(f"{_PREFIX}*{_SUFFIX}"))


def qualified(name: str) -> str:
    """Return the qualified name of a device."""
    return f"{CDI_KIND}={name}"


def device(uid: str, name: str) -> str:
    """Return the CDI name of a claim's device."""
    return f"{uid}-{name}"


def common(source: granting.Source, *, node: str) -> bytes:
    """Return the file of what every container with GPUs gets."""
    environment = {NODE_NAME_ENV: node, SOCKET_ENV: POD_SOCKET, VISIBLE_DEVICES_ENV: _HIDDEN}
    return _document({COMMON: _edits(environment, granting.common(source))})


def claim(uid: str, devices: Mapping[str, tuple[str, Mapping[str, str]]], source: granting.Source) -> bytes:
    """Return the file of a claim; `devices` are the id and the environment of each, by name."""
    return _document(
        {
            device(uid, name): _edits(environment, [granting.page(gpu, source)])
            for name, (gpu, environment) in devices.items()
        }
    )


def _document(devices: Mapping[str, Mapping[str, Any]]) -> bytes:
    version = _DIGITS if any(name[0].isdigit() for name in devices) else _BASE
    listed = [{"name": name, "containerEdits": edits} for name, edits in devices.items()]
    return msgspec.json.encode({"cdiVersion": version, "kind": CDI_KIND, "devices": listed})


def _edits(environment: Mapping[str, str], mounts: Iterable[messages.Mount]) -> dict[str, Any]:
    return {
        "env": [f"{name}={value}" for name, value in environment.items()],
        "mounts": [
            {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": _OPTIONS}
            for mount in mounts
        ],
    }
