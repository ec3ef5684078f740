"""How many inputs each target has had: counted after each round, kept in the tree, and quoted in the documentation.

Runs count below `build/fuzz` until their figures are kept, so that a run that was stopped can be resumed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.fuzz.target import ROOT

RESULTS = Path(__file__).with_name("results.json")  # of the runs that the documentation quotes
DOCUMENT = ROOT / "docs" / "concepts" / "reliability.md"
_BEGIN, _END = "<!-- fuzz -->\n", "<!-- /fuzz -->"
_COUNTED = "tried.json"
_MILLION = 1_000_000


class Figures(msgspec.Struct):
    """Inputs by target, and how often one broke a target."""

    inputs: dict[str, int] = {}
    failures: dict[str, int] = {}

    def add(self, name: str, inputs: int, *, failed: int = 0) -> None:
        """Count a round of a target."""
        self.inputs[name] = self.inputs.get(name, 0) + inputs
        if failed:
            self.failures[name] = self.failures.get(name, 0) + failed


def load(path: Path) -> Figures:
    """Return figures in a file; without one there are none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except FileNotFoundError:
        return Figures()


def counted(work: Path) -> Figures:
    """Return what runs counted since the last figures were kept."""
    return load(work / _COUNTED)


def count(work: Path, figures: Figures) -> None:
    """Write what runs counted."""
    work.mkdir(parents=True, exist_ok=True)
    _write(work / _COUNTED, figures)


def keep(work: Path, names: list[str]) -> None:
    """Keep in the tree what runs counted of these targets, in place of what was kept before, and quote it."""
    found = counted(work)
    chosen = {name: found.inputs[name] for name in sorted(names) if name in found.inputs}
    if not chosen:
        return
    kept = Figures(chosen, {name: count for name, count in found.failures.items() if name in chosen})
    _write(RESULTS, kept)
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    DOCUMENT.write_text(f"{before}{_BEGIN}{table(kept)}{_END}{rest.partition(_END)[2]}")


def table(figures: Figures) -> str:
    """Return the figures as a table in Markdown."""
    tried = figures.inputs
    fewest = min(tried, key=lambda name: tried[name])
    reached = sum(count >= _MILLION for count in tried.values())
    rows = {
        "targets": f"{len(tried)}",
        "inputs": f"{sum(tried.values()):,}",
        "targets with a million inputs and more": f"{reached}",
        "fewest inputs": f"{tried[fewest]:,} (`{fewest}`)",
        "inputs that broke a target, before it was fixed": f"{sum(figures.failures.values())}",
    }
    lines = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"| figure | all runs counted |\n| --- | --- |\n{lines}\n"


def _write(path: Path, figures: Figures) -> None:
    scratch = path.with_suffix(".part")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(figures, order="deterministic")) + b"\n")
    scratch.replace(path)
