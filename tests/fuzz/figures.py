"""How many inputs each target has had: counted after each round, kept in the tree, and quoted in the documentation.

Runs count below `build/fuzz` until their figures are kept, so that a run that was stopped can be resumed. What is kept
adds up, whichever clone it comes from.
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

    def take(self, name: str) -> tuple[int, int]:
        """Remove a target; return its inputs, and how many broke it."""
        return self.inputs.pop(name, 0), self.failures.pop(name, 0)


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


def before(work: Path) -> Figures:
    """Return what all runs so far counted: those that were kept, and those since."""
    found, since = load(RESULTS), counted(work)
    for name, inputs in since.inputs.items():
        found.add(name, inputs, failed=since.failures.get(name, 0))
    return found


def keep(work: Path, names: list[str]) -> None:
    """Move what runs counted of these targets into the tree, where it adds to what is there, and quote the sums."""
    kept, found = load(RESULTS), counted(work)
    chosen = [name for name in names if name in found.inputs]
    if not chosen:
        return
    for name in chosen:
        inputs, failed = found.take(name)
        kept.add(name, inputs, failed=failed)
    _write(RESULTS, kept)
    count(work, found)
    start, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    DOCUMENT.write_text(f"{start}{_BEGIN}{table(kept)}{_END}{rest.partition(_END)[2]}")


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
