"""`simgpu exporter` and `simgpu workload`: a simulated box without Kubernetes, and what runs on it."""

from __future__ import annotations

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
@options.cards(most=1_000_000, config="Devices from a file instead; see above.")
@click.option(
    "--identity", "identities", multiple=True, metavar="NAME|FILE",
    help="The exporter to mimic; several may be given. The vendor's own if nothing is said.",
)  # fmt: skip
@options.listen("127.0.0.1:9400", "Where pages are served; port 0 takes a free one.")
@click.option("--socket", type=click.Path(path_type=Path), metavar="PATH", help="A socket for workloads to connect to.")
@click.option(
    "--base-workload",
    "bases",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A workload that is there from the start.",
)
@options.seed()
@options.interval(1.0, least=0.01, most=3600)
@click.option("--hostname", help="The machine's name on the pages; this machine's if nothing is said.")
@click.option(
    "--device-files",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Put a file for each device here, for workloads to find.",
)
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Show the cards to NVML and nvidia-smi too: write state pages here. With --socket they can be set.",
)
@click.option(
    "--per-workload",
    is_flag=True,
    help="Series of each workload beside those of each device, where the exporter has such.",
)
@options.catalog
def exporter(  # noqa: PLR0913 - one for each option
    model: str | None, count: int | None, config: Path | None, identities: tuple[str, ...], listen: str,
    socket: Path | None, bases: tuple[Path, ...], seed: int, interval: float, hostname: str | None,
    device_files: Path | None, page: Path | None, per_workload: bool, files: tuple[Path, ...],
) -> None:  # fmt: skip
    """Serve the metrics of a simulated GPU box, as the vendor's own exporter would.

    \b
      simgpu exporter --model h200 --count 8
      simgpu exporter --model h200 --count 8 --identity dcgm-4.9 --identity nvidia-smi
      simgpu exporter --config box.yaml --socket /tmp/simgpu.sock

    A configuration lists devices, of several models if you like; `mig` divides cards into instances:

    \b
      gpus:
      - {type: h200, count: 4}
      - {type: a100, count: 2, mig: [1g.5gb, 3g.20gb]}
      - {type: Tesla-K80, memory: 12GB, count: 2}

    Pages: /metrics is the first identity's, /metrics/NAME each one's. Also /healthz, /readyz, /api/v1/devices and
    /api/v1/workloads. Looking at them changes nothing.
    """
    from simgpu.app import exporting
    from simgpu.catalog import models
    from simgpu.identities import identity as known
    from simgpu.web import server

    loaded = models.load([*catalog.user_files(), *files])
    name = hostname or platform.node()
    found = find_devices(loaded, model=model, count=count, config=config, node=name)
    wanted = identities or (_own_identity(found[0].model.vendor),)
    settings = exporting.ExporterSettings(
        devices=found,
        identities={_short(item): known.load(item) for item in wanted},
        listen=server.parse_address(listen, field="--listen"),
        hostname=name,
        seed=seed,
        interval=interval,
        socket=socket,
        base_workloads=tuple(read_document(path) for path in bases),
        device_files=device_files,
        per_workload=per_workload,
        page=page,
    )

    def ready(address: str) -> None:
        alike = len({device.model.product for device in found}) == 1
        click.echo(f"{len(found)} x {found[0].model.product}" if alike else f"{len(found)} devices", err=True)
        for item in settings.identities:
            click.echo(f"  http://{address}/metrics/{item}", err=True)
        output.ready(address)

    output.serve(exporting.run_exporter(settings, ready), fast=True)


def find_devices(
    loaded: models.Catalog, *, model: str | None, count: int | None, config: Path | None, node: str
) -> list[topology.Device]:
    """The devices that options name."""
    from simgpu.catalog import models
    from simgpu.topology import devices as topology

    if config is None:
        box = topology.BoxConfig((topology.GpuEntry(loaded.get(model or "h200", field="--model").key, count or 1),))
    elif model or count:
        raise errors.InputError("--config", "says which devices there are; leave --model and --count out")
    else:
        box = topology.parse(models.parse_yaml(_existing(config)), where=str(config))
    return topology.build(box, loaded, node=node)


def _own_identity(vendor: str) -> str:
    return {"nvidia": "dcgm", "intel": "xpum", "amd": "amd", "habana": "gaudi"}[vendor]


