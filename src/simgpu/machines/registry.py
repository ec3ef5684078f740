"""Running workloads of an engine: the name, place and pod of each, and the callback for its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from simgpu.machines import profiles
from simgpu.machines.users import PodRef
from simgpu.sim import activity, engine

Ended = Callable[[int, str], None]  # exit code, and message


class WorkloadGroup(msgspec.Struct, frozen=True, gc=False):
    """Cards or parts of cards of one model, as the engine numbers them.

    On each, the workload has the compute instance of this number, which has that share of the compute, from 0 to 1.
    """

    handles: tuple[int, ...]
    compute: int = 0
    share: float = 1.0


class RunningWorkload(msgspec.Struct, frozen=True, gc=False):
    """A workload by name, and the cards or parts of cards that it runs on, as the engine numbers them.

    One that spans several models is several for the engine, which start and end `together`. `pid` is the process that
    asked for it; 0 where it came from the configuration or from a pod's annotations. `compute` is the number of the
    compute instance on each MIG instance.
    """

    name: str
    handles: tuple[int, ...]
    pod: PodRef | None
    ended: Ended | None
    together: tuple[int, ...]
    pid: int = 0
    compute: int = 0


class WorkloadRegistry:
    """Running workloads by number, and the pods on each card in the order in which they came."""

    def __init__(self, on: engine.Engine) -> None:
        self.running: dict[int, RunningWorkload] = {}
        self._engine = on
        self._pods: dict[int, dict[int, PodRef]] = {}

    def start(
        self,
        profile: activity.Profile,
        groups: Iterable[WorkloadGroup],
        *,
        pod: PodRef | None = None,
        ended: Ended | None = None,
        pid: int = 0,
        owner: str = "",
        age: float = 0.0,
    ) -> list[int]:
        """Start a workload, begun `age` seconds ago, on groups of cards; return a number for each.

        All groups start, or none. `ended` is called when all have ended, with the exit code and a message. The costs of
        all workloads of a named `owner` are limited.
        """
        numbers: list[int] = []
        listed = list(groups)
        try:
            for group in listed:
                doing = profile if group.share == 1 else profiles.narrowed(profile, group.share)
                numbers.append(self._engine.add_workload(doing, group.handles, owner=owner, age=age))
        except BaseException:
            self.drop(numbers)
            raise
        together = tuple(numbers)
        for number, group in zip(numbers, listed, strict=True):
            self.running[number] = RunningWorkload(
                profile.name, group.handles, pod, ended, together, pid, group.compute
            )
            if pod is not None:
                for handle in group.handles:
                    self._pods.setdefault(handle, {})[number] = pod
        return numbers

    def drop(self, numbers: Sequence[int]) -> bool:
        """End workloads without calling `ended`; return whether one of them was a pod's."""
        named = False
        for number in tuple(numbers):
            self._engine.end_workload(number)
            work = self._forget(number)
            named |= work is not None and work.pod is not None
        return named

    def finish(self, outcomes: Iterable[engine.Outcome]) -> None:
        """Remove workloads that the engine has ended, and call their `ended`."""
        for outcome in outcomes:
            work = self._forget(outcome.workload)
            if work is None:
                continue
            others = [number for number in work.together if number in self.running]
            if outcome.exit_code:
                self.drop(others)
                others = []
            if not others and work.ended is not None:
                work.ended(outcome.exit_code, outcome.message)

    def _forget(self, number: int) -> RunningWorkload | None:
        work = self.running.pop(number, None)
        if work is not None and work.pod is not None:
            for handle in work.handles:
                there = self._pods[handle]
                del there[number]
                if not there:
                    del self._pods[handle]
        return work

    def first_pods(self) -> Iterator[tuple[int, PodRef]]:
        """Yield the handle of each card or part with workloads of pods, and the pod that was first."""
        for handle, there in self._pods.items():
            yield handle, next(iter(there.values()))
