"""Entry points of `fakedev-exporter` and `fakedev-workload`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from simgpu import errors
from simgpu.cli import output
from simgpu.fakedev import flags


def exporter() -> NoReturn:
    """Run fakedev-exporter."""
    _main("fakedev-exporter", flags.EXPORTER, _run_exporter)


def workload() -> NoReturn:
    """Run fakedev-workload."""
    _main("fakedev-workload", flags.WORKLOAD, _run_workload)


def _main(program: str, known: flags.Known, run: Callable[[flags.Options], int]) -> NoReturn:
    try:
        options = flags.parse(sys.argv[1:], known)
    except flags.FlagError as error:
        click.echo("\n".join([*filter(None, [str(error)]), flags.usage(program, known)]), err=True)
        sys.exit(error.code)
    try:
        sys.exit(run(options))
    except errors.SimgpuError as error:
        click.echo(f"FATAL: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        click.echo(f"FATAL: {errors.explain(error)}", err=True)
        sys.exit(1)


def _run_exporter(options: flags.Options) -> int:
    from simgpu.fakedev import exporter

    settings = exporter.settings(options, warn=_warn)
    try:
        output.run(
            exporter.run(settings, ready=lambda address: click.echo(f"listening on {address}", err=True), warn=_warn)
        )
    except click.Abort:
        click.echo("terminated", err=True)
    return 0


def _warn(message: str) -> None:
    click.echo(f"WARN: {message}", err=True)


def _run_workload(options: flags.Options) -> int:
    from simgpu.fakedev import workload
    from simgpu.workloads import client

    document = workload.document(options, os.environ)
    code, message = output.run(client.run(document, Path(options["socket"])))
    click.echo(f"{code} {message}".strip(), err=True)
    return code
