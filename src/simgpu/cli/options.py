"""Options shared by several commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from simgpu import vocabulary
from simgpu.cli import logs

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)

# Output, programs and models.

output = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="Output format.",
)  # fmt: skip

bin_dir = click.option(
    "--bin-dir", type=PATH, metavar="DIR",
    help="Folder to search for Kubernetes programs first; then PATH, the cache, a download, a build with Go.",
)  # fmt: skip


def release_files(command: F) -> F:
    """Options for downloads of programs."""
    command = click.option(
        "--download/--no-download", default=True,
        help="Whether to download official release files instead of building with Go. SIMGPU_DOWNLOAD=never disables "
        "downloads.",
    )(command)  # fmt: skip
    return click.option(
        "--mirror", metavar="URL",
        help="Download release files from URL/HOST/PATH instead of https://HOST/PATH; also from SIMGPU_MIRROR.",
    )(command)  # fmt: skip


catalog = click.option(
    "--catalog", "files", type=PATH, multiple=True, metavar="PATH",
    help="Your own model file, or a folder of them; also from SIMGPU_CATALOG.",
)  # fmt: skip

# The cluster.

kubeconfig = click.option(
    "--kubeconfig",
    type=PATH,
    metavar="FILE",
    help="Kubeconfig of the cluster.  [default: KUBECONFIG, or the pod's service account]",
)

namespace = click.option(
    "--namespace", default=lambda: os.environ.get(vocabulary.POD_NAMESPACE_ENV, vocabulary.DEFAULT_NAMESPACE),
    show_default=vocabulary.DEFAULT_NAMESPACE,
    help="Namespace of the topology ConfigMaps.",
)  # fmt: skip

allocation = click.option(
    "--allocation", type=click.Choice(vocabulary.ALLOCATIONS),
    default=lambda: os.environ.get(vocabulary.ALLOCATION_ENV, vocabulary.EXTENDED), show_default=vocabulary.EXTENDED,
    help="How pods get GPUs where the topology does not say it; also from SIMGPU_ALLOCATION.",
)  # fmt: skip

# Cards, and how they are simulated.


def cards(*, maximum: int, config: str) -> Callable[[F], F]:
    """Options for the devices: of one model, or from a file."""

    def decorate(command: F) -> F:
        command = click.option("--config", type=PATH, metavar="FILE", help=config)(command)
        count = click.IntRange(1, maximum)
        command = click.option("--count", type=count, help="Number of devices.  [default: 1]")(command)
        return click.option("--model", help=f"GPU model from the catalog.  [default: {vocabulary.DEFAULT_MODEL}]")(
            command
        )

    return decorate


def seed(same: str = "cards") -> Callable[[F], F]:
    """An option for the seed of random numbers."""
    known = click.IntRange(0, 2**63 - 1)
    return click.option(
        "--seed",
        type=known,
        default=1,
        show_default=True,
        help=f"Seed of random numbers: the same seed gives the same {same}.",
    )


def interval(default: float, *, minimum: float, maximum: float) -> Callable[[F], F]:
    """An option for the time between simulation steps."""
    return click.option(
        "--interval", type=click.FloatRange(minimum, maximum), default=default, show_default=True, metavar="SECONDS",
        help="Time between simulation steps.",
    )  # fmt: skip


# Serving and logging.

identity = click.option("--identity", default="dcgm", show_default=True, metavar="NAME|FILE", help="Exporter to mimic.")


def listen(default: str, serves: str, *, name: str = "--listen") -> Callable[[F], F]:
    """An option for an address to listen on."""
    return click.option(name, default=default, show_default=True, metavar="HOST:PORT", help=serves)


dashboard = click.option(
    "--dashboard/--no-dashboard", default=None,
    help="Whether to serve the live page at / and its API.  [default: only on loopback]",
)  # fmt: skip


def _log_from(_context: click.Context, _option: click.Parameter, level: str) -> None:
    logs.start(level)


log_level = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
    expose_value=False, callback=_log_from,
)  # fmt: skip

reservations = click.option(
    "--reservation-namespace",
    default=lambda: os.environ.get(vocabulary.RESERVATION_NAMESPACE_ENV, vocabulary.DEFAULT_RESERVATION_NAMESPACE),
    show_default=vocabulary.DEFAULT_RESERVATION_NAMESPACE,
    help="Namespace of Run:ai's pods that reserve GPUs for others; also from RESOURCE_RESERVATION_NAMESPACE.",
)

prometheus = click.option(
    "--prometheus-url",
    default=lambda: os.environ.get(vocabulary.PROMETHEUS_ENV, vocabulary.DEFAULT_PROMETHEUS),
    show_default=vocabulary.DEFAULT_PROMETHEUS,
    metavar="URL",
    help="Prometheus that knows the requests of inference pods, asked if there are any; also from PROMETHEUS_URL.",
)
