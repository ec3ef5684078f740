"""What a soak is asked to do."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

_SHORT_SECONDS = 120.0  # below this a run is a test: a smaller fleet, and less time between faults


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a soak, with the sizes that follow from its length."""

    seconds: float  # of load and faults; starting the cluster and the last check are extra
    seed: int
    out: Path  # folder of the report
    nodes: int = 0  # with whole GPUs; 0 chooses by the length, as for all below
    claim_nodes: int = 0  # whose GPUs are allocated through claims
    rate: float = 0.0  # pods a second
    peak: float = 0.0  # pods a second, for a moment
    pause: float = 0.0  # mean seconds between faults

    @property
    def short(self) -> bool:
        """Whether this is a test rather than a run for figures."""
        return self.seconds < _SHORT_SECONDS

    @property
    def seconds_with_kills(self) -> float:
        """When the rest of the run begins, in which SimGPU's processes live, so that growth shows."""
        return self.seconds * 2 / 3

    def complete(self) -> Settings:
        """Return the settings with every size chosen."""
        sizes = {"nodes": 64, "claim_nodes": 4, "rate": 12.0, "peak": 260.0, "pause": 6.0}
        if self.short:
            sizes = {"nodes": 16, "claim_nodes": 2, "rate": 6.0, "peak": 120.0, "pause": 0.5}
        chosen = {name: getattr(self, name) or value for name, value in sizes.items()}
        return msgspec.structs.replace(self, **chosen)

    def chance(self, purpose: str) -> random.Random:
        """Return a generator for one purpose: what one part draws does not change what the others draw."""
        return random.Random(f"{self.seed} {purpose}")
