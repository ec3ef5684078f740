"""Progress on standard error: a line per item, updated in place on a terminal, else plain lines."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING

import click
import rich.console
import rich.live
import rich.markup
import rich.spinner
import rich.table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simgpu.cluster.progress import Progress

_PLAIN_SECONDS = 10.0


class Live:
    """One line per item, updated in place: a spinner while it works, a tick when it is done."""

    def __init__(self, live: rich.live.Live) -> None:
        self._live = live
        self._rows: dict[str, tuple[bool, str]] = {}

    def update(self, item: str, doing: str) -> None:
        """Show what the item is doing."""
        self._show(item, (False, doing))

    def done(self, item: str, result: str) -> None:
        """Tick the item off."""
        self._show(item, (True, result))

    def note(self, line: str) -> None:
        """Print the line above the items."""
        self._live.console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def _show(self, item: str, row: tuple[bool, str]) -> None:
        self._rows[item] = row
        self._live.start()  # only now: without an item it would print an empty line
        self._live.update(self._table())

    def _table(self) -> rich.table.Table:
        table = rich.table.Table.grid(padding=(0, 1))
        for item, (finished, text) in self._rows.items():
            mark = "[green]✓[/]" if finished else rich.spinner.Spinner("dots", style="cyan")
            table.add_row(mark, item, f"[dim]{rich.markup.escape(text)}[/]")
        return table


class Plain:
    """One line per change; changes of numbers only, at most one in ten seconds."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}

    def update(self, item: str, doing: str) -> None:
        """Print the line unless only its numbers have changed within ten seconds."""
        shape, now = re.sub(r"[\d.]+", "0", doing.split(" /", maxsplit=1)[0]), time.monotonic()
        if shape.startswith("downloading"):
            shape = "downloading"
        before, when = self._last.get(item, ("", 0.0))
        if shape == before and now - when < _PLAIN_SECONDS:
            return
        self._last[item] = (shape, now)
        click.echo(f"  {item}: {doing}", err=True)

    def done(self, item: str, result: str) -> None:
        """Print the result."""
        self._last.pop(item, None)
        click.echo(f"  {item}: {result}", err=True)

    def note(self, line: str) -> None:
        """Print the line."""
        click.echo(f"  {line}", err=True)


@contextlib.contextmanager
def shown() -> Iterator[Progress]:
    """Yield the progress display that fits standard error."""
    console = rich.console.Console(stderr=True)
    if not console.is_terminal:
        yield Plain()
        return
    live = rich.live.Live(console=console, refresh_per_second=10)
    try:
        yield Live(live)
    finally:
        live.stop()
