"""How commands run and what they print: JSON for scripts, tables for people."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


def output_option(function: F) -> F:
    """`-o json` for scripts."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="How to print the result.",
    )(function)


def bin_dir_option(function: F) -> F:
    """`--bin-dir` for commands that need Kubernetes programs."""
    return click.option(
        "--bin-dir",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Take the Kubernetes programs from here first; then PATH, the cache, a build with Go.",
    )(function)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_rows(rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as their widest cell; nothing is cut, whatever the terminal. Styled cells are fine."""
    widths = [max(len(click.unstyle(row[column])) for row in rows) for column in range(len(rows[0]))] if rows else []
    for row in rows:
        cells = (cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def run(work: Coroutine[Any, Any, T], *, fast: bool = False) -> T:
    """Run asynchronous work; Ctrl-C and SIGTERM cancel it and let it clean up. `fast` takes uvloop if it is there."""

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - we are in one
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:  # nohup, say
                continue
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        with asyncio.Runner(loop_factory=_fast_loop() if fast else None) as runner:
            return runner.run(main())
    except asyncio.CancelledError:
        raise click.Abort from None


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def program() -> str:
    """How the user calls us, to be used in what we tell them to type."""
    called = sys.argv[0]
    found = shutil.which("simgpu")
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "simgpu"
    if os.path.basename(called) == "simgpu":  # noqa: PTH119 - text, not a file to open
        with contextlib.suppress(ValueError):
            return min(os.path.relpath(called), called, key=len)
    return "simgpu"
