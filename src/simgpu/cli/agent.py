"""`simgpu agent`: simulated GPUs on a real node."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from simgpu import errors
from simgpu.cli import output
from simgpu.cli.controller import NAMESPACE

RESERVATIONS = "runai-reservation"


@click.command()
@click.option(
    "--node", default=lambda: os.environ.get("NODE_NAME"), show_default="NODE_NAME", help="The node that this is."
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The cluster; KUBECONFIG or the pod's own without it.",
)
@click.option(
    "--namespace",
    default=lambda: os.environ.get("POD_NAMESPACE", NAMESPACE),
    show_default=NAMESPACE,
    help="Where the topology and the nodes' views are.",
)
@click.option("--listen", default=":9400", show_default=True, metavar="HOST:PORT", help="Metrics and health.")
@click.option("--identity", default="dcgm", show_default=True, metavar="NAME|FILE", help="The exporter to mimic.")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    default="/var/lib/simgpu",
    show_default=True,
    metavar="DIR",
    help="What pods get mounted; in a container, a folder of the node at the same place.",
)
@click.option(
    "--plugin-dir",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/device-plugins",
    show_default=True,
    metavar="DIR",
    help="Where the kubelet looks for device plugins.",
)
@click.option(
    "--pod-resources",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet/pod-resources/kubelet.sock",
    show_default=True,
    metavar="PATH",
    help="Where the kubelet says which pod has which device.",
)
@click.option(
    "--reservation-namespace",
    default=lambda: os.environ.get("RESOURCE_RESERVATION_NAMESPACE", RESERVATIONS),
    show_default=RESERVATIONS,
    help="Where Run:ai's pods are that hold GPUs for others; RESOURCE_RESERVATION_NAMESPACE says so too.",
)
@click.option(
    "--runai-dir",
    type=click.Path(path_type=Path),
    default="/var/lib/runai",
    show_default=True,
    metavar="DIR",
    help="What pods have of GPUs that they share, for Run:ai's container toolkit.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 60),
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    help="Time between steps.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="The same seed, the same cards."
)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def agent(  # noqa: PLR0913 - one for each option
    node: str | None, kubeconfig: Path | None, namespace: str, listen: str, identity: str, state_dir: Path,
    plugin_dir: Path, pod_resources: Path, reservation_namespace: str, runai_dir: Path, interval: float, seed: int,
    log_level: str,
) -> None:  # fmt: skip
    """Make the node that it runs on a GPU node: pods ask for nvidia.com/gpu and get simulated GPUs.

    The node gets GPUs by the label run.ai/simulated-gpu-node-pool and the pools in ConfigMap `topology`, by its name
    there, or by the annotation simgpu.dev/gpus, such as h200:8. Needs to be root on the node, beside its kubelet.
    """
    from simgpu.app import agent as agents
    from simgpu.identities import identity as known
    from simgpu.kube import kubeconfig as config
    from simgpu.web import server

    if not node:
        raise errors.InputError("--node", "say which node this is, here or in NODE_NAME")
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = agents.AgentSettings(
        target=config.load(kubeconfig),
        node=node,
        namespace=namespace,
        listen=server.parse_address(listen, field="--listen"),
        identity=known.load(identity),
        state=state_dir.absolute(),
        plugins=plugin_dir.absolute(),
        pod_resources=pod_resources.absolute(),
        reservations=reservation_namespace,
        runai=runai_dir.absolute(),
        seed=seed,
        interval=interval,
    )
    try:
        output.run(agents.run_agent(settings, lambda address: click.echo(f"Ready: http://{address}/metrics", err=True)))
    except click.Abort:
        click.echo("Stopped.", err=True)
