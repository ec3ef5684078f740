"""The picture of `simgpu simulate`: one SVG that needs nothing else, and an HTML page around it.

Both follow the reader's light or dark setting. The page adds the readings under the pointer and a table of the phases.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from simgpu.loadtest.reports import plots

_WIDTH, _LEFT, _RIGHT = 1080, 64, 170
_TOP, _PANEL, _GAP, _BOTTOM = 108, 128, 26, 44
_SPAN = _WIDTH - _LEFT - _RIGHT
_LETTER = 6.2  # width of a letter of a phase's name, in pixels
_MAX_READINGS = 2000  # which the page shows under the pointer
_CAP, _HEAT = 4, 32 | 64  # reasons in the mask `throttle`


class CardTimeline(msgspec.Struct, frozen=True):
    """The readings of one card: a value per moment in each column."""

    title: str
    times: Sequence[float]
    phases: Sequence[str]
    columns: dict[str, Sequence[float]]
    limits: dict[str, float]


class _Curve(msgspec.Struct, frozen=True):
    column: str
    name: str
    colour: str
    filled: bool = False
    scale: float = 1.0


class _Plot(msgspec.Struct, frozen=True):
    title: str
    unit: str
    curves: tuple[_Curve, ...]
    low: float = 0.0
    high: float | None = None


_PLOTS = (
    _Plot("Power", "W", (
        _Curve("power_instant_w", "instant", "faint"), _Curve("power_w", "mean of a second", "power", filled=True),
    )),
    _Plot("Temperature", "°C", (_Curve("temp_c", "GPU", "heat"), _Curve("mem_temp_c", "memory", "second")), low=20.0),
    _Plot("SM clock", "MHz", (_Curve("sm_mhz", "SM", "clock", filled=True),)),
    _Plot("Utilisation", "%", (
        _Curve("gpu_util", "GPU", "busy", filled=True), _Curve("mem_util", "memory interface", "second"),
    ), high=100.0),
    _Plot("Memory in use", "GiB", (_Curve("fb_used_mib", "used", "memory", filled=True, scale=1 / 1024),)),
)  # fmt: skip

_HEIGHT = _TOP + len(_PLOTS) * (_PANEL + _GAP) + _BOTTOM
_FLOOR = _HEIGHT - _BOTTOM - _GAP

_COLOURS = """
%s{--ink:#1b1f24;--soft:#5b6570;--line:#d8dee4;--paper:#ffffff;--tint:#f3f6f9;--power:#0b69d0;--faint:#a8cbf2;
--heat:#c9372c;--second:#b06f00;--clock:#6f42c1;--busy:#13743a;--memory:#0a7d8c;--cap:#d97706;--hot:#c9372c}
@media(prefers-color-scheme:dark){%s{--ink:#e8edf2;--soft:#98a2ad;--line:#353d47;--paper:#0e1217;--tint:#171d24;
--power:#58a6ff;--faint:#2c4f7c;--heat:#ff7b72;--second:#e3a63c;--clock:#b18cf5;--busy:#4bc46b;--memory:#4cc3d3;
--cap:#f0a33a;--hot:#ff7b72}}
"""
_STYLE = """
svg.timeline text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
svg.timeline .paper{fill:var(--paper)}svg.timeline .title{font-size:22px;font-weight:650}
svg.timeline .soft{fill:var(--soft);font-size:12px}
svg.timeline .name{font-size:13px;font-weight:600}svg.timeline .tick{fill:var(--soft);font-size:11px;
font-variant-numeric:tabular-nums}svg.timeline .grid{stroke:var(--line);stroke-width:1}
svg.timeline .band{fill:var(--tint)}svg.timeline .limit{stroke:var(--soft);stroke-width:1;stroke-dasharray:4 4}
svg.timeline polyline{fill:none;stroke-width:1.7;stroke-linejoin:round}svg.timeline .area{opacity:.13;stroke:none}
svg.timeline .cursor{stroke:var(--ink);stroke-width:1;opacity:.7}
"""
_PAGE_STYLE = """
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px}.plot{position:relative;overflow-x:auto}
svg.timeline{width:100%;min-width:720px;height:auto;display:block;outline-offset:2px}
#reading{position:absolute;pointer-events:none;background:var(--paper);border:1px solid var(--line);border-radius:8px;
padding:8px 12px;font-size:13px;box-shadow:0 4px 16px #0003;white-space:nowrap}
#reading table{border-collapse:collapse}#reading td{padding:0 0 0 12px;text-align:right}
#reading td:first-child{padding:0;text-align:left;color:var(--soft)}
h2{font-size:17px;margin:28px 0 8px}.scroll{overflow-x:auto}.phases{border-collapse:collapse;width:100%}
.phases th,.phases td{padding:6px 12px 6px 0;border-bottom:1px solid var(--line);text-align:right;
font-variant-numeric:tabular-nums;white-space:nowrap}.phases th{color:var(--soft);font-weight:500}
.phases th:first-child,.phases td:first-child{text-align:left}
"""
_SCRIPT = """
const data=JSON.parse(document.getElementById("readings").textContent),svg=document.querySelector("svg.timeline"),
box=document.getElementById("reading"),line=svg.querySelector(".cursor"),end=data.until;let at=-1;
function show(index){at=Math.max(0,Math.min(data.t.length-1,index));const x=data.left+data.t[at]/end*data.span;
line.setAttribute("x1",x);line.setAttribute("x2",x);line.removeAttribute("visibility");box.hidden=false;
box.replaceChildren();const head=document.createElement("b"),table=document.createElement("table");
head.textContent=`${data.t[at]} s · ${data.phases[data.phase[at]]}`;
for(const row of data.rows){const line=table.insertRow();line.insertCell().textContent=row.name;
line.insertCell().textContent=`${row.values[at].toLocaleString("en")} ${row.unit}`}box.append(head,table);
const scale=svg.clientWidth/data.width,left=x*scale;
box.style.left=`${left+box.offsetWidth+24>svg.clientWidth?left-box.offsetWidth-12:left+12}px`;box.style.top="12px"}
function hide(){box.hidden=true;line.setAttribute("visibility","hidden")}
svg.addEventListener("pointermove",event=>{const place=svg.getBoundingClientRect();
const t=((event.clientX-place.left)/place.width*data.width-data.left)/data.span*end;if(t<0||t>end)return hide();
let low=0,high=data.t.length-1;while(low<high){const half=low+high>>1;data.t[half]<t?low=half+1:high=half}show(low)});
svg.addEventListener("pointerleave",hide);svg.addEventListener("keydown",event=>{
const step={ArrowLeft:-1,ArrowRight:1,PageUp:-20,PageDown:20}[event.key];
if(event.key==="Escape")hide();else if(step){event.preventDefault();show(at+step)}});
"""


def svg(timeline: CardTimeline) -> str:
    """Return the picture as the text of an SVG file."""
    colours = _COLOURS % ("svg.timeline", "svg.timeline")
    return _picture(timeline, style=f"<style>{colours}{_STYLE}</style>")


def page(timeline: CardTimeline, totals: Sequence[dict[str, Any]]) -> str:
    """Return a page with the picture, the readings under the pointer, and a table of the phases."""
    title = html.escape(f"{timeline.title}: simulated load")
    colours = _COLOURS % (":root", ":root")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><style>{colours}{_STYLE}{_PAGE_STYLE}</style></head><body><main><div class="plot">'
        f'{_picture(timeline, focus=True)}<div id="reading" hidden></div></div><h2>Phases</h2>'
        f'<div class="scroll">{_table(totals)}</div></main>'
        f'<script type="application/json" id="readings">{_readings(timeline)}</script>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _picture(timeline: CardTimeline, *, style: str = "", focus: bool = False) -> str:
    until = _until(timeline)
    parts = [style, f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}"/>', _head(timeline)]
    parts += _bands(timeline, until)
    for index, plot in enumerate(_PLOTS):
        parts += _plot(timeline, plot, until, _TOP + index * (_PANEL + _GAP))
    parts += _across(until)
    parts.append(f'<line class="cursor" y1="{_TOP}" y2="{_FLOOR}" x1="0" x2="0" visibility="hidden"/>')
    label = html.escape(f"Power, temperature, clock, utilisation and memory of {timeline.title} over time")
    focusable = ' tabindex="0"' if focus else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{label}"{focusable}>{"".join(parts)}</svg>' + ("" if focus else "\n")
    )


def _until(timeline: CardTimeline) -> float:
    """The end of the time axis: a moment after the last one, because a reading stands for the time until the next."""
    times = timeline.times
    if len(times) < 2:
        return max(1.0, times[-1] if times else 1.0)
    return times[-1] + (times[-1] - times[-2])


def _head(timeline: CardTimeline) -> str:
    energy = timeline.columns["energy_mj"]
    spent = (energy[-1] - energy[0]) / 1e6 if energy else 0.0
    about = f"{_until(timeline):g} simulated seconds · {spent:,.1f} kJ · simgpu simulate"
    return (
        f'<text class="title" x="{_LEFT}" y="36">{html.escape(timeline.title)}</text>'
        f'<text class="soft" x="{_LEFT}" y="57">{html.escape(about)}</text>'
    )


def _bands(timeline: CardTimeline, until: float) -> Iterator[str]:
    """Yield a band for every second phase, and the names of those that have room."""
    starts = [0, *(i for i in range(1, len(timeline.phases)) if timeline.phases[i] != timeline.phases[i - 1])]
    for number, start in enumerate(starts if timeline.phases else ()):
        left = _x(timeline.times[start], until)
        right = _x(timeline.times[starts[number + 1]] if number + 1 < len(starts) else until, until)
        if number % 2 == 0:
            size = f'x="{left:.1f}" y="{_TOP - 30}" width="{right - left:.1f}" height="{_FLOOR - _TOP + 30}"'
            yield f'<rect class="band" {size}/>'
        name = timeline.phases[start]
        if len(name) * _LETTER + 8 < right - left:
            yield f'<text class="soft" text-anchor="middle" x="{(left + right) / 2:.1f}" y="{_TOP - 16}">'
            yield f"{html.escape(name)}</text>"


def _plot(timeline: CardTimeline, plot: _Plot, until: float, top: float) -> Iterator[str]:
    series = {curve: [value * curve.scale for value in timeline.columns[curve.column]] for curve in plot.curves}
    peak = plot.high if plot.high is not None else max(max(values, default=0.0) for values in series.values())
    low = plot.low if all(min(values, default=0.0) >= plot.low for values in series.values()) else 0.0
    steps = [low + step for step in plots.ticks(max(peak - low, 1e-9), 4)]

    def up(value: float) -> float:
        return top + 14 + (_PANEL - 14) * (1 - (value - steps[0]) / (steps[-1] - steps[0]))

    for step in steps:
        line = f'x1="{_LEFT}" x2="{_LEFT + _SPAN}" y1="{up(step):.1f}" y2="{up(step):.1f}"'
        yield f'<line class="grid" {line}/><text class="tick" text-anchor="end" x="{_LEFT - 8}" '
        yield f'y="{up(step) + 4:.1f}">{step:,g}</text>'
    yield from _limit(timeline.limits.get(plot.title), steps, up)
    for curve, values in series.items():
        placed = _thinned([(_x(t, until), up(value)) for t, value in zip(timeline.times, values, strict=True)])
        yield from _line(curve, placed, up(steps[0]))
    if plot.title == "Power":
        yield from _throttled(timeline, until, up(steps[0]))
    yield from _key(plot, series, top)


def _limit(limit: float | None, steps: Sequence[float], up: Any) -> Iterator[str]:
    if limit is not None and steps[0] < limit <= steps[-1]:
        line = f'x1="{_LEFT}" x2="{_LEFT + _SPAN}" y1="{up(limit):.1f}" y2="{up(limit):.1f}"'
        yield f'<line class="limit" {line}/><text class="tick" text-anchor="end" '
        yield f'x="{_LEFT + _SPAN - 6}" y="{up(limit) - 5:.1f}">'
        yield f"limit {limit:,g}</text>"


def _line(curve: _Curve, placed: Sequence[tuple[float, float]], floor: float) -> Iterator[str]:
    if not placed:
        return
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    if curve.filled:
        ends = f"{placed[-1][0]:.1f},{floor:.1f} {placed[0][0]:.1f},{floor:.1f}"
        yield f'<polygon class="area" style="fill:var(--{curve.colour})" points="{path} {ends}"/>'
    yield f'<polyline style="stroke:var(--{curve.colour})" points="{path}"/>'


def _throttled(timeline: CardTimeline, until: float, floor: float) -> Iterator[str]:
    """Yield marks along the axis while the clock was held back."""
    masks = timeline.columns["throttle"]
    reasons = ["hot" if int(mask) & _HEAT else "cap" if int(mask) & _CAP else "" for mask in masks]
    start = 0
    for index in range(1, len(reasons) + 1):
        if index < len(reasons) and reasons[index] == reasons[start]:
            continue
        if reasons[start]:
            left = _x(timeline.times[start], until)
            right = _x(timeline.times[index] if index < len(reasons) else until, until)
            size = f'x="{left:.1f}" y="{floor + 2:.1f}" width="{max(right - left, 0.6):.1f}" height="4"'
            about = "held back by heat" if reasons[start] == "hot" else "held back by the power cap"
            yield f'<rect style="fill:var(--{reasons[start]})" {size}><title>{about}</title></rect>'
        start = index
    for number, (reason, about) in enumerate((("cap", "at the power cap"), ("hot", "slowed by heat"))):
        if reason in reasons:
            y = floor - 14 * number
            yield f'<rect style="fill:var(--{reason})" x="{_LEFT + _SPAN + 16}" y="{y - 1:.1f}" width="14" height="4"/>'
            yield f'<text class="soft" x="{_LEFT + _SPAN + 36}" y="{y + 5:.1f}">{about}</text>'


def _key(plot: _Plot, series: dict[_Curve, list[float]], top: float) -> Iterator[str]:
    """Yield the plot's name above it, and its curves with their highest values beside it."""
    yield f'<text class="name" x="{_LEFT}" y="{top + 6}">{plot.title} '
    yield f'<tspan class="soft" style="font-weight:400">{plot.unit}</tspan></text>'
    for number, (curve, values) in enumerate(reversed(series.items())):
        y = top + 34 + 32 * number
        yield f'<line style="stroke:var(--{curve.colour});stroke-width:3" x1="{_LEFT + _SPAN + 16}" '
        yield f'x2="{_LEFT + _SPAN + 30}" y1="{y - 4}" y2="{y - 4}"/>'
        yield f'<text x="{_LEFT + _SPAN + 36}" y="{y}" style="font-size:12px">{curve.name}</text>'
        yield f'<text class="soft" x="{_LEFT + _SPAN + 36}" y="{y + 14}">max {max(values, default=0.0):,.0f}</text>'


def _across(until: float) -> Iterator[str]:
    for t in plots.ticks(until, 10):
        if t <= until:
            yield f'<text class="tick" text-anchor="middle" x="{_x(t, until):.1f}" y="{_FLOOR + 18}">{t:,g}</text>'
    yield f'<text class="soft" text-anchor="end" x="{_LEFT + _SPAN}" y="{_FLOOR + 38}">seconds</text>'


def _x(t: float, until: float) -> float:
    return _LEFT + t / until * _SPAN


def _thinned(placed: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return points with the lowest and highest of each pixel, which look the same as all of them."""
    if len(placed) <= 4 * _SPAN:
        return placed
    columns: dict[int, list[tuple[float, float]]] = {}
    for point in placed:
        columns.setdefault(int(point[0]), []).append(point)
    kept: list[tuple[float, float]] = []
    for points in columns.values():
        extremes = {min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1]), points[0], points[-1]}
        kept += sorted(extremes)
    return kept


def _readings(timeline: CardTimeline) -> str:
    """Return the values that the page shows under the pointer, as JSON that is safe inside a page."""
    step = -(-len(timeline.times) // _MAX_READINGS)
    names = list(dict.fromkeys(timeline.phases))
    rows = [
        {
            "name": f"{plot.title}{f', {curve.name}' if len(plot.curves) > 1 else ''}", "unit": plot.unit,
            "values": [round(value * curve.scale, 1) for value in timeline.columns[curve.column][::step]],
        }
        for plot in _PLOTS for curve in reversed(plot.curves)
    ]  # fmt: skip
    data = {
        "width": _WIDTH, "left": _LEFT, "span": _SPAN, "until": _until(timeline), "phases": names, "rows": rows,
        "t": [round(t, 3) for t in timeline.times[::step]],
        "phase": [names.index(name) for name in timeline.phases[::step]],
    }  # fmt: skip
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _table(totals: Sequence[dict[str, Any]]) -> str:
    """The means of each phase."""
    columns = (
        ("GPU", "gpu_util", "{:.0f} %"), ("Memory", "mem_util", "{:.0f} %"), ("Power", "power_w", "{:.1f} W"),
        ("Temperature", "temp_c", "{:.1f} °C"), ("SM clock", "sm_mhz", "{:,.0f} MHz"),
        ("Energy", "energy_j", "{:,.0f} J"),
    )  # fmt: skip
    head = "".join(f'<th scope="col">{name}</th>' for name, _, _ in columns)
    lines = [
        f"<tr><td>{html.escape(str(entry['phase']))}</td>"
        + "".join(f"<td>{form.format(entry[key])}</td>" for _, key, form in columns)
        + "</tr>"
        for entry in totals
    ]
    return f'<table class="phases"><tr><th scope="col">Phase</th>{head}</tr>{"".join(lines)}</table>'
