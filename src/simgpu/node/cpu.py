"""How much processor time containers use, from cgroups of either version and by either of the kubelet's drivers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_LONGEST = 60.0  # seconds between looks for a group that is not there: each goes over many folders
_DEEPEST = 8
_ANYTHING = 2  # levels below which only what pods are in is looked at
_OF_PODS = ("kubepods", "burstable", "besteffort", "guaranteed")


class Meter:
    """Cores that each container keeps busy, between one look and the next."""

    def __init__(self, root: Path) -> None:
        self._unified = (root / "cgroup.controllers").exists()
        self._root = root if self._unified else _accounting(root)
        self._groups: dict[str, Path] = {}
        self._before: dict[str, tuple[float, float]] = {}
        self._missing: dict[str, tuple[float, float]] = {}  # when to look again, and how long that was

    def cores(self, pod: str, container: str, now: float) -> float:
        """Cores that a container, by its pod's uid and its id, used since it was last asked for; 0 the first time."""
        used = self._seconds(pod, container, now)
        if used is None:
            self._before.pop(container, None)
            return 0.0
        then, before = self._before.get(container, (now, used))
        self._before[container] = (now, used)
        return max(0.0, used - before) / (now - then) if now > then else 0.0

    def keep(self, containers: set[str]) -> None:
        """Forget all others."""
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
        """Look for a container's group: where there is none, less and less often."""
        due, pause = self._missing.get(container, (now, 0.5))
        if now < due:
            return False
        found = next(_groups(self._root, pod, container), None)
        if found is None:
            pause = min(2 * pause, _LONGEST)
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
    """Groups of a container, wherever the kubelet's root is: the way down leads past names that pods' groups have."""
    uids = (f"pod{pod}", f"pod{pod.replace('-', '_')}")
    try:
        below = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for entry in below:
        if container in entry.name and any(uid in folder.name for uid in uids):
            yield Path(entry.path)
        elif depth < _DEEPEST and (depth < _ANYTHING or any(part in entry.name for part in (*_OF_PODS, *uids))):
            yield from _groups(Path(entry.path), pod, container, depth + 1)
