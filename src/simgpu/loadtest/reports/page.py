"""The page for people: one file that needs nothing else."""

from __future__ import annotations

import datetime
import html
from collections.abc import Iterator, Sequence

import msgspec

from simgpu import units
from simgpu.loadtest.reports import contents, plots
from simgpu.loadtest.reports.comparison import ComparedFigure
from simgpu.loadtest.reports.plots import Curve
from simgpu.loadtest.running.results import RunResult

_STYLE = """
:root{--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--tint:#f6f8fa;--good:#1a7f37;--bad:#cf222e;
--c0:#0969da;--c1:#bf8700;--c2:#1a7f37;--c3:#8250df}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--paper:#0d1117;--tint:#151b23;
--good:#3fb950;--bad:#f85149;--c0:#4493f8;--c1:#d29922;--c2:#3fb950;--c3:#ab7df8}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1400px;padding:24px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}h1{font-size:24px;margin:0}h2{font-size:18px;margin:32px 0 8px}
p,li{overflow-wrap:anywhere}p{margin:4px 0}.soft{color:var(--soft)}
.verdict{font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}
.tiles{display:flex;flex-wrap:wrap;gap:12px;margin:16px 0}.tile{background:var(--tint);border:1px solid var(--line);
border-radius:6px;padding:8px 16px;min-width:130px}.tile b{display:block;font-size:20px}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr));gap:16px}
figure{margin:0;border:1px solid var(--line);border-radius:6px;padding:10px}figcaption{font-weight:600}
figcaption small{font-weight:400;color:var(--soft)}
svg{width:100%;height:auto;display:block}.grid{stroke:var(--line);stroke-width:.6}.mark{stroke:var(--soft);
stroke-width:.7;stroke-dasharray:3 3}.tick,.unit{font-size:12px;fill:var(--soft)}polyline{fill:none;stroke-width:1.6}
polyline.c0{stroke:var(--c0)}polyline.c1{stroke:var(--c1)}polyline.c2{stroke:var(--c2)}polyline.c3{stroke:var(--c3)}
.bar,.dot.c0{fill:var(--c0)}.dot{opacity:.55}.legend{display:flex;gap:16px;color:var(--soft)}
.legend i{display:inline-block;width:12px;height:3px;margin:0 6px 4px 0}
.k0{background:var(--c0)}.k1{background:var(--c1)}
.k2{background:var(--c2)}.k3{background:var(--c3)}.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}pre{background:var(--tint);padding:12px;overflow-x:auto;
border-radius:6px;white-space:pre-wrap}details summary{cursor:pointer;margin:12px 0}
"""


_PERCENTILES = 3  # that a row has: of half, of nine in ten, and of 99 in a hundred
_RATES = ("perc50", "perc90", "perc99")
_CLASSES = {"passed": "good", "failed": "bad", "skipped": "soft"}  # by verdict


def render(result: RunResult, compared: Sequence[ComparedFigure] = (), against: str = "") -> str:
    """Return the page of a run, with a comparison if there is one."""
    parts = [_head(result), _tiles(result)]
    problems = [*result.errors, *(f"{case.name}: {error}" for case in result.cases for error in case.errors)]
    if problems:
        parts.append("<h2>What failed</h2><ul>" + "".join(f"<li>{_text(line)}</li>" for line in problems) + "</ul>")
    explained = '<p class="soft">Dotted lines over time are the moments at which steps begin.</p>'
    parts.append(f'<h2>Over time</h2>{explained}<div class="plots">{"".join(_plots(result))}</div>')
    if compared:
        parts.append(_comparison(compared, against))
    parts += [_measurements(result), _steps(result), _details(result)]
    return document(f"{result.scenario}: load test", "".join(parts))


