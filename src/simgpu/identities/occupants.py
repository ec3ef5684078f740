"""Whose workloads are on each device or part of one, and which pod is named there: of several, the first."""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.identities.view import Pod


class Occupants:
    """Pods by place and by workload, in the order of the workloads. One that comes or goes costs as much as it has."""

    def __init__(self) -> None:
        self._places: dict[int, dict[int, Pod]] = {}

    def add(self, workload: int, pod: Pod, places: Iterable[int]) -> None:
        """A workload is the last on these places, by handle."""
        for place in places:
            self._places.setdefault(place, {})[workload] = pod

    def remove(self, workload: int, places: Iterable[int]) -> None:
        """A workload is gone."""
        for place in places:
            there = self._places[place]
            del there[workload]
            if not there:
                del self._places[place]

    def named(self) -> dict[int, Pod]:
        """The pod that each place is named after, by handle."""
        return {place: next(iter(there.values())) for place, there in self._places.items()}
