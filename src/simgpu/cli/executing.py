"""`simgpu exec`: nvidia-smi as a pod on a fake node would see it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpu.cli import options, output, running, sources

if TYPE_CHECKING:
    from simgpu.app.executing import PodCommand


@click.command("exec")
@click.argument("pod")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-n", "--namespace", metavar="NS", help="Namespace of the pod.  [default: the kubeconfig's, or default]")
@click.option("-c", "--container", default="", metavar="NAME", help="Container.  [default: the first one with GPUs]")
@click.option(
    "--name", default=sources.LOCAL_NAME, show_default=True, metavar="NAME", help="Name of the local cluster."
)
@click.option("--kubeconfig", type=options.PATH, metavar="FILE", help="Kubeconfig of a cluster with SimGPU's chart.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current one]")
@click.option("--url", metavar="URL", help="URL of a controller.")
def execute(
    pod: str, command: tuple[str, ...], namespace: str | None, container: str, name: str, kubeconfig: Path | None,
    context: str | None, url: str | None,
) -> int:  # fmt: skip
    """Run nvidia-smi as in a pod on a fake node, which has no processes that could run it.

    \b
      simgpu exec my-pod -- nvidia-smi
      simgpu exec my-pod -n team -c main -- nvidia-smi -q -d MEMORY,UTILIZATION
      kubectl simgpu exec my-pod -- nvidia-smi dmon

    It shows the GPUs or MIG instances that the container has, and what the controller simulates of them at this moment;
    the container is their one process. Nothing can be set. In pods on real nodes, use kubectl exec.

    The exit code is that of nvidia-smi; 1 if the pod is not found, 126 if it has no GPUs, does not run or is on a
    real node, 127 for any other command.
    """
    from simgpu.app.executing import PodCommand

    source = sources.chosen(url, name, kubeconfig, context=context)
    asked = PodCommand(namespace or source.namespace, pod.removeprefix("pod/"), container, command)
    return running.exit_as(output.run(_run(source, asked)))


async def _run(source: sources.ServerSource, asked: PodCommand) -> int:
    from simgpu.app import executing

    async with source.open() as feed:
        return await executing.run_in_pod(asked, feed)
