"""The report of a soak: figures as text, JSON, and a page of plots that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import msgspec

from simgpu.loadtest.reports import page as frame
from simgpu.loadtest.reports import plots
from simgpu.loadtest.reports.plots import Curve
from soak import plan
from soak.results import Result, figures

RESULTS = Path(__file__).with_name("results.json")  # of the run that the documentation quotes
DOCUMENT = Path(__file__).parent.parent / "docs" / "concepts" / "reliability.md"
_BEGIN, _END = "<!-- soak -->\n", "<!-- /soak -->"


def lines(result: Result) -> list[str]:
    """Return the figures, and what failed."""
    shown = [f"{name:<36} {value}" for name, value in figures(result)]
    return [*shown, *(f"FAILED {problem}" for problem in result.failures)]


def table(result: Result) -> str:
    """Return the figures as a table in Markdown."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in figures(result))
    return f"| figure | seed {result.seed}, {result.cores} cores |\n| --- | --- |\n{rows}\n"


def write(result: Result, out: Path) -> None:
    """Write `soak.json` and `soak.html` into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "soak.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    (out / "soak.html").write_text(render(result))


def keep(result: Result) -> None:
    """Keep the figures in the tree, without what was sampled over time, and quote them in the documentation."""
    brief = msgspec.structs.replace(result, samples=[], occurrences=[])
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(brief)) + b"\n")
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    DOCUMENT.write_text(f"{before}{_BEGIN}{table(result)}{_END}{rest.partition(_END)[2]}")


def load() -> Result:
    """Return the figures that were kept."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Result)


def render(result: Result) -> str:
    """Return the page."""
    verdict = '<span class="bad">failed</span>' if result.failures else '<span class="good">held</span>'
    tiles = {
        "kills": f"{result.kills:,}",
        "other faults": f"{sum(result.faults.values()) - result.kills:,}",
        "pods in the busiest second": f"{result.peak:,}",
        "inputs": f"{result.inputs:,}",
        "counters that fell": f"{result.falls:,}",
        "leaked": f"{sum(result.leaked.values()):,}",
    }
    shown = "".join(f'<div class="tile"><b>{value}</b>{_text(name)}</div>' for name, value in tiles.items())
    rows = "".join(f"<tr><td>{_text(name)}</td><td>{_text(value)}</td></tr>" for name, value in figures(result))
    failed = "".join(f"<li>{_text(problem)}</li>" for problem in result.failures)
    body = (
        f'<header><h1>Soak <span class="verdict">{verdict}</span></h1><p class="soft">seed {result.seed}, '
        f"{result.seconds:,.0f} s, {result.cores} cores</p></header>"
        f'<div class="tiles">{shown}</div>{f"<h2>What failed</h2><ul>{failed}</ul>" if failed else ""}'
        '<h2>Over time</h2><p class="soft">Dotted lines are checks.</p>'
        f'<div class="plots">{"".join(_plots(result))}</div>'
        f'<h2>Figures</h2><div class="scroll"><table>{rows}</table></div>'
    )
    return frame.document("Soak", body)


def _plots(result: Result) -> list[str]:
    checks = [item.at for item in result.occurrences if item.kind == "check"]

    def chart(title: str, curves: Sequence[Curve], unit: str) -> str:
        return plots.chart(title, curves, unit=unit, marks=checks, until=result.seconds)

    def by_process(title: str, field: str, names: Sequence[str], unit: str) -> str:
        curves = [
            Curve(
                name,
                [(item.at, float(found[name])) for item in result.samples if name in (found := getattr(item, field))],
            )
            for name in names
        ]
        return chart(title, curves, unit)

    def over_time(field: str) -> list[tuple[float, float]]:
        return [(item.at, float(getattr(item, field))) for item in result.samples]

    others = plan.CONTROL_PLANE[:2], plan.CONTROL_PLANE[2:]
    return [
        by_process("Memory of SimGPU", "memory", plan.OURS, "MiB"),
        by_process("Open files of SimGPU", "files", plan.OURS, "files"),
        chart(
            "Lag of the controller",
            [Curve("events", over_time("event_lag")), Curve("writes", over_time("write_lag"))],
            "s",
        ),
        chart(
            "Faults and restarts",
            [Curve("faults", over_time("faults")), Curve("restarts", over_time("restarts"))],
            "so far",
        ),
        *(by_process("Memory of the control plane", "memory", names, "MiB") for names in others),
        chart(
            "Time that each fault took, with the repair",
            [Curve("fault", [(item.at, item.seconds) for item in result.occurrences if item.kind != "check"], "dots")],
            "s",
        ),
    ]


def _text(value: object) -> str:
    return html.escape(str(value))
