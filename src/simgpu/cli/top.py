"""`simgpu top`: the fleet, live, in a terminal."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpu import errors
from simgpu.cli import options, output, sources

if TYPE_CHECKING:
    from simgpu.top.choosing import Choice
    from simgpu.top.feeds import Feed

_VIEWS = ("nodes", "gpus", "pods")


@click.command()
@click.argument("url", required=False)
@click.option("--name", default="simgpu", show_default=True, metavar="NAME", help="Name of the local cluster.")
@click.option("--kubeconfig", type=options.PATH, metavar="FILE", help="Kubeconfig of a cluster with SimGPU's chart.")
@click.option("--view", type=click.Choice(_VIEWS), default="nodes", show_default=True, help="List to begin with.")
@click.option("--sort", metavar="COLUMN", help="Column to sort it by, such as power or name.")
@click.option("--filter", "text", default="", metavar="TEXT", help="Show only names and pools with this text.")
@click.option("--once", is_flag=True, help="Print one screen and end.")
@options.output
def top(
    url: str | None, name: str, kubeconfig: Path | None, view: str, sort: str | None, text: str, once: bool, form: str
) -> None:
    """Watch GPUs, nodes and pods in the terminal.

    Shows a local cluster, or any controller, exporter or agent by the URL of its page or metrics, or the
    controller of another cluster through its API server. The keys are shown by `?`. With -o json, it prints
    totals, nodes and pods once.

    \b
      simgpu top
      simgpu top http://127.0.0.1:9400/metrics
      simgpu top --once --view pods
      simgpu top -o json
    """
    from simgpu.top import choosing

    choice = choosing.Choice(view=view, still=once)
    choice.filters[view] = text
    if sort is not None:
        if sort not in choosing.SORTS[view]:
            raise errors.InputError("--sort", f"no column {sort!r}; there are: {', '.join(choosing.SORTS[view])}")
        choice.sort[view] = sort
    if form != "json" and not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise errors.InputError("--once", "is required without a terminal, or -o json")
    output.run(_show(sources.chosen(url, name, kubeconfig), choice, once=once, form=form))


async def _show(source: sources.ServerSource, choice: Choice, *, once: bool, form: str) -> None:
    async with source.open() as feed:
        if form == "json":
            output.print_json(await _document(feed))
        elif once:
            await _print(feed, choice)
        else:
            await _follow(feed, choice)


async def _document(feed: Feed) -> dict[str, Any]:
    """Return totals, nodes and pods."""
    from simgpu.dashboard.answers import ApiPage, FleetSummary, NodeSummary, PodSummary
    from simgpu.top import feeds
    from simgpu.vocabulary import MAX_FLEET_GPUS

    fleet = await feeds.read(feed, "/fleet", FleetSummary)
    nodes = await feeds.read_all(feed, "/nodes", ApiPage[NodeSummary], most=MAX_FLEET_GPUS)
    pods = await feeds.read_all(feed, "/pods", ApiPage[PodSummary], most=MAX_FLEET_GPUS)
    return {
        "source": feed.label,
        "fleet": fleet,
        "nodes": [item for part in nodes for item in part.items],
        "pods": [item for part in pods for item in part.items],
    }


async def _print(feed: Feed, choice: Choice) -> None:
    import time

    from rich.console import Console

    from simgpu.top import following, screens

    picture = await following.first_picture(feed, pods=choice.filters["pods"] if choice.view == "pods" else None)
    picture.now = time.time()
    width, height = shutil.get_terminal_size((120, 40))
    console = Console(width=width, soft_wrap=True, highlight=False, no_color="NO_COLOR" in os.environ or None)
    lines = screens.draw(picture, choice, width, height - 1)
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for line in lines:
        line.rstrip()
        console.print(line, end="\n", overflow="ignore", no_wrap=True, crop=False)


async def _follow(feed: Feed, choice: Choice) -> None:
    from simgpu.dashboard.answers import FleetSummary
    from simgpu.top import feeds
    from simgpu.top.application import TopApp
    from simgpu.top.following import Follower
    from simgpu.top.picture import FleetPicture

    picture = FleetPicture(feed.label)
    try:
        picture.role = (await feeds.read(feed, "/fleet", FleetSummary)).role
    except feeds.NothingYet:
        picture.state.away = True
    async with Follower(feed, picture).open() as follower:
        follower.look(choice)
        await TopApp(follower, choice).run_async()
