"""CPU usage of containers, from their cgroups."""

from __future__ import annotations

from pathlib import Path

from simgpu.node.cgroups import ContainerGroups


class Meter:
    """Measures CPU usage per container, between one reading and the next."""

    def __init__(self, root: Path) -> None:
        self._groups = ContainerGroups(root)
        self._before: dict[str, tuple[float, float]] = {}

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
        self._groups.keep(containers)
        self._before = {name: seen for name, seen in self._before.items() if name in containers}

    def _seconds(self, pod: str, container: str, now: float) -> float | None:
        group = self._groups.find(pod, container, now)
        if group is None:
            return None
        try:
            return _read(group, unified=self._groups.unified)
        except (OSError, ValueError, OverflowError, LookupError, StopIteration):
            self._groups.forget(container)
            return None


def _read(group: Path, *, unified: bool) -> float:
    if not unified:
        return int((group / "cpuacct.usage").read_text()) / 1e9
    lines = (group / "cpu.stat").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("usage_usec ")).split()[1]) / 1e6
