"""Durations as Go writes them: 30s, 1h30m, 500ms, 1.5h."""

from __future__ import annotations

import math
import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_MAX_LENGTH = 64
MAX_SECONDS = 30 * 24 * 3600.0


def parse(value: object) -> float:
    """Return the seconds of a duration that is not negative; ValueError for anything else."""
    text = value if isinstance(value, str) else "0s" if value == 0 and not isinstance(value, bool) else ""
    if text == "0":
        return 0.0
    seconds, place = 0.0, 0
    while len(text) <= _MAX_LENGTH and (part := _PART.match(text, place)) is not None:
        seconds += float(part[1]) * _UNITS[part[2]]
        place = part.end()
    if place == 0 or place != len(text):
        raise ValueError("must be a duration such as 30s, 1h30m or 500ms")
    if not math.isfinite(seconds) or seconds > MAX_SECONDS:
        raise ValueError("must not be longer than 30 days")
    return seconds


def text(seconds: float) -> str:
    """Return a duration in Go's form, to the millisecond."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    return f"{round(seconds, 3):g}s"
