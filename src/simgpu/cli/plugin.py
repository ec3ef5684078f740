"""`kubectl simgpu`: the commands that read a cluster, as a plugin of kubectl, on the cluster that kubectl uses."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

import simgpu
from simgpu.cli import executing, main, sources, top


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(simgpu.__version__, "-V", "--version", message="kubectl-simgpu %(version)s")
@click.pass_context
def plugin(context: click.Context) -> None:
    """Watch simulated GPUs of the cluster that kubectl uses, and run nvidia-smi as in its pods.

    \b
      kubectl simgpu exec my-pod -- nvidia-smi
      kubectl simgpu top

    The cluster is that of KUBECONFIG or ~/.kube/config, and has SimGPU's chart or is a local one of `simgpu up`.
    """
    context.obj = sources.KubectlPlugin()


plugin.add_command(executing.execute)
plugin.add_command(top.top)


def run() -> NoReturn:
    """Run the plugin and exit with its exit code."""
    sys.exit(main.run(sys.argv[1:], plugin, name="kubectl simgpu"))
