"""Plots as SVG text: lines, points and bars over axes with round numbers. No script is needed to see them."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 22, 16, 34
_MAX_POINTS = 1500
_PERCENT_PLACES = {50: -2, 90: 10, 99: 22}
Points = Sequence[tuple[float, float]]


class Curve(msgspec.Struct, frozen=True):
    """Points of one colour, with a name for the legend."""

    name: str
    points: Points
    style: str = "line"  # or "dots"


class _Scale(msgspec.Struct, frozen=True):
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return round(self.start + (value - self.low) / span * (self.end - self.start), 1)


def ticks(high: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to at least `high`."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * part for part in (1, 2, 2.5, 5, 10) if power * part >= raw * 0.999)
    return [step * index for index in range(math.ceil(high / step - 1e-9) + 1)]


def chart(
    title: str,
    curves: Sequence[Curve],
    *,
    unit: str,
    across: str = "s",
    marks: Sequence[float] = (),
    until: float = 0.0,
) -> str:
    """Return a figure of curves over time, at least until a moment; `marks` are moments of interest."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        return _figure(title, unit, '<p class="none">no data</p>')
    xs, ys = ticks(max(*(x for x, _ in points), *marks, until)), ticks(max(y for _, y in points))
    across_scale, up_scale = _scales(xs, ys)
    parts = [_axes(xs, ys, (across_scale, up_scale), across)]
    top, bottom = up_scale(ys[-1]), up_scale(ys[0])
    parts += [
        f'<line class="mark" x1="{across_scale(x)}" x2="{across_scale(x)}" y1="{top}" y2="{bottom}"/>'
        for x in marks
        if xs[0] <= x <= xs[-1]
    ]
    for number, curve in enumerate(curves):
        placed = [(across_scale(x), up_scale(y)) for x, y in _thinned(curve.points)]
        parts.append(_dots(placed, number) if curve.style == "dots" else _line(placed, number))
    names = [curve.name for curve in curves] if len(curves) > 1 else []
    return _figure(title, unit, _svg(title, "".join(parts)), _legend(names))


def histogram(title: str, values: Sequence[float], *, unit: str, bars: int = 40) -> str:
    """Return a figure of how often values occur, with the usual percentiles marked."""
    if not values:
        return _figure(title, unit, '<p class="none">no data</p>')
    ordered = sorted(values)
    xs = ticks(ordered[-1])
    width = xs[-1] / bars
    counts = [0] * bars
    for value in ordered:
        counts[min(bars - 1, int(value / width))] += 1
    ys = ticks(max(counts))
    across_scale, up_scale = _scales(xs, ys)
    parts = [_axes(xs, ys, (across_scale, up_scale), unit)]
    for index, count in enumerate(counts):
        if count:
            left, right, top = across_scale(index * width), across_scale((index + 1) * width), up_scale(count)
            low, high = index * width, (index + 1) * width
            parts.append(
                f'<rect class="c0 bar" x="{left}" y="{top}" width="{max(0.5, right - left - 1):.1f}" '
                f'height="{up_scale(0) - top:.1f}"><title>{low:.3g} to {high:.3g} {unit}: {count}</title></rect>'
            )
    for percent in (50, 90, 99):
        value = ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
        x = across_scale(value)
        parts.append(f'<line class="mark" x1="{x}" x2="{x}" y1="{_TOP}" y2="{up_scale(0)}"/>')
        parts.append(f'<text class="tick" x="{x + 3}" y="{_TOP + _PERCENT_PLACES[percent]}">p{percent}</text>')
    return _figure(title, "pods", _svg(title, "".join(parts)))


def _scales(xs: Sequence[float], ys: Sequence[float]) -> tuple[_Scale, _Scale]:
    return _Scale(xs[0], xs[-1], _LEFT, WIDTH - _RIGHT), _Scale(ys[0], ys[-1], HEIGHT - _BOTTOM, _TOP)


def _axes(xs: Sequence[float], ys: Sequence[float], scales: tuple[_Scale, _Scale], across: str) -> str:
    parts = []
    for y in ys:
        place = scales[1](y)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{place}" y2="{place}"/>'
            f'<text class="tick" text-anchor="end" x="{_LEFT - 6}" y="{place + 4}">{_number(y)}</text>'
        )
    low = HEIGHT - _BOTTOM + 15
    parts += [f'<text class="tick" text-anchor="middle" x="{scales[0](x)}" y="{low}">{_number(x)}</text>' for x in xs]
    end = f'x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}"'
    parts.append(f'<text class="unit" text-anchor="end" {end}>{html.escape(across)}</text>')
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _thinned(points: Points) -> Points:
    step = -(-len(points) // _MAX_POINTS)
    return points[::step] if step > 1 else points


def _line(placed: Points, number: int) -> str:
    path = " ".join(f"{x},{y}" for x, y in placed)
    return f'<polyline class="c{number}" points="{path}"/>'


def _dots(placed: Points, number: int) -> str:
    return "".join(f'<circle class="c{number} dot" cx="{x}" cy="{y}" r="2.2"/>' for x, y in placed)


def _svg(title: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">{body}</svg>'


def _legend(names: Sequence[str]) -> str:
    items = "".join(f'<span><i class="k{n}"></i>{html.escape(name)}</span>' for n, name in enumerate(names))
    return f'<p class="legend">{items}</p>' if names else ""


def _figure(title: str, unit: str, body: str, legend: str = "") -> str:
    caption = f"{html.escape(title)} <small>{html.escape(unit)}</small>"
    return f"<figure><figcaption>{caption}</figcaption>{body}{legend}</figure>"
