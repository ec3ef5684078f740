"""`simgpu controller` and `simgpu config`: GPUs of fake (KWOK) nodes, and their configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from simgpu import errors
from simgpu.cli import catalog, options, output


@click.command()
@options.kubeconfig
@options.namespace
@options.listen("127.0.0.1:9400", "Address for metrics, health and Prometheus discovery.")
@options.listen("127.0.0.1:8080", "Address for the topology API.", name="--topology-listen")
@options.dashboard
@options.catalog
@options.identity
@click.option(
    "--plain-labels",
    is_flag=True,
    help="Omit the labels that Prometheus adds when it scrapes an exporter on each node.",
)
@click.option(
    "--lease-duration", type=click.IntRange(3, 300), default=15, show_default=True, metavar="SECONDS",
    help="Time after which another controller takes over from one that crashed.",
)  # fmt: skip
@click.option(
    "--runai-namespace", default="", metavar="NAME",
    help="Namespace of Run:ai: once it exists, it gets recording rules of GPU metrics.",
)  # fmt: skip
@click.option(
    "--runai-interval", type=click.FloatRange(0.1, 86400), default=120.0, show_default=True, metavar="SECONDS",
    help="Time between looks for that namespace.",
)  # fmt: skip
@options.reservations
@options.prometheus
@options.allocation
@options.interval(0.5, minimum=0.05, maximum=60)
@options.seed()
@options.log_level
def controller(  # noqa: PLR0913 - one for each option
    kubeconfig: Path | None, namespace: str, listen: str, topology_listen: str, dashboard: bool | None,
    files: tuple[Path, ...], identity: str,
    plain_labels: bool, lease_duration: int, runai_namespace: str, runai_interval: float, reservation_namespace: str,
    prometheus_url: str, allocation: str, interval: float, seed: int,
) -> None:  # fmt: skip
    """Provide simulated GPUs on fake (KWOK) nodes: capacity, labels, and metrics that follow the pods.

    The GPUs of a node are configured by its label run.ai/simulated-gpu-node-pool and the pools in ConfigMap `topology`,
    or by the annotation simgpu.dev/gpus, such as h200:8. `simgpu up` runs it for you.
    """
    from simgpu.app import controlling, watching_page
    from simgpu.catalog import models
    from simgpu.fakedev import identity as fakedev
    from simgpu.identities import identity as known
    from simgpu.kube import kubeconfig as config
    from simgpu.web import server

    settings = controlling.ControllerSettings(
        target=config.load(kubeconfig),
        namespace=namespace,
        listen=server.parse_address(listen, field="--listen"),
        topology_listen=server.parse_address(topology_listen, field="--topology-listen"),
        identity=known.load(identity, from_json=fakedev.read),
        catalog=models.load([*catalog.user_files(), *files]),
        allocation=allocation,
        seed=seed,
        interval=interval,
        plain_labels=plain_labels,
        lease_seconds=lease_duration,
        runai_namespace=runai_namespace,
        reservations=reservation_namespace,
        prometheus=prometheus_url,
        runai_seconds=runai_interval,
        dashboard=dashboard,
    )

    def ready(metrics: str, topology: str) -> None:
        click.echo(f"Topology: http://{topology}/topology", err=True)
        output.ready(metrics)
        if watching_page.wanted(dashboard, settings.listen[0]):
            output.dashboard(metrics)

    # Not uvloop: a watch waits for more events without being woken by each, which only asyncio's own TLS allows.
    output.serve(controlling.run_controller(settings, ready))


@click.group()
def config() -> None:
    """Check a topology before you apply it to a cluster."""


@config.command()
@click.argument("file", type=options.PATH)
@options.catalog
def check(file: Path, files: tuple[Path, ...]) -> int:
    """List all errors in a topology FILE, or in a file of NVIDIA's mig-parted. Exit code 2 if there are any."""
    from simgpu.topology import checking, mig_files

    try:
        if mig_files.is_file_of_layouts(text := _text(file)):
            click.echo(f"{file}: {len(mig_files.read(text, field=str(file)))} MIG layouts, no errors")
            return 0
        fleet = _read(file, files)
    except checking.Mistakes as mistakes:
        return _list_mistakes(file, [*map(str, mistakes.found), *mistakes.unknown])
    if fleet.unknown:
        return _list_mistakes(file, fleet.unknown)
    click.echo(f"{file}: {len(fleet.pools)} pools, {len(fleet.nodes)} nodes by name, no errors")
    return 0


def _list_mistakes(file: Path, mistakes: Sequence[str]) -> int:
    for mistake in mistakes:
        click.echo(f"{file}: {mistake}", err=True)
    return 2


@config.command()
@click.argument("file", type=options.PATH)
@options.catalog
@options.output
def show(file: Path, files: tuple[Path, ...], form: str) -> None:
    """Print the pools of a topology FILE with their GPUs."""
    fleet = _read(file, files)
    entries = {f"pool {name}": pool for name, pool in fleet.pools.items()}
    entries |= {f"node {name}": node for name, node in fleet.nodes.items()}
    if form == "json":
        output.print_json({name: _plain(entry) for name, entry in entries.items()})
        return
    rows = [("WHERE", "GPUS", "OTHER")]
    for name, entry in entries.items():
        described = _plain(entry)
        gpus = ", ".join(
            f"{item['count']} x {item['product']} ({item['memory_mib']} MiB)" for item in described["gpus"]
        )
        if instances := described.get("mig", {}).get("instances"):
            gpus += f", divided into {', '.join(f'{count} x {profile}' for profile, count in instances.items())}"
        rows.append((name, gpus or "none", ", ".join(f"{key}: {count}" for key, count in entry.other.items())))
    output.print_rows(rows)


def _read(file: Path, files: tuple[Path, ...]) -> Any:
    from simgpu.catalog import models
    from simgpu.topology import reading

    return reading.parse(_text(file), models.load([*catalog.user_files(), *files]))


def _text(file: Path) -> str:
    if not file.is_file():
        raise errors.InputError(str(file), "no such file")
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise errors.InputError(str(file), f"not UTF-8: {error.reason} at byte {error.start}") from None


def _plain(entry: Any) -> dict[str, Any]:
    from simgpu.topology import allocating

    counted: dict[tuple[str, int], int] = {}
    for gpu in entry.gpus:
        key = (gpu.model.product, gpu.model.memory_mib.total)
        counted[key] = counted.get(key, 0) + 1
    gpus = [{"product": product, "memory_mib": memory, "count": count} for (product, memory), count in counted.items()]
    way = {} if entry.allocation == allocating.DEFAULT else entry.allocation
    profiles = [profile.name for gpu in entry.gpus for profile in gpu.layout.instances]
    instances = {name: profiles.count(name) for name in dict.fromkeys(profiles)}
    mig = {name: value for name, value in (("strategy", entry.mig.strategy), ("instances", instances)) if value}
    more = {"driver": entry.driver, "cuda": entry.cuda, "numa": entry.numa, "allocation": way, "mig": mig}
    return {"gpus": gpus, "other": entry.other, **{name: value for name, value in more.items() if value}}
