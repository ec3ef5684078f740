"""Entry points of `fakedev-exporter` and `fakedev-workload`."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from simgpu import errors
from simgpu.cli import output
from simgpu.fakedev import flags

_log = functools.partial(click.echo, err=True)


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
        _log("\n".join([*filter(None, [str(error)]), flags.usage(program, known)]))
        sys.exit(2 if str(error) else 0)
    try:
        sys.exit(run(options))
    except (errors.SimgpuError, OSError) as error:
        _log(f"FATAL: {errors.explain(error) if isinstance(error, OSError) else error}")
        sys.exit(1)


def _run_exporter(options: flags.Options) -> int:
    from simgpu.fakedev import exporter

    settings = exporter.settings(options, _log)
    try:
        output.run(exporter.run(settings, _log))
    except click.Abort:
        _log("terminated")
    return 0


def _run_workload(options: flags.Options) -> int:
    from simgpu.fakedev import workload
    from simgpu.workloads import client

    document = workload.document(options, os.environ)
    code, message = output.run(client.run(document, Path(options["socket"])))
    _log(f"{code} {message}".strip())
    return code
