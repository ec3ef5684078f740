"""The folder that Run:ai's container toolkit reads on a node: usage of shared GPUs by pod, and programs.

It is read at any time, and other programs keep files there. So files are replaced atomically, unchanged files are left
alone, and only files of the names below are touched.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from simgpu import errors
from simgpu.machines.machine import Machine, Usage
from simgpu.node import files

SECONDS = 1.0

_UTILIZATION, _MEMORY = "utilization.sm", "memory.allocated"
_BYTES = 1_000_000  # per MiB, as the toolkit counts
_FOLDER_MODE, _FILE_MODE, _PROGRAM_MODE = 0o755, 0o644, 0o755

_log = logging.getLogger(__name__)


class Entry(msgspec.Struct, frozen=True):
    """A pod's use of a GPU, by index: utilisation in percent, memory in MiB."""

    uid: str
    gpu: int
    percent: int
    memory_mib: int


def entries(machine: Machine, *, namespace: str) -> list[Entry]:
    """Return the pods' use of GPUs that a pod of the reservation namespace holds for them, consistent with metrics."""
    found = []
    shared: dict[int, list[Usage]] = {item.device: [] for item in machine.usages if item.pod.namespace == namespace}
    for item in machine.usages if shared else ():
        if item.device in shared and item.pod.namespace != namespace:
            shared[item.device].append(item)
    for device, sharing in shared.items():
        shown = int(machine.column("usage")[device] + 0.5)
        for item, percent in zip(sharing, split(shown, [item.usage for item in sharing]), strict=True):
            found.append(Entry(item.pod.uid, machine.devices[device].index, percent, round(item.memory_mib)))
    return found


def split(percent: int, requested: Sequence[float]) -> list[int]:
    """Split a percentage in proportion to the requests into whole percents with the same sum."""
    whole = sum(requested)
    if whole <= 0:
        return [0] * len(requested)
    exact = [percent * item / whole for item in requested]
    found = [int(item) for item in exact]
    nearest = sorted(range(len(requested)), key=lambda place: found[place] - exact[place])
    for place in nearest[: percent - sum(found)]:
        found[place] += 1
    return found


def programs(tool: Path, preloader: Path) -> dict[str, Path]:
    """Return what Run:ai's pods expect, by path below the folder: the tool, and libraries of their `ld.so.preload`."""
    return {
        "bin/nvidia-smi": tool, "shared/memory/preloader.so": preloader, "shared/pid/preloader.so": preloader,
    }  # fmt: skip


class Tree:
    """Keeps the folder up to date. A failed write is logged once, and retried."""

    def __init__(self, root: Path, installed: Mapping[str, Path]) -> None:
        self._root = root
        self._pods = root / "proc" / "pod"
        self._installed = tuple(root / place for place in installed)
        self._missing = {root / place: source for place, source in installed.items()}
        self._due = float("-inf")
        self._problems: set[str] = set()

    def show(self, entries: Callable[[], Sequence[Entry]], *, now: float) -> None:
        """Write what changed, at most once every `SECONDS`; `entries` is called only then. `now` is monotonic time."""
        if now < self._due:
            return
        self._due = now + SECONDS
        logged, self._problems = self._problems, set()
        self._install()
        with self._trying():
            _make(self._root / "proc" / "events")
        self._write(entries())
        for problem in sorted(self._problems - logged):
            _log.warning("cannot write files for Run:ai: %s", problem)

    def remove(self) -> None:
        """Remove all files of ours, and folders that are empty then."""
        self._write(())
        for path in self._installed:
            with self._trying():
                path.unlink(missing_ok=True)
        for folder in (*(path.parent for path in self._installed), self._root / "proc" / "events", self._pods):
            with self._trying():
                if folder.is_dir():
                    _prune(folder, self._root)

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Collect the problem of one file, and continue with the others."""
        try:
            yield
        except OSError as error:
            self._problems.add(errors.explain(error))

    def _install(self) -> None:
        for path, source in list(self._missing.items()):
            with self._trying():
                _put(path, source.read_bytes(), _PROGRAM_MODE)
                del self._missing[path]

    def _write(self, found: Sequence[Entry]) -> None:
        wanted: dict[Path, bytes] = {}
        for item in found:
            folder = self._pods / item.uid / "metrics" / "gpu" / str(item.gpu)
            wanted[folder / _UTILIZATION] = str(item.percent).encode()
            wanted[folder / _MEMORY] = str(item.memory_mib * _BYTES).encode()
        for path, content in wanted.items():
            with self._trying():
                _put(path, content, _FILE_MODE)
        ours = {name for file in (_UTILIZATION, _MEMORY) for name in (file, files.unfinished_name(file))}
        for path in self._pods.glob("*/metrics/gpu/*/*"):
            if path not in wanted and path.name in ours:
                with self._trying():
                    path.unlink(missing_ok=True)
                    _prune(path.parent, self._pods)


def _put(path: Path, content: bytes, mode: int) -> None:
    _make(path.parent)
    files.put(path, content, mode)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(_FOLDER_MODE)


def _prune(folder: Path, root: Path) -> None:
    """Remove empty folders, up to `root`."""
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
