"""`simgpu run`: runs a command with simulated GPUs."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from pathlib import Path
from typing import Any

import click

from simgpu import errors, vocabulary
from simgpu.cli import catalog, exporter, options

_RUNNING = 3.0  # seconds that a load without a start of its own has run when the command starts


@click.command(context_settings={"allow_interspersed_args": False})
@options.cards(maximum=vocabulary.MAX_PAGES, config="File that lists the devices instead, as for `simgpu exporter`.")
@click.option(
    "--load",
    metavar="PERCENT|SHAPE|FILE",
    help="Load on all GPUs: a percentage, a shape such as training, or a load profile.  [default: none]",
)
@options.seed()
@options.interval(0.1, minimum=0.01, maximum=10)
@click.option(
    "--no-settings", is_flag=True, help="Reject changes of power limits, clocks and MIG, as without root privileges."
)
@options.catalog
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(  # noqa: PLR0913 - one for each option
    model: str | None, count: int | None, config: Path | None, load: str | None, seed: int, interval: float,
    no_settings: bool, files: tuple[Path, ...], command: tuple[str, ...],
) -> int:  # fmt: skip
    """Run a command that sees simulated GPUs through NVML and nvidia-smi.

    \b
      simgpu run -- nvidia-smi
      simgpu run --model h200 --count 8 -- nvidia-smi topo -m
      simgpu run --model a100 --count 2 --load training -- python train.py

    Nothing is installed and no privileges are needed. The load of --load runs beside the command, and NVML lists this
    process with its memory; the command can add workloads with `simgpu workload`. Power limits, clocks and
    MIG instances can be changed, and the cards follow.

    The exit code is that of the command; 126 if it could not be started, 127 if it was not found.
    """
    from simgpu.app import running
    from simgpu.catalog import models

    loaded = models.load([*catalog.user_files(), *files])
    name = platform.node()
    settings = running.RunSettings(
        command=command,
        devices=exporter.find_devices(loaded, model=model, count=count, config=config, node=name),
        hostname=name,
        load=None if load is None else _load(load),
        running_for=0.0 if load is None or Path(load).is_file() else _RUNNING,
        seed=seed,
        interval=interval,
        settable=not no_settings,
    )
    return exit_as(asyncio.run(running.run_command(settings)))


def exit_as(code: int) -> int:
    """Return the exit code of a command; if a signal ended it, end by the same, so that our parent sees it."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        return 128 - code
    return code


def _load(text: str) -> dict[str, Any]:
    from simgpu.catalog import shapes

    known = shapes.load()
    if text in known:
        return {"name": text, "phases": [{"seconds": 86400, "shape": text}], "repeat": 0}
    if text.isdecimal() and int(text) <= 100:
        return {"name": "load", "profile": [{"load": int(text), "seconds": 0}], "repeat": 0}
    if Path(text).is_file():
        return exporter.read_document(Path(text))
    raise errors.InputError(
        "--load", f"{text!r}: must be a percentage from 0 to 100, a file, or one of: {', '.join(known)}"
    )
