"""Options that several commands have, so that each means the same everywhere. What differs is an argument."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from simgpu import vocabulary
from simgpu.cli import logs

F = TypeVar("F", bound=Callable[..., Any])

_PATH = click.Path(path_type=Path)

# What a command prints, and where programs and models are.

output = click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="How to print the result.",
)  # fmt: skip

bin_dir = click.option(
    "--bin-dir", type=_PATH, metavar="DIR",
    help="Take the Kubernetes programs from here first; then PATH, the cache, a download, a build with Go.",
)  # fmt: skip


def release_files(command: F) -> F:
    """Where programs are downloaded from, if at all."""
    command = click.option(
        "--download/--no-download", default=True,
        help="Whether to download official release files; what is not downloaded is built with Go. Never with "
        "SIMGPU_DOWNLOAD=never.",
    )(command)  # fmt: skip
    return click.option(
        "--mirror", metavar="URL",
        help="Take release files from URL/HOST/PATH instead of https://HOST/PATH; also from SIMGPU_MIRROR.",
    )(command)  # fmt: skip


catalog = click.option(
    "--catalog", "files", type=_PATH, multiple=True, metavar="PATH",
    help="A model file of your own, or a folder of them; also from SIMGPU_CATALOG.",
)  # fmt: skip

# The cluster.

kubeconfig = click.option(
    "--kubeconfig", type=_PATH, metavar="FILE", help="The cluster; KUBECONFIG or the pod's own without it."
)

namespace = click.option(
    "--namespace", default=lambda: os.environ.get(vocabulary.POD_NAMESPACE_ENV, vocabulary.DEFAULT_NAMESPACE),
    show_default=vocabulary.DEFAULT_NAMESPACE,
    help="Where the topology and the nodes' views are.",
)  # fmt: skip

# Cards, and how they are simulated.


def cards(*, most: int, config: str) -> Callable[[F], F]:
    """Which cards there are: of one model, or from a file."""

    def decorate(command: F) -> F:
        command = click.option("--config", type=_PATH, metavar="FILE", help=config)(command)
        count = click.IntRange(1, most)
        command = click.option("--count", type=count, help="How many of them; 1 if nothing is said.")(command)
        return click.option("--model", help="A GPU model of the catalog; h200 if nothing is said.")(command)

    return decorate


def seed(same: str = "cards") -> Callable[[F], F]:
    """Chance that can be had again."""
    known = click.IntRange(0, 2**63 - 1)
    return click.option("--seed", type=known, default=1, show_default=True, help=f"The same seed, the same {same}.")


def interval(default: float, *, least: float, most: float) -> Callable[[F], F]:
    """How finely time passes."""
    return click.option(
        "--interval", type=click.FloatRange(least, most), default=default, show_default=True, metavar="SECONDS",
        help="Time between steps.",
    )  # fmt: skip


# What a command serves, and what it logs.

identity = click.option(
    "--identity", default="dcgm", show_default=True, metavar="NAME|FILE", help="The exporter to mimic."
)


def listen(default: str, serves: str, *, name: str = "--listen") -> Callable[[F], F]:
    """Where a command is asked."""
    return click.option(name, default=default, show_default=True, metavar="HOST:PORT", help=serves)


def _log_from(_context: click.Context, _option: click.Parameter, level: str) -> None:
    logs.start(level)


log_level = click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
    expose_value=False, callback=_log_from,
)  # fmt: skip
