"""Bars, sparklines and curves out of characters, and texts that fit."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

_LEVELS = " ▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille character: by column, from the top

SOFT, LINE, INK, TITLE, BAD, WARN = "grey58", "grey35", "default", "bold", "bold red", "yellow"


class ColourScale(NamedTuple):
    """Colours from low to high, each from a value on."""

    steps: tuple[tuple[float, str], ...]

    def colour(self, value: float) -> str:
        """Return the colour of a value."""
        found = self.steps[0][1]
        for start, colour in self.steps:
            if value >= start:
                found = colour
        return found


BUSY = ColourScale(((0, "grey46"), (1, "#3b82c4"), (35, "#2fa7a0"), (65, "#4fb862"), (90, "#8fce3c")))
POWER = ColourScale(((0, "grey46"), (15, "#8f7fd6"), (60, "#b478d8"), (90, "#e08a4a"), (99, "#e5534b")))
MEMORY = ColourScale(((0, "grey46"), (1, "#4f8fd9"), (90, "#d9a441"), (98, "#e5534b")))
HEAT = ColourScale(((0, "#4f8fd9"), (45, "#4fb862"), (65, "#d9a441"), (80, "#e5534b")))
SCALES = {"utilization": BUSY, "power": POWER, "memory": MEMORY, "temperature": HEAT}


def clean(text: str) -> str:
    """Return a text without characters that a terminal would act on."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def fit(text: str, width: int) -> str:
    """Return a text in exactly so many cells; one that is too long ends with an ellipsis."""
    text = clean(text)
    if cell_len(text) > width:
        return set_cell_size(text, max(0, width - 1)) + "…" if width > 0 else ""
    return set_cell_size(text, width)


def styled(text: str, style: str = "") -> Text:
    """Return a text in a style that what is appended does not take over."""
    return Text().append(text, style)


def bar(share: float, width: int, colour: str) -> Text:
    """Return a bar that is full at a share of 1."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    full, half = divmod(halves, 2)
    found = Text("━" * full + ("╸" if half else ""), colour)
    return found.append("─" * (width - full - half), LINE)


def spark(values: Sequence[float], width: int, *, high: float, colour: str) -> Text:
    """Return the last values as a line of blocks, the newest at the right."""
    shown = values[-width:] if width > 0 else []
    scale = 8 / high if high > 0 else 0.0
    blocks = "".join(_LEVELS[max(1, min(8, round(value * scale)))] for value in shown)
    return Text(blocks.rjust(width), colour)


def cell(value: float, fault: int) -> tuple[str, str]:
    """Return the block of a GPU and its colour."""
    if fault:
        return ("✗", BAD)
    return (_LEVELS[max(1, min(8, round(value * 8 / 100)))], BUSY.colour(value))


def curve(values: Sequence[float | None], width: int, height: int, *, low: float, high: float) -> list[str]:
    """Return the lines of a curve of the last values in dots, two across and four down in each character."""
    lines = [[0] * width for _ in range(height)]
    span = (high - low) or 1.0
    shown = list(values)[-width * 2 :] if width > 0 else []
    start, before = width * 2 - len(shown), None
    for number, value in enumerate(shown):
        if value is None:
            before = None
            continue
        level = round(max(0.0, min(1.0, (value - low) / span)) * (height * 4 - 1))
        other = level if before is None else before
        first, last = min(level, other), max(level, other)
        for dot in range(first, last + 1) if last - first > 1 else (level,):
            down = height * 4 - 1 - dot
            lines[down // 4][(start + number) // 2] |= _DOTS[(start + number) % 2][down % 4]
        before = level
    return ["".join(chr(0x2800 + mask) if mask else " " for mask in line) for line in lines]


def number(value: float) -> str:
    """Return a number with separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"  # an integer may have no float


def watts(value: float) -> str:
    """Return a power in the unit that fits."""
    if value >= 1e6:
        return f"{value / 1e6:,.2f} MW"
    return f"{value / 1e3:,.1f} kW" if value >= 1e4 else f"{value:,.0f} W"


def mebibytes(value: float) -> str:
    """Return an amount of memory in the unit that fits."""
    if value >= 1 << 20:
        return f"{value / (1 << 20):,.1f} TiB"
    return f"{value / 1024:,.1f} GiB" if value >= 1024 else f"{value:,.0f} MiB"


def joules(value: float) -> str:
    """Return an energy in watt hours."""
    hours = value / 3600
    if hours >= 1e6:
        return f"{hours / 1e6:,.2f} MWh"
    return f"{hours / 1e3:,.1f} kWh" if hours >= 1e3 else f"{hours:,.0f} Wh"


def clock(time: float) -> str:
    """Return the local time of day; dashes for what is no time."""
    try:
        return datetime.datetime.fromtimestamp(time).astimezone().strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "--:--:--"


def age(seconds: float) -> str:
    """Return a time span in its largest units."""
    if seconds < 0:
        return "-"
    for unit, size, below in (("d", 86400, 3600), ("h", 3600, 60), ("m", 60, 1)):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            second = {"d": "h", "h": "m", "m": "s"}[unit]
            return f"{whole}{unit}{rest // below}{second}"
    return f"{int(seconds)}s"
