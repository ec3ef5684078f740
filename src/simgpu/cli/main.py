"""The command group, and its exit codes: 0 success, 1 failure, 2 invalid input, 130 interrupted."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

import simgpu
from simgpu import errors
from simgpu.cli import (
    agent,
    catalog,
    cleanup,
    controller,
    executing,
    exporter,
    loadtest,
    local,
    machine,
    running,
    simulate,
    top,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(simgpu.__version__, "-V", "--version", message="simgpu %(version)s")
def root() -> None:
    """GPUs that are not there: simulate a GPU fleet for Kubernetes, on this machine.

    \b
      simgpu up --nodes 10 --gpus h200:8     a cluster with ten simulated GPU nodes
      simgpu kubectl get nodes               use it
      simgpu dashboard                       watch it in a browser
      simgpu top                             or in the terminal
      simgpu status                          show its status
      simgpu down                            stop and delete it

    Exit codes: 0 success, 1 failure, 2 invalid input.
    """


for command in (
    local.up,
    local.down,
    local.status,
    local.dashboard,
    top.top,
    local.kubeconfig,
    local.kubectl,
    executing.execute,
    local.logs,
    catalog.catalog,
    simulate.simulate,
    exporter.exporter,
    exporter.workload,
    running.run,
    controller.controller,
    agent.agent,
    loadtest.loadtest,
    controller.config,
    cleanup.cleanup,
    machine.tools,
    machine.doctor,
):
    root.add_command(command)


def main() -> NoReturn:
    """Run the command and exit with its exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str], group: click.Group = root, *, name: str = "simgpu") -> int:
    """Run the command and return its exit code. Errors that users can act on are printed without a traceback."""
    try:
        answer = group.main(arguments, prog_name=name, standalone_mode=False)
    except click.Abort:
        click.echo("Interrupted.", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except errors.SimgpuError as error:
        click.echo(f"Error: {errors.printable(str(error))}", err=True)  # it may quote a server
        return error.exit_code
    except OSError as error:
        click.echo(f"Error: {errors.printable(errors.explain(error))}", err=True)
        return 1
    return answer if isinstance(answer, int) else 0
