"""Histograms of a metrics page: their increase between two pages, and quantiles of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from simgpu import errors

MAX_LINES = 2_000_000
_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? +([^ ]+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Buckets = dict[float, float]  # cumulative counts by upper bound


def lines(page: str, family: str) -> Iterator[tuple[dict[str, str], float]]:
    """Yield labels and value of each series of a family."""
    for number, line in enumerate(page.splitlines()):
        if number > MAX_LINES:
            raise errors.SimgpuError("a metrics page of too many lines")
        if not line.startswith(family):
            continue
        found = _LINE.match(line)
        if found is None or found[1] != family:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield _labels(found[2] or ""), value


def _labels(text: str) -> dict[str, str]:
    found = {}
    place = 0
    while (label := _LABEL.match(text, place)) is not None:
        found[label[1]] = label[2]
        place = label.end() + 1  # and the comma
    return found


def read(page: str, family: str, where: Mapping[str, str] | None = None) -> Buckets:
    """Return the buckets of a histogram, summed over all series that have these labels."""
    wanted = (where or {}).items()
    return summed(series for series in lines(page, f"{family}_bucket") if wanted <= series[0].items())


def summed(series: Iterable[tuple[Mapping[str, str], float]]) -> Buckets:
    """Return the buckets of series with these labels and values; those without a bound are left out."""
    found: Buckets = {}
    for labels, value in series:
        bound = _bound(labels.get("le", ""))
        if bound is not None:
            found[bound] = found.get(bound, 0.0) + value
    return found


def _bound(text: str) -> float | None:
    """Return the upper bound of a bucket; None if no value can be below it."""
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound > -math.inf else None  # and it is a number


def increase(before: Buckets, after: Buckets) -> Buckets:
    """Return what was counted between two pages; a restart in between makes the later one count alone."""
    grown = {bound: value - before.get(bound, 0.0) for bound, value in after.items()}
    return after if any(value < 0 for value in grown.values()) else grown


def total(buckets: Buckets) -> float:
    """Return how many values were counted."""
    return buckets.get(math.inf, max(buckets.values(), default=0.0))


def quantile(buckets: Buckets, fraction: float) -> float:
    """Return a quantile as Prometheus computes it: by interpolation within a bucket; 0 without values.

    It is not finite if counts or bounds are so large that their sums are not.
    """
    count = total(buckets)
    if count <= 0:
        return 0.0
    rank = count * fraction
    low, below = 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= rank:
            if math.isinf(bound):
                return low
            within = buckets[bound] - below
            return low + (bound - low) * ((rank - below) / within if within else 1.0)
        low, below = bound, buckets[bound]
    return low
