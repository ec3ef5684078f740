"""What a soak found, as data: written as JSON, and what the page and the documentation quote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from soak import plan


class Sample(msgspec.Struct, frozen=True):
    """What was seen at a moment of the run.

    By process: its id, MiB and open files. Further mean lags in seconds, and counts so far.
    """

    at: float
    pids: dict[str, int]
    memory: dict[str, float]
    files: dict[str, int]
    event_lag: float
    write_lag: float
    restarts: int
    faults: int


class Occurrence(msgspec.Struct, frozen=True):
    """A fault, an edit or a check: when it began, and how long it took with what had to be repaired."""

    at: float
    kind: str
    seconds: float


class Growth(msgspec.Struct, frozen=True):
    """Memory in MiB and open files of a process, at rest, and the most at any time.

    First and last are those of one process: of all that had a name, the one that was at rest over the longest time.
    It was warm at its first rest that was long enough after its very first one, if it had two such rests.
    """

    memory_first: float
    memory_last: float
    memory_most: float
    files_first: int
    files_last: int
    files_most: int
    seconds: float = 0.0  # from first to last; nothing is known of growth in none
    memory_warm: float | None = None  # when caches and pools had their size; None if the process did not live so long


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `failures` is empty if everything held."""

    seed: int
    seconds: float  # of the whole run
    cores: int
    nodes: int
    gpus: int
    failures: list[str]
    faults: dict[str, int]
    impossible: dict[str, str]  # faults that this machine does not allow, and why
    effects: dict[str, int] = {}  # of some kinds of faults, those that were seen to act
    edits: dict[str, int]
    proxy: dict[str, int]
    restarts: dict[str, int]
    load: dict[str, int]
    peak: int  # pods created in the busiest second
    kubelet_pods: int = 0  # of the nodes with an agent
    checks: int
    fresh_starts: int
    settle_seconds: list[float]  # of each check: until everything agreed
    passed_over: int = 0  # pods that KWOK did not start until they were changed
    overfilled: int = 0  # nodes at checks, to which the scheduler had bound pods with more GPUs than there are
    scrapes: int
    counters: int  # that were seen to grow
    falls: int
    leaked: dict[str, int]
    growth: dict[str, Growth]
    occurrences: list[Occurrence]
    samples: list[Sample]

    @property
    def kills(self) -> int:
        """How many processes were killed by a fault, fresh starts of checks not counted."""
        return sum(count for kind, count in self.faults.items() if kind in plan.KILLS)

    @property
    def inputs(self) -> int:
        """Pods created and deleted, edits, and workload documents."""
        counted = ("pods", "claims", "pods deleted", "workload documents")
        return sum(self.load.get(name, 0) for name in counted) + sum(self.edits.values()) + 2 * self.kubelet_pods


def figures(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the figures of a run, each with its name."""
    made = result.load.get("pods", 0) + result.load.get("claims", 0)
    yield "seconds", f"{result.seconds:,.0f}"
    yield "nodes and GPUs", f"{result.nodes:,} and {result.gpus:,}"
    yield "pods", f"{made:,}, of which {result.load.get('claims', 0):,} with a DRA claim"
    yield "pods a second", f"{made / result.seconds:,.1f}, and {result.peak:,} in the busiest second"
    yield "pods on the nodes with an agent", f"{result.kubelet_pods:,}"
    yield "workloads on the exporter's socket", f"{result.load.get('workload documents', 0):,} until their end"
    yield "inputs", f"{result.inputs:,}"
    yield "edits of the topology and of nodes", _listed(result.edits)
    yield "kills", f"{result.kills:,}: " + _listed({k: n for k, n in result.faults.items() if k in plan.KILLS})
    others = {kind: count for kind, count in result.faults.items() if kind not in plan.KILLS}
    yield "other faults", f"{sum(others.values()):,}: " + _listed(others)
    yield "requests through the proxy", _listed(result.proxy)
    yield "checks at rest", f"{result.checks:,}, {result.fresh_starts:,} of them against a fresh start"
    yield "longest time to rest", f"{max(result.settle_seconds, default=0.0):.1f} s"
    yield "pods that KWOK passed over, until they were changed", f"{result.passed_over:,}"
    yield "nodes at checks with more pods than GPUs, by the scheduler", f"{result.overfilled:,}"
    yield "scrapes", f"{result.scrapes:,}, in which {result.counters:,} counters grew"
    yield "memory at rest, in MiB", _grown(result.growth)
    yield "counters that fell", f"{result.falls:,}"
    yield "leaked", _listed(result.leaked)
    if result.failures:
        yield "what did not hold", "; ".join(result.failures)
    if result.impossible:
        yield "not possible here", "; ".join(f"{kind} ({why})" for kind, why in result.impossible.items())


def _grown(growth: Mapping[str, Growth]) -> str:
    """Return the memory of SimGPU's processes at their first rest, when they were warm, and at their last."""
    shown = []
    for name, found in growth.items():
        if name in plan.OURS:
            warm = "" if found.memory_warm is None else f"{found.memory_warm:.0f} warm, "
            last = f"{found.memory_last:.0f} after {found.seconds:,.0f} s"
            shown.append(f"{name} {found.memory_first:.0f} first, {warm}{last}")
    return "; ".join(shown) or "none"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"
