"""The cgroups of containers, in cgroup v1 or v2 and of either of the kubelet's cgroup drivers, and their processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

MAX_PROCESSES = 256  # of a container that are looked at

_MAX_RETRY_SECONDS = 60.0  # between searches for a missing group: each search reads many directories
_MAX_DEPTH = 8
_FREE_DEPTH = 2  # below it, only directories that can contain pods are searched
_PID = re.compile("[0-9]{1,9}")
_POD_NAMES = ("kubepods", "burstable", "besteffort", "guaranteed")


class ContainerGroups:
    """Finds the cgroups of containers below a root, and remembers them."""

    def __init__(self, root: Path) -> None:
        self.unified = (root / "cgroup.controllers").exists()
        self._root = root if self.unified else _accounting(root)
        self._groups: dict[str, Path] = {}
        self._missing: dict[str, tuple[float, float]] = {}  # monotonic time of the next search, and the delay before it

    def find(self, pod: str, container: str, now: float) -> Path | None:
        """Return the group of a container, by its pod's uid and its id; `now` is in seconds.

        While there is none, it is searched for with exponential back-off.
        """
        if not container or container in self._groups:
            return self._groups.get(container)
        due, pause = self._missing.get(container, (now, 0.5))
        if now < due:
            return None
        found = next(_groups(self._root, pod, container), None)
        if found is None:
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
            self._missing[container] = (now + pause, pause)
            return None
        self._missing.pop(container, None)
        self._groups[container] = found
        return found

    def forget(self, container: str) -> None:
        """Search for a container again: its group is gone."""
        self._groups.pop(container, None)

    def keep(self, containers: set[str]) -> None:
        """Forget all other containers."""
        self._groups = {name: group for name, group in self._groups.items() if name in containers}
        self._missing = {name: pause for name, pause in self._missing.items() if name in containers}


class ContainerProcesses:
    """Lists the processes of containers, as this process numbers them: those that it does not see are left out."""

    def __init__(self, root: Path, *, every: float = 1.0) -> None:
        """`every` is how many seconds a list is good for."""
        self._groups = ContainerGroups(root)
        self._every = every
        self._listed: dict[str, tuple[float, tuple[int, ...]]] = {}

    def pids(self, pod: str, container: str, now: float) -> tuple[int, ...]:
        """Return the processes of a container, by its pod's uid and its id; `now` is in seconds."""
        listed_at, found = self._listed.get(container, (now - self._every, ()))
        if now - listed_at < self._every:
            return found
        group = self._groups.find(pod, container, now)
        found = () if group is None else tuple(sorted(_processes(group)))[:MAX_PROCESSES]
        if group is not None and not found and not group.is_dir():
            self._groups.forget(container)
        self._listed[container] = (now, found)
        return found

    def keep(self, containers: set[str]) -> None:
        """Forget all other containers."""
        self._groups.keep(containers)
        self._listed = {name: listed for name, listed in self._listed.items() if name in containers}


def _processes(group: Path) -> set[int]:
    """Return the processes of a group and of those within it."""
    found: set[int] = set()
    for folder, below, _ in os.walk(group):
        try:
            lines = (Path(folder) / "cgroup.procs").read_text(errors="replace").split()
        except OSError:
            below.clear()
            continue
        found.update(pid for line in lines if _PID.fullmatch(line) and (pid := int(line)) > 0)
        if len(found) > MAX_PROCESSES:
            break
    return found


def _accounting(root: Path) -> Path:
    names = ("cpuacct", "cpu,cpuacct", "cpuacct,cpu")
    return next((root / name for name in names if (root / name).is_dir()), root)


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
