"""Runs commands and prints results: JSON for scripts, tables for people."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")


def json_text(value: object) -> str:
    """Return a value as JSON for people, too."""
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def json_line(value: object) -> str:
    """Return a value as one line of JSON."""
    return msgspec.json.encode(value).decode()


def print_json(value: object) -> None:
    """Print a value as JSON."""
    click.echo(json_text(value))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table; columns are as wide as their widest cell, never truncated. Cells may be styled."""
    widths = [max(len(click.unstyle(row[column])) for row in rows) for column in range(len(rows[0]))] if rows else []
    lines = (
        "  ".join(cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Print a table, if it has rows."""
    if rows:
        click.echo(table(rows))


def run(work: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
    """Run a coroutine; Ctrl-C and SIGTERM cancel it and let it clean up. `fast` uses uvloop if it is installed."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a task
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:  # such as with nohup
                continue
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        with asyncio.Runner(loop_factory=_fast_loop() if fast else None) as runner:
            return runner.run(main())
    except asyncio.CancelledError:
        raise click.Abort from None


def serve(work: Coroutine[Any, Any, None], *, fast: bool = False) -> None:
    """Run a service until it is interrupted, which is a success."""
    try:
        run(work, fast=fast)
    except click.Abort:
        click.echo("Stopped.", err=True)


def ready(address: str, page: str = "metrics") -> None:
    """Print the URL of the metrics, or of another page."""
    click.echo(f"Ready: http://{address}/{page}", err=True)


def dashboard(address: str) -> None:
    """Print the URL of the live page: one that a browser can open, also where the server listens on all addresses."""
    host, _, port = address.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - it is not listened on
    click.echo(f"Dashboard: http://{here}:{port}/", err=True)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def program() -> str:
    """Return the command as the user typed it, for hints."""
    called = sys.argv[0]
    found = shutil.which("simgpu")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "simgpu"
    if os.path.basename(called) == "simgpu":  # noqa: PTH119 - text, not a file to open
        with contextlib.suppress(ValueError):
            return min(os.path.relpath(called), called, key=len)
    return "simgpu"
