"""Shows something again and again: in place on a terminal, else whenever it has changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import click
import rich.console
import rich.live
import rich.text

Show = Callable[[str], None]


async def follow(read: Callable[[], Awaitable[str]], show: Show, *, seconds: float) -> None:
    """Show what `read` returns, with a pause of `seconds` in between, until cancelled or `read` raises."""
    while True:
        show(await read())
        await asyncio.sleep(seconds)


@contextlib.contextmanager
def shown(*, in_place: bool) -> Iterator[Show]:
    """Yield what shows a text: in the place of the one before on a terminal, else as new lines if it is another."""
    console = rich.console.Console()
    if not (in_place and console.is_terminal):
        yield _changes()
        return
    with rich.live.Live(console=console, auto_refresh=False) as live:
        yield lambda text: live.update(rich.text.Text.from_ansi(text, no_wrap=True), refresh=True)


def _changes() -> Show:
    last: list[str] = []

    def show(text: str) -> None:
        if last != [text]:
            last[:] = [text]
            click.echo(text)

    return show
