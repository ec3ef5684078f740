"""`simgpu cleanup`: take everything of SimGPU out of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu.cli import options, output

_SHOWN = 20


@click.command()
@options.kubeconfig
@options.namespace
@click.option("--dry-run", is_flag=True, help="Print what would be removed, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--wait", type=click.FloatRange(0, 3600), default=30.0, show_default=True, metavar="SECONDS",
    help="Time for running controllers and agents to remove what they put on nodes, files included.",
)  # fmt: skip
@options.log_level
def cleanup(kubeconfig: Path | None, namespace: str, dry_run: bool, yes: bool, wait: float) -> int:
    """Remove labels, capacity and objects of SimGPU from a cluster.

    Objects are ConfigMaps, leases, ResourceSlices, and DeviceClasses that the controller created. Recording rules in
    Run:ai's namespace stay.

    Running controllers and agents are asked to do it themselves, and then wait; only agents reach files on their nodes.
    `helm uninstall` calls this before it deletes the release. What Helm made is left to it.
    """
    from simgpu.app import cleaning
    from simgpu.kube import kubeconfig as config

    target = config.load(kubeconfig)
    found = output.run(cleaning.find(target, namespace))
    lines = found.lines()
    for line in lines if dry_run else lines[:_SHOWN]:
        click.echo(line)
    if len(lines) > _SHOWN and not dry_run:
        click.echo(f"and {len(lines) - _SHOWN} more")
    if dry_run:
        return 0
    if not found:
        click.echo(f"Nothing of SimGPU in namespace {namespace} and on nodes.")
        return 0
    if not yes:
        click.confirm("Remove all of these?", abort=True)
    left = output.run(cleaning.clean(target, namespace, wait=wait, report=lambda line: click.echo(line, err=True)))
    for line in left.lines():
        click.echo(f"still there: {line}", err=True)
    if not left:
        click.echo("Removed.")
    return 1 if left else 0