def document(title: str, body: str) -> str:
    """Return a whole page in the style of all reports."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _head(result: RunResult) -> str:
    when = datetime.datetime.fromtimestamp(result.started, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    verdict = '<span class="good">passed</span>'
    if result.failed:
        verdict = f'<span class="bad">{"interrupted" if result.interrupted else "failed"}</span>'
    return (
        f'<header><h1>{_text(result.scenario)} <span class="verdict">{verdict}</span></h1>'
        f'<p class="soft">{when}, {_text(units.format_seconds(result.seconds))}, run {_text(result.run)} on '
        f"{_text(result.server)}, from {_text(result.config)}</p></header>"
    )


def _tiles(result: RunResult) -> str:
    took = sorted(seconds for _, seconds in result.startup)

    def percentile(part: int) -> str:
        return units.format_seconds(took[max(0, -(-len(took) * part // 100) - 1)]) if took else "-"

    tiles = {
        "pods started": f"{result.pods:,}",
        "start-up p50": percentile(50),
        "start-up p99": percentile(99),
        "highest rate": f"{max((item.scheduled_per_second for item in result.timeline), default=0):,.0f} pods/s",
        "most GPUs in use": f"{max((item.gpus for item in result.timeline), default=0):,}",
        "checks": result.checks,
    }
    shown = "".join(f'<div class="tile"><b>{_text(value)}</b>{_text(name)}</div>' for name, value in tiles.items())
    return f'<div class="tiles">{shown}</div>'


def _plots(result: RunResult) -> list[str]:
    line, marks = result.timeline, [at for at, _ in result.steps]

    def over_time(*fields: tuple[str, str], gaps: bool = False) -> list[Curve]:
        """Return curves of samples; with `gaps`, zeros are moments without a value."""
        return [
            Curve(name, [(item.at, float(value)) for item in line if (value := getattr(item, field)) or not gaps])
            for field, name in fields
        ]

    took = [seconds for _, seconds in result.startup]
    return [
        plots.histogram("Start-up latency of pods", took, unit="s"),
        plots.chart(
            "Start-up latency over time",
            [Curve("pod", result.startup, "dots")],
            unit="s to start",
            marks=marks,
            until=result.seconds,
        ),
        plots.chart(
            "Pods",
            over_time(("pending", "pending"), ("running", "running"), ("done", "done")),
            unit="pods",
            marks=marks,
            until=result.seconds,
        ),
        plots.chart(
            "Resource claims",
            over_time(("claims", "all"), ("claims_allocated", "allocated")),
            unit="claims",
            marks=marks,
            until=result.seconds,
        ),
        plots.chart(
            "Scheduling rate",
            over_time(("scheduled_per_second", "scheduled")),
            unit="pods/s",
            marks=marks,
            until=result.seconds,
        ),
        plots.chart(
            "API latency of creations",
            over_time(("api_p50", "p50"), ("api_p99", "p99"), gaps=True),
            unit="ms",
            marks=marks,
            until=result.seconds,
        ),
        plots.chart("GPUs in use", over_time(("gpus", "GPUs")), unit="GPUs", marks=marks, until=result.seconds),
        plots.chart(
            "Objects created", over_time(("objects", "objects")), unit="objects", marks=marks, until=result.seconds
        ),
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: int = 1) -> str:
    """Return a table; columns from `numeric` on are numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place >= numeric else ''}>{cell}</{tag}>" for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{cells("th", heads)}</tr>{body}</table></div>'


def _measurements(result: RunResult) -> str:
    rows = [row for summary in result.summaries for row in _figures(summary.name, summary.content)]
    shown = [row for row in rows if not row[0].startswith(("Stateless", "Stateful"))]
    if not shown:
        return ""
    return "<h2>Measurements</h2>" + _table(["file", "metric", "p50", "p90", "p99", "unit"], shown, numeric=2)


def _figures(name: str, content: object) -> Iterator[list[str]]:
    """Yield rows of a summary: perf data, latencies in nanoseconds, or rates."""
    for item in contents.items(content) or ():
        if len(values := _shown(item.get("data"))) == _PERCENTILES:
            yield [_text(name), _text(contents.label(item)), *values, _text(str(item.get("unit", "")))]
    for label, inner in contents.fields(content).items():
        if len(values := _shown(inner, 1e6)) == _PERCENTILES:
            yield [_text(name), _text(label), *values, "ms"]
    rates = {key: f"{value:,.1f}" for key, value in contents.numbers(content)}
    if rates.keys() >= {*_RATES}:
        yield [_text(name), "scheduled", *(rates[key] for key in _RATES), "pods/s"]


def _shown(content: object, unit: float = 1.0) -> list[str]:
    return [f"{value / unit:,.1f}" for _, value in contents.numbers(content)]


def _comparison(compared: Sequence[ComparedFigure], against: str) -> str:
    rows = []
    for figure in compared:
        change = "-" if figure.change is None else f"{figure.change:+.1%}"
        rows.append([_text(figure.name), f"{figure.before:,.4g}", f"{figure.after:,.4g}", _text(figure.unit), change])
    head = f"<h2>Compared with {_text(against)}</h2>"
    return head + _table(["figure", "before", "now", "unit", "change"], rows)


def _steps(result: RunResult) -> str:
    rows = []
    for case in result.cases:
        verdict = f'<span class="{_CLASSES[case.verdict]}">{case.verdict}</span>'
        rows.append([_text(case.name), verdict, f"{case.seconds:.2f}"])
    return "<h2>Steps</h2>" + _table(["step", "", "seconds"], rows, numeric=2)


def _details(result: RunResult) -> str:
    variables = msgspec.json.format(msgspec.json.encode(result.variables)).decode()
    notes = "".join(f"<li>{_text(note)}</li>" for note in result.notes)
    shown = f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""
    return f"{shown}<details><summary>Variables</summary><pre>{_text(variables)}</pre></details>"
