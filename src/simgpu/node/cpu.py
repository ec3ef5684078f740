"""CPU usage of containers, from cgroup v1 or v2 and either of the kubelet's cgroup drivers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_MAX_RETRY_SECONDS = 60.0  # between searches for a missing group: each search reads many directories
_MAX_DEPTH = 8
_FREE_DEPTH = 2  # below it, only directories that can contain pods are searched
_POD_NAMES = ("kubepods", "burstable", "besteffort", "guaranteed")


class Meter:
    """Measures CPU usage per container, between one reading and the next."""

    def __init__(self, root: Path) -> None:
        self._unified = (root / "cgroup.controllers").exists()
        self._root = root if self._unified else _accounting(root)
        self._groups: dict[str, Path] = {}
        self._before: dict[str, tuple[float, float]] = {}
        self._missing: dict[str, tuple[float, float]] = {}  # monotonic time of the next search, and the delay before it

    def cores(self, pod: str, container: str, now: float) -> float:
        """Return the cores used since the last call, 0 on the first; by pod uid, container id and time in seconds."""
        used = self._seconds(pod, container, now)
        if used is None:
            self._before.pop(container, None)
            return 0.0
        then, before = self._before.get(container, (now, used))
        self._before[container] = (now, used)
        return max(0.0, used - before) / (now - then) if now > then else 0.0

    def keep(self, containers: set[str]) -> None:
        """Drop the readings of all other containers."""
        self._groups = {name: group for name, group in self._groups.items() if name in containers}
        self._before = {name: seen for name, seen in self._before.items() if name in containers}
        self._missing = {name: pause for name, pause in self._missing.items() if name in containers}

    def _seconds(self, pod: str, container: str, now: float) -> float | None:
        if not container or (container not in self._groups and not self._find(pod, container, now)):
            return None
        try:
            return _read(self._groups[container], unified=self._unified)
        except (OSError, ValueError, StopIteration):
            del self._groups[container]
            return None

    def _find(self, pod: str, container: str, now: float) -> bool:
        """Search for a container's cgroup, with exponential back-off while there is none."""
        due, pause = self._missing.get(container, (now, 0.5))
        if now < due:
            return False
        found = next(_groups(self._root, pod, container), None)
        if found is None:
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
            self._missing[container] = (now + pause, pause)
            return False
        self._missing.pop(container, None)
        self._groups[container] = found
        return True


def _accounting(root: Path) -> Path:
    names = ("cpuacct", "cpu,cpuacct", "cpuacct,cpu")
    return next((root / name for name in names if (root / name).is_dir()), root)


def _read(group: Path, *, unified: bool) -> float:
    if not unified:
        return int((group / "cpuacct.usage").read_text()) / 1e9
    lines = (group / "cpu.stat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("usage_usec ")).split()[1]) / 1e6


def _groups(folder: Path, pod: str, container: str, depth: int = 0) -> Iterator[Path]:
    """Yield the cgroups of a container, wherever the kubelet's cgroup root is."""
    uids = (f"pod{pod}", f"pod{pod.replace('-', '_')}")
    try:
        below = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in below:
        if container in entry.name and any(uid in folder.name for uid in uids):
            yield Path(entry.path)
        elif depth < _MAX_DEPTH and (depth < _FREE_DEPTH or any(part in entry.name for part in (*_POD_NAMES, *uids))):
            yield from _groups(Path(entry.path), pod, container, depth + 1)
