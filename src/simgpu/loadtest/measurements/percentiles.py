"""Percentiles as ClusterLoader2 takes them: the element at ceil(n * p / 100) - 1 of the sorted list."""

from __future__ import annotations

import math
from collections.abc import Sequence

PERCENTS = (50, 90, 99)


def at(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of a sorted list; 0 if it is empty."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def of(values: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles by the names that perfdash looks for."""
    ordered = sorted(values)
    return {f"Perc{percent}": at(ordered, percent) for percent in PERCENTS}


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles of seconds, in milliseconds."""
    return {name: round(value * 1000, 3) for name, value in of(values).items()}
