"""`simgpu agent`: simulated GPUs on a real node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from simgpu import errors, vocabulary
from simgpu.cli import options, output


def _place(name: str, default: str, about: str, *, metavar: str = "DIR") -> Callable[[options.F], options.F]:
    """A folder or file of the node."""
    kind = click.Path(path_type=Path)
    return click.option(name, type=kind, default=default, show_default=True, metavar=metavar, help=about)


@click.command()
@click.option(
    "--node",
    default=lambda: os.environ.get(vocabulary.NODE_NAME_ENV),
    show_default=vocabulary.NODE_NAME_ENV,
    help="The node that this is.",
)
@options.kubeconfig
@options.namespace
@options.listen(":9400", "Metrics and health.")
@options.identity
@_place(
    "--state-dir",
    vocabulary.STATE_DIR,
    "What pods get mounted; in a container, a folder of the node at the same place.",
)
@_place("--plugin-dir", vocabulary.PLUGIN_DIR, "Where the kubelet looks for device plugins.")
@_place(
    "--pod-resources",
    vocabulary.POD_RESOURCES_SOCKET,
    "Where the kubelet says which pod has which device.",
    metavar="PATH",
)
@click.option(
    "--reservation-namespace",
    default=lambda: os.environ.get(vocabulary.RESERVATION_NAMESPACE_ENV, vocabulary.DEFAULT_RESERVATION_NAMESPACE),
    show_default=vocabulary.DEFAULT_RESERVATION_NAMESPACE,
    help="Where Run:ai's pods are that hold GPUs for others; RESOURCE_RESERVATION_NAMESPACE says so too.",
)
@_place("--runai-dir", vocabulary.RUNAI_DIR, "What pods have of GPUs that they share, for Run:ai's container toolkit.")
@_place("--cgroups", "/sys/fs/cgroup", "Where containers' use of processors is read, for pods whose GPUs follow it.")
@options.interval(0.5, least=0.05, most=60)
@options.seed()
@options.log_level
def agent(  # noqa: PLR0913 - one for each option
    node: str | None, kubeconfig: Path | None, namespace: str, listen: str, identity: str, state_dir: Path,
    plugin_dir: Path, pod_resources: Path, reservation_namespace: str, runai_dir: Path, cgroups: Path,
    interval: float, seed: int,
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
    settings = agents.AgentSettings(
        target=config.load(kubeconfig),
        node=node,
        namespace=namespace,
        listen=server.parse_address(listen, field="--listen"),
        identity=known.load(identity),
        state=state_dir.absolute(),
        plugins=plugin_dir.absolute(),
        pod_resources=pod_resources.absolute(),
        cgroups=cgroups.absolute(),
        reservations=reservation_namespace,
        runai=runai_dir.absolute(),
        seed=seed,
        interval=interval,
    )
    output.serve(agents.run_agent(settings, output.ready))
