"""`simgpu exporter` and `simgpu workload`: a simulated GPU machine without Kubernetes, and workloads on it."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpu import errors, vocabulary
from simgpu.cli import catalog, options, output

if TYPE_CHECKING:
    from simgpu.catalog import models
    from simgpu.topology import devices as topology


@click.command()
@options.cards(maximum=vocabulary.MAX_MACHINE_GPUS, config="File that lists the devices instead; see above.")
@click.option(
    "--identity", "identities", multiple=True, metavar="NAME|FILE",
    help="Exporter to mimic; repeat for several.  [default: the vendor's own]",
)  # fmt: skip
@options.listen("127.0.0.1:9400", "Address for metrics; port 0 chooses a free one.")
@options.dashboard
@click.option("--socket", type=options.PATH, metavar="PATH", help="Unix socket for workloads to connect to.")
@click.option(
    "--base-workload",
    "bases",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="Workload file to run from the start; may be repeated.",
)
@options.seed()
@options.interval(1.0, minimum=0.01, maximum=3600)
@click.option("--hostname", help="Host name in metrics.  [default: of this machine]")
@click.option(
    "--device-files",
    type=options.PATH,
    metavar="DIR",
    help="Folder to create a file per device in, for workloads to find them.",
)
@click.option(
    "--page",
    type=options.PATH,
    metavar="DIR",
    help="Folder to write state pages to, for NVML and nvidia-smi. With --socket they can change settings.",
)
@click.option("--per-workload", is_flag=True, help="Add series per workload, if the exporter has them.")
@options.catalog
def exporter(  # noqa: PLR0913 - one for each option
    model: str | None, count: int | None, config: Path | None, identities: tuple[str, ...], listen: str,
    dashboard: bool | None, socket: Path | None, bases: tuple[Path, ...], seed: int, interval: float,
    hostname: str | None, device_files: Path | None, page: Path | None, per_workload: bool, files: tuple[Path, ...],
) -> None:  # fmt: skip
    """Serve the metrics of a simulated GPU machine, as the vendor's own exporter does.

    \b
      simgpu exporter --model h200 --count 8
      simgpu exporter --model h200 --count 8 --identity dcgm-4.9 --identity nvidia-smi
      simgpu exporter --config box.yaml --socket /tmp/simgpu.sock

    A configuration lists devices, also of several models; `mig` divides cards into instances, and `labels` are added to
    their series:

    \b
      gpus:
      - {type: h200, count: 4, labels: {rack: r12}}
      - {type: a100, count: 2, mig: [1g.5gb, 3g.20gb]}
      - {type: Tesla-K80, memory: 12GB, count: 2}

    Endpoints: / for people, /metrics for the first identity, /metrics/NAME for each. Also /healthz, /readyz,
    /api/v1/devices, /api/v1/workloads and the rest of /api/v1. Requests never change the simulation.
    """
    from simgpu.app import exporting, watching_page
    from simgpu.catalog import models
    from simgpu.fakedev import identity as fakedev
    from simgpu.identities import identity as known
    from simgpu.web import server

    loaded = models.load([*catalog.user_files(), *files])
    name = hostname or platform.node()
    found = find_devices(loaded, model=model, count=count, config=config, node=name)
    wanted = identities or (_own_identity(found[0].model.vendor),)
    own = list(dict.fromkeys(name for device in found for name in device.labels))
    loaded_as = {_short(item): known.load(item, from_json=functools.partial(fakedev.read, own=own)) for item in wanted}
    settings = exporting.ExporterSettings(
        devices=found,
        identities={
            item: known.with_labels(identity, own, where=f"{config}: labels") for item, identity in loaded_as.items()
        },
        listen=server.parse_address(listen, field="--listen"),
        hostname=name,
        seed=seed,
        interval=interval,
        socket=socket,
        base_workloads=tuple(read_document(path) for path in bases),
        device_files=device_files,
        per_workload=per_workload,
        page=page,
        dashboard=dashboard,
    )

    def ready(address: str) -> None:
        alike = len({device.model.product for device in found}) == 1
        click.echo(f"{len(found)} x {found[0].model.product}" if alike else f"{len(found)} devices", err=True)
        for item in settings.identities:
            click.echo(f"  http://{address}/metrics/{item}", err=True)
        output.ready(address)
        if watching_page.wanted(dashboard, settings.listen[0]):
            output.dashboard(address)

    output.serve(exporting.run_exporter(settings, ready), fast=True)


def find_devices(
    loaded: models.Catalog, *, model: str | None, count: int | None, config: Path | None, node: str
) -> list[topology.Device]:
    """Return the devices that the options specify."""
    from simgpu.topology import devices as topology

    if config is None:
        box = topology.BoxConfig(
            (topology.GpuEntry(loaded.get(model or vocabulary.DEFAULT_MODEL, field="--model").key, count or 1),)
        )
    elif model or count:
        raise errors.InputError("--config", "cannot be combined with --model or --count")
    else:
        box = read_config(config)
    return topology.build(box, loaded, node=node)


def read_config(path: Path) -> topology.BoxConfig:
    """Read the list of a machine's devices from a file."""
    from simgpu.catalog import models
    from simgpu.topology import devices as topology

    return errors.convert(models.parse_yaml(_existing(path)), topology.BoxConfig, field=str(path))


