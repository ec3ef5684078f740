"""`simgpu agent`: simulated GPUs on a real node."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import click

from simgpu import errors, vocabulary
from simgpu.cli import catalog, options, output


def _place(name: str, default: str, about: str, *, metavar: str = "DIR") -> Callable[[options.F], options.F]:
    """An option for a folder or file of the node."""
    kind = click.Path(path_type=Path)
    return click.option(name, type=kind, default=default, show_default=True, metavar=metavar, help=about)


def _components(text: str) -> frozenset[str]:
    found = frozenset(name.strip() for name in text.split(",")) - {""}
    if unknown := sorted(found.difference(vocabulary.COMPONENTS)):
        known = ", ".join(vocabulary.COMPONENTS)
        raise errors.InputError("--components", f"{errors.shown(unknown[0])}: there are {known}")
    return found


@click.command()
@click.option(
    "--node",
    default=lambda: os.environ.get(vocabulary.NODE_NAME_ENV),
    show_default=vocabulary.NODE_NAME_ENV,
    help="Name of the node that the agent runs on.",
)
@options.kubeconfig
@options.namespace
@options.listen(":9400", "Address for metrics and health.")
@options.identity
@_place(
    "--state-dir",
    vocabulary.STATE_DIR,
    "Files that are mounted into pods; in a container, a host path mounted at the same path.",
)
@_place("--plugin-dir", vocabulary.PLUGIN_DIR, "Folder of the kubelet's device plugin sockets.")
@_place(
    "--pod-resources",
    vocabulary.POD_RESOURCES_SOCKET,
    "The kubelet's pod resources socket, which lists the devices of each pod.",
    metavar="PATH",
)
@_place("--dra-plugin-dir", vocabulary.DRA_PLUGIN_DIR, "Folder of the kubelet's plugins, for the DRA plugin's socket.")
@_place("--registry-dir", vocabulary.REGISTRY_DIR, "Folder in which the kubelet looks for plugins to register.")
@_place("--cdi-dir", vocabulary.CDI_DIR, "Folder of CDI files, which the container runtime reads.")
@click.option(
    "--pod-uid",
    default=lambda: os.environ.get(vocabulary.POD_UID_ENV, ""),
    show_default=vocabulary.POD_UID_ENV,
    help="Uid of the agent's own pod, if it is one: agents can then overlap during an update.",
)
@options.reservations
@options.prometheus
@_place("--runai-dir", vocabulary.RUNAI_DIR, "Shares of GPUs per pod, as files for Run:ai's container toolkit.")
@_place(
    "--nri-socket",
    vocabulary.NRI_SOCKET,
    "The container runtime's socket for plugins (NRI), to show pods the GPUs that they share by a reservation; it need "
    "not exist.",
    metavar="PATH",
)
@click.option(
    "--zone-view",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Show pods with GPUs in the NUMA zones of the node's pool: a pod resources interface, "
    "DIR/pod-resources/kubelet.sock, and the CPUs of each zone below DIR/sys.",
)
@click.option(
    "--kernel-log",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write errors of GPUs as the driver's lines in the kernel log (NVRM: Xid ...) to this file, or to /dev/kmsg.",
)
@_place(
    "--cgroups",
    "/sys/fs/cgroup",
    "Cgroup file system, to read containers' CPU usage for pods whose GPU usage follows it.",
)
@click.option(
    "--components",
    metavar="LIST",
    default=",".join(vocabulary.COMPONENTS[1:]),
    show_default=True,
    help="What the agent brings, with commas: device-plugins, dra, labels (of feature discovery), exporter, and "
    "driver: a driver folder for NVIDIA's own programs. GPUs, their pages and their load are there in any case.",
)
@click.option(
    "--driver-only",
    is_flag=True,
    help="Bring the driver folder alone, as --components=driver: device plugin, DRA driver, labels and exporter are "
    "others'. Device files in it need CAP_MKNOD.",
)
@_place("--driver-dir", vocabulary.DRIVER_DIR, "The driver folder, where the agent brings one.")
@options.dashboard
@options.catalog
@options.allocation
@options.interval(0.5, minimum=0.05, maximum=60)
@options.seed()
@options.log_level
def agent(  # noqa: PLR0913 - one for each option
    node: str | None, kubeconfig: Path | None, namespace: str, listen: str, identity: str, state_dir: Path,
    plugin_dir: Path, pod_resources: Path, dra_plugin_dir: Path, registry_dir: Path, cdi_dir: Path, pod_uid: str,
    reservation_namespace: str, prometheus_url: str, runai_dir: Path, nri_socket: Path, zone_view: Path | None,
    kernel_log: Path | None, cgroups: Path, components: str, driver_only: bool, driver_dir: Path,
    dashboard: bool | None, files: tuple[Path, ...], allocation: str, interval: float, seed: int,
) -> None:  # fmt: skip
    """Provide simulated GPUs on a real node: pods that request nvidia.com/gpu, or claim them, get them.

    The node's GPUs are configured by its label run.ai/simulated-gpu-node-pool and the pools in ConfigMap `topology`, by
    its name there, or by the annotation simgpu.dev/gpus, such as h200:8. Run it as root on the node of the kubelet.
    """
    from simgpu.app import agent as agents
    from simgpu.app import watching_page
    from simgpu.catalog import models
    from simgpu.fakedev import identity as fakedev
    from simgpu.identities import identity as known
    from simgpu.kube import kubeconfig as config
    from simgpu.node import kubelet
    from simgpu.web import server

    if pod_uid and not re.fullmatch(r"[0-9A-Za-z-]{1,63}", pod_uid):
        raise errors.InputError("--pod-uid", f"{errors.shown(pod_uid)}: must be a uid of letters, digits and dashes")
    if not node:
        raise errors.InputError("--node", "missing; give the name of the node here or in NODE_NAME")
    settings = agents.AgentSettings(
        target=config.load(kubeconfig),
        node=node,
        namespace=namespace,
        listen=server.parse_address(listen, field="--listen"),
        identity=known.load(identity, from_json=fakedev.read),
        catalog=models.load([*catalog.user_files(), *files]),
        state=state_dir.absolute(),
        kubelet=kubelet.KubeletFolders(
            device_plugins=plugin_dir.absolute(),
            pod_resources=pod_resources.absolute(),
            dra_plugins=dra_plugin_dir.absolute(),
            registry=registry_dir.absolute(),
            cdi=cdi_dir.absolute(),
            pod=pod_uid,
        ),
        cgroups=cgroups.absolute(),
        reservations=reservation_namespace,
        prometheus=prometheus_url,
        runai=runai_dir.absolute(),
        nri=nri_socket.absolute(),
        zone_view=zone_view.absolute() if zone_view is not None else None,
        kernel_log=kernel_log.absolute() if kernel_log is not None else None,
        allocation=allocation,
        seed=seed,
        interval=interval,
        dashboard=dashboard,
        components=frozenset((vocabulary.DRIVER_PART,)) if driver_only else _components(components),
        driver=driver_dir.absolute(),
    )

    def ready(address: str) -> None:
        output.ready(address, "metrics" if vocabulary.EXPORTER_PART in settings.components else "healthz")
        if watching_page.wanted(dashboard, settings.listen[0]):
            output.dashboard(address)

    output.serve(agents.run_agent(settings, ready))
