"""What a run gave: its steps, summaries and timeline, as the report shows them and `compare` reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from simgpu.loadtest.measurements.bench import Summary
from simgpu.loadtest.running.timeline import TimelineSample


class CaseResult(msgspec.Struct, rename="camel"):
    """A phase step, or one measurement of a step."""

    name: str
    seconds: float = 0.0
    errors: list[str] = []
    skipped: str = ""  # why nothing was measured

    @property
    def verdict(self) -> str:
        """`passed`, `failed` or `skipped`."""
        return "failed" if self.errors else "skipped" if self.skipped else "passed"


class RunResult(msgspec.Struct, rename="camel"):
    """A whole run."""

    scenario: str
    identifier: str
    config: str  # path
    run: str  # id
    server: str
    started: float  # seconds since the epoch
    seconds: float = 0.0
    cases: list[CaseResult] = []
    errors: list[str] = []  # beside those of steps: set-up, teardown
    notes: list[str] = []
    summaries: list[Summary] = []
    timeline: list[TimelineSample] = []
    startup: list[tuple[float, float]] = []  # moment since the start, and seconds that a pod took
    steps: list[tuple[float, str]] = []  # moment since the start, and name of each step
    variables: dict[str, Any] = {}
    leftovers: list[str] = []
    pods: int = 0
    interrupted: bool = False

    @property
    def checks(self) -> str:
        """How many steps and measurements passed, for people."""
        verdicts = [case.verdict for case in self.cases]
        skipped = f", {verdicts.count('skipped')} skipped" if "skipped" in verdicts else ""
        return f"{verdicts.count('passed')} of {len(verdicts)} passed{skipped}"

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return bool(self.errors or self.leftovers or self.interrupted or any(case.errors for case in self.cases))