def _own_identity(vendor: str) -> str:
    return {"nvidia": "dcgm", "intel": "xpum", "amd": "amd", "habana": "gaudi"}[vendor]


def _short(item: str) -> str:
    return Path(item).stem if "/" in item or item.endswith((".yaml", ".json")) else item


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise errors.InputError(str(path), "no such file")
    return path


def read_document(path: Path) -> dict[str, Any]:
    """Read a workload document or load profile from a file."""
    from simgpu.catalog import models
    from simgpu.machines import documents

    document = models.parse_yaml(_existing(path))  # JSON is YAML
    try:
        documents.read(document)
    except errors.InputError as error:
        raise errors.InputError(f"{path}: {error.field}", error.problem) from None
    return document


@click.command()
@click.option("--name", default="workload", show_default=True, help="Name of the workload.")
@click.option(
    "--profile", type=options.PATH, metavar="FILE", help="What it does over time: a workload file or a load profile."
)
@click.option(
    "--activity",
    default="98:1:0",
    show_default=True,
    help="Instead of a file: LOAD:FLUCTUATION:SECONDS, several separated by commas; 0 seconds is a day.",
)
@click.option(
    "--repeat",
    type=click.IntRange(0, 10**9),
    default=1,
    show_default=True,
    help="How often all activities run; 0 is forever.",
)
@click.option(
    "--devices", "pattern", metavar="GLOB", help="Device files of the devices to use, such as '/dev/dri/card*'."
)
@click.option("--index-regex", metavar="REGEX", help="Pattern that matches the device index in these file names.")
@click.option(
    "--devnames",
    metavar="NAMES",
    help="Device names instead, separated by commas; INDEX is replaced by JOB_COMPLETION_INDEX.",
)
@click.option(
    "--max-index", type=click.IntRange(0, 10**9), default=0, help="Use JOB_COMPLETION_INDEX modulo this for INDEX."
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Fail above this: memory (bytes), runtime (seconds), usage, temperature, or a name on the exporter's page.",
)
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME[/CONTAINER]",
    help="Pod of the workload, for metrics; else from POD_NAMESPACE, POD_NAME and CONTAINER_NAME.",
)
@click.option(
    "--socket",
    type=options.PATH,
    default=vocabulary.EXPORTER_SOCKET,
    show_default=True,
    envvar=vocabulary.SOCKET_ENV,
    metavar="PATH",
    help="Unix socket of the exporter.",
)
@click.option(
    "--reconnect",
    type=click.FloatRange(0, 86400),
    default=0.0,
    metavar="SECONDS",
    help="Start over if the exporter is restarted within this time.",
)
def workload(  # noqa: PLR0913 - one for each option
    name: str, profile: Path | None, activity: str, repeat: int, pattern: str | None, index_regex: str | None,
    devnames: str | None, max_index: int, limits: tuple[str, ...], pod: str | None, socket: Path, reconnect: float,
) -> int:  # fmt: skip
    """Run a workload on devices of an exporter, wait until it ends, and exit with its exit code.

    In a pod with GPUs of `simgpu agent` it runs on all of them, or on the first with --devnames 0.

    \b
      simgpu workload --devnames nvidia0 --activity 20:5:30,90:5:60
      simgpu workload --devices '/tmp/devices/nvidia*' --profile examples/11-load/load.yaml
      simgpu workload --devnames nvidia0 --limit runtime=60 --limit memory=8000000000

    Exit codes: 0 if all activities are done, 1 if a limit was reached or the exporter stopped, 2 for invalid input.
    """
    from simgpu.machines import documents
    from simgpu.workloads import client

    if devnames is not None:
        devices = client.devices_by_name(devnames, max_index, os.environ)
    elif pattern is None and os.environ.get(vocabulary.VISIBLE_DEVICES_ENV):
        devices = []  # those of the pod
    else:
        devices = client.devices_by_glob(pattern or "/dev/dri/card*", index_regex)
    given = {str(key).lower(): value for key, value in read_document(profile).items()} if profile is not None else {}
    document: dict[str, Any] = {"name": name, "repeat": repeat, **given}
    document |= {
        "devices": devices,
        "limits": {**(given.get("limits") or {}), **client.limits(limits, field="--limit")},
    }
    if owner := _pod(pod):
        document["pod"] = owner
    if "phases" not in document:
        document.setdefault("profile", client.activities(activity))
        documents.parse(document)
    code, message = output.run(client.run({**document, "protocol": 2}, socket, reconnect=reconnect))
    click.echo(message or ("OK" if code == 0 else f"ended with {code}"))
    return code


def _pod(text: str | None) -> dict[str, str] | None:
    if text is None:
        name = os.environ.get(vocabulary.POD_NAME_ENV)
        if not name:
            return None
        parts = [
            os.environ.get(vocabulary.POD_NAMESPACE_ENV, ""),
            name,
            os.environ.get(vocabulary.CONTAINER_NAME_ENV, ""),
        ]
    else:
        parts = text.split("/")
        if len(parts) not in (2, 3):
            raise errors.InputError("--pod", f"{text!r}: must be NAMESPACE/NAME or NAMESPACE/NAME/CONTAINER")
    return dict(zip(("Namespace", "Name", "Container"), parts, strict=False))