def _short(item: str) -> str:
    return Path(item).stem if "/" in item or item.endswith((".yaml", ".json")) else item


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise errors.InputError(str(path), "no such file")
    return path


def read_document(path: Path) -> dict[str, Any]:
    """A workload document or load profile from a file."""
    from simgpu.catalog import models
    from simgpu.workloads import documents

    document = models.parse_yaml(_existing(path))  # JSON is YAML
    try:
        documents.read(document)
    except errors.InputError as error:
        raise errors.InputError(f"{path}: {error.field}", error.problem) from None
    return document


@click.command()
@click.option("--name", default="workload", show_default=True, help="What the workload is called.")
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What it does over time: a workload document, or a load profile.",
)
@click.option(
    "--activity",
    default="98:1:0",
    show_default=True,
    help="Instead of a file: LOAD:FLUCTUATION:SECONDS, several with commas; 0 seconds is a day.",
)
@click.option(
    "--repeat",
    type=click.IntRange(0, 10**9),
    default=1,
    show_default=True,
    help="How often all activities run; 0 is for ever.",
)
@click.option("--devices", "pattern", metavar="GLOB", help="Files of the devices to use, such as '/dev/dri/card*'.")
@click.option("--index-regex", metavar="REGEX", help="What in those files' names is the device's number.")
@click.option(
    "--devnames", metavar="NAMES", help="Devices by name instead, with commas; INDEX becomes JOB_COMPLETION_INDEX."
)
@click.option("--max-index", type=click.IntRange(0, 10**9), default=0, help="INDEX counts modulo this.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="End with an error beyond this: memory (bytes), runtime (seconds), usage, or the exporter's name for one.",
)
@click.option(
    "--pod",
    metavar="NAMESPACE/NAME[/CONTAINER]",
    help="Whose it is, for pages that say so; else from POD_NAMESPACE, POD_NAME and CONTAINER_NAME.",
)
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=vocabulary.EXPORTER_SOCKET,
    show_default=True,
    envvar=vocabulary.SOCKET_ENV,
    metavar="PATH",
    help="The exporter's socket.",
)
@click.option(
    "--reconnect",
    type=click.FloatRange(0, 86400),
    default=0.0,
    metavar="SECONDS",
    help="Survive a restart of the exporter: start over if it is back within this time.",
)
def workload(  # noqa: PLR0913 - one for each option
    name: str, profile: Path | None, activity: str, repeat: int, pattern: str | None, index_regex: str | None,
    devnames: str | None, max_index: int, limits: tuple[str, ...], pod: str | None, socket: Path, reconnect: float,
) -> int:  # fmt: skip
    """Put a workload on devices of an exporter, wait until it ends, and end as it did.

    In a pod with GPUs of `simgpu agent` it runs on these, all of them, or the first with --devnames 0.

    \b
      simgpu workload --devnames nvidia0 --activity 20:5:30,90:5:60
      simgpu workload --devices '/tmp/devices/nvidia*' --profile examples/load.yaml
      simgpu workload --devnames nvidia0 --limit runtime=60 --limit memory=8000000000

    Exit codes: 0 when all activities are done, 1 when a limit ended it or the exporter went away, 2 for bad input.
    """
    from simgpu.workloads import client, documents

    if devnames is not None:
        devices = client.devices_by_name(devnames, max_index, os.environ)
    elif pattern is None and os.environ.get(vocabulary.VISIBLE_DEVICES_ENV):
        devices = []  # a pod's own
    else:
        devices = client.devices_by_glob(pattern or "/dev/dri/card*", index_regex)
    given = {str(key).lower(): value for key, value in read_document(profile).items()} if profile is not None else {}
    document: dict[str, Any] = {"name": name, "repeat": repeat, **given}
    document |= {"devices": devices, "limits": {**(given.get("limits") or {}), **_limits(limits)}}
    if owner := _pod(pod):
        document["pod"] = owner
    if "phases" not in document:
        document.setdefault("profile", client.activities(activity))
        documents.parse(document)
    code, message = output.run(client.run({**document, "protocol": 2}, socket, reconnect=reconnect))
    click.echo(message or ("OK" if code == 0 else f"ended with {code}"))
    return code


def _limits(items: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in items:
        name, equals, value = item.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise errors.InputError("--limit", f"{item!r}: must be NAME=VALUE, a number")
    return found


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
