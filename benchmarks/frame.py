"""How a figure is measured, printed and kept.

Machines differ and swing, so a figure is never a number alone: ours and a baseline run in alternating chunks
of the same run, the medians are compared, and the ratio is what counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

RESULTS = Path(__file__).parent / "results.json"


class Figure(msgspec.Struct, frozen=True):
    """One measured figure; `ratio` is value over baseline."""

    name: str
    value: float
    baseline: float
    unit: str
    against: str
    better: str = "lower"

    @property
    def ratio(self) -> float:
        """Value over baseline."""
        return self.value / self.baseline


async def alternate(
    ours: Callable[[], Awaitable[float]], baseline: Callable[[], Awaitable[float]], *, chunks: int
) -> tuple[float, float]:
    """Medians of both, measured in turns so that whatever slows the machine slows both."""
    pairs = [(await ours(), await baseline()) for _ in range(chunks)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def show(figure: Figure) -> None:
    """One line for people."""
    print(
        f"{figure.name:<28} {figure.value:>12,.4g} {figure.unit:<14} "
        f"baseline {figure.baseline:>12,.4g} ({figure.against})  ratio {figure.ratio:.3f} ({figure.better} is better)",
        flush=True,
    )


def keep(figure: Figure) -> None:
    """Write the figure into results.json, leaving the others there."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[figure.name] = {
        "value": round(figure.value, 6),
        "baseline": round(figure.baseline, 6),
        "ratio": round(figure.ratio, 4),
        "unit": figure.unit,
    }
    RESULTS.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
