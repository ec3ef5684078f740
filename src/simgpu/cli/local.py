"""Commands for the cluster on this machine: up, down, status, kubeconfig, kubectl, logs."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from simgpu import errors, units, vocabulary
from simgpu.cli import options, output

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from simgpu.cluster.components import Role
    from simgpu.cluster.lifecycle import ClusterStatus, UpResult
    from simgpu.cluster.record import Folder

_WATCH_SECONDS = 2.0

_name = click.option("--name", default="simgpu", show_default=True, metavar="NAME", help="Name of the cluster.")


@click.command()
@_name
@click.option(
    "--nodes", type=int, metavar="N", help=f"Number of simulated nodes.  [default: {vocabulary.DEFAULT_NODES}]"
)
@click.option(
    "--gpus", metavar="MODEL:COUNT",
    help=f"GPUs of each node.  [default: {vocabulary.DEFAULT_MODEL}:{vocabulary.DEFAULT_COUNT}]",
)  # fmt: skip
@click.option("--port", type=int, metavar="PORT", help="Port of the API server.  [default: a free one]")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until all nodes are Ready and have GPUs.")
@click.option("--sample", is_flag=True, help="Also run a small sample workload, in namespace 'sample'.")
@options.bin_dir
@options.release_files
@options.output
def up(  # noqa: PLR0913 - one for each option
    name: str,
    nodes: int | None,
    gpus: str | None,
    port: int | None,
    wait: bool,
    sample: bool,
    bin_dir: Path | None,
    mirror: str | None,
    download: bool,
    form: str,
) -> None:
    """Start a cluster: a real Kubernetes control plane, with simulated GPU nodes.

    etcd, kube-apiserver, scheduler, controller manager and KWOK run as plain processes on loopback, without
    root or Docker, and your kubeconfig is not changed. Missing programs are downloaded from the official
    releases, or built from source with Go if these cannot be reached, and cached.

    It can be repeated at any time: a running cluster is kept, a broken one is repaired, and changes of
    --nodes or --gpus are applied.

    \b
      simgpu up                               3 nodes with 8 H200 each
      simgpu up --nodes 100 --gpus a100:4     a larger fleet
      simgpu up --name other                  a second cluster beside the first
    """
    from simgpu import app
    from simgpu.cli import progress
    from simgpu.cluster import lifecycle, releases

    settings = lifecycle.UpSettings(
        name=name,
        nodes=nodes,
        gpus=None if gpus is None else _gpus(gpus),
        port=port,
        bin_dir=bin_dir,
        source=releases.choose(mirror, download=download),
        wait=wait,
        sample=sample,
    )
    with progress.shown() as shown:
        outcome = output.run(lifecycle.up(settings, shown, app.cluster_roles()))
    if form == "json":
        output.print_json(outcome.status)
    else:
        _welcome(outcome, sample=sample)


def _gpus(text: str) -> str:
    """Return MODEL:COUNT with the model's key in the catalog, for the topology."""
    from simgpu.catalog import models
    from simgpu.cli import catalog
    from simgpu.topology import inline

    model, count = inline.split(text, field="--gpus")
    return f"{models.load(catalog.user_files()).get(model, field='--gpus').key}:{count}"


def _welcome(outcome: UpResult, *, sample: bool) -> None:
    status, program = outcome.status, output.program()
    which = "" if status.name == "simgpu" else f" --name {status.name}"
    if outcome.changes:
        spent = units.format_seconds(outcome.seconds)
        click.echo(f"\nCluster {status.name} is up after {spent}: {'; '.join(outcome.changes)}.")
    else:
        click.echo(f"\nCluster {status.name} is up already; nothing to do.")
    if "dashboard" in status.endpoints:
        click.echo(f"  dashboard   {click.style(status.endpoints['dashboard'], bold=True)}")
    gpus = f"{status.gpus} GPUs" if status.gpus else f"no GPUs yet ({status.gpus_wanted} requested on each)"
    click.echo(f"  {status.nodes} simulated nodes, {gpus}, {status.pods} pods")
    click.echo(f"  API server  {status.endpoints['apiserver']}")
    if "metrics" in status.endpoints:
        click.echo(f"  metrics     {status.endpoints['metrics']}")
    click.echo(f"  kubeconfig  {status.kubeconfig}")
    pods = "get pods -n sample -o wide" if sample else "get nodes -o wide"
    click.echo("\nTry:")
    if program != "simgpu":  # not on PATH
        click.echo(f'  export PATH="{Path(program).resolve().parent}:$PATH"    # then the command is simgpu')
    click.echo(f"  {program} kubectl{which} {pods}")
    click.echo(f"  {program} top{which}")
    click.echo(f"  {program} status{which}")
    click.echo(f"  export KUBECONFIG=$({program} kubeconfig{which})")
    click.echo("\nStop it and remove every trace:")
    click.echo(f"  {program} down{which}")


@click.command()
@_name
def down(name: str) -> None:
    """Stop a cluster and delete it.

    Partly started or partly deleted clusters are deleted too. Programs stay in the cache.
    """
    from simgpu.cli import progress
    from simgpu.cluster import lifecycle

    with progress.shown() as shown:
        deleted = output.run(lifecycle.down(name, shown))
    click.echo(f"Cluster {name} is deleted." if deleted else f"There is no cluster {name}; nothing to do.")


@click.command()
@_name
@click.option("--all", "everything", is_flag=True, help="All clusters on this machine.")
@click.option("--endpoint", metavar="NAME", help="Print only this URL, such as metrics or apiserver.")
@click.option("--watch", is_flag=True, help="Keep showing it, until Ctrl-C; as JSON, a line for each change.")
@options.output
def status(name: str, everything: bool, endpoint: str | None, watch: bool, form: str) -> int:
    """Show the status of a cluster, or of all. Exit code 0 if ready, 1 if not.

    \b
      curl -s "$(simgpu status --endpoint metrics)"
      simgpu status --watch
    """
    from simgpu import app
    from simgpu.cluster import lifecycle

    roles = app.cluster_roles()
    if endpoint is not None:
        one = output.run(lifecycle.status(name, roles))
        if endpoint not in one.endpoints:
            there_are = ", ".join(one.endpoints)
            raise errors.InputError("--endpoint", f"no endpoint {endpoint!r}; there are: {there_are}")
        click.echo(one.endpoints[endpoint])
        return 0 if one.ready else 1
    see = _all_clusters if everything else partial(_one_cluster, name)
    if watch:
        _watch(see, roles, form)
        return 0
    seen = output.run(see(roles))
    click.echo(output.json_text(seen.value) if form == "json" else seen.table)
    return 0 if seen.ready else 1


class _Seen(NamedTuple):
    """What is known of clusters: for scripts, for people, and whether all of them are ready."""

    value: object
    table: str
    ready: bool


def _watch(see: Callable[[tuple[Role, ...]], Coroutine[Any, Any, _Seen]], roles: tuple[Role, ...], form: str) -> None:
    from simgpu.cli import watching

    async def read() -> str:
        seen = await see(roles)
        return output.json_line(seen.value) if form == "json" else seen.table

    with watching.shown(in_place=form != "json") as show:
        output.serve(watching.follow(read, show, seconds=_WATCH_SECONDS))


async def _one_cluster(name: str, roles: tuple[Role, ...]) -> _Seen:
    from simgpu.cluster import lifecycle

    one = await lifecycle.status(name, roles)
    return _Seen(one, _cluster_table(one), one.ready)


async def _all_clusters(roles: tuple[Role, ...]) -> _Seen:
    from simgpu.cluster import lifecycle, record

    found: list[ClusterStatus | dict[str, object]] = []
    rows = [("CLUSTER", "READY", "NODES", "GPUS", "PODS", "API SERVER")]
    unready = 0
    for name in record.known_names():
        try:
            one = await lifecycle.status(name, roles)
        except errors.SimgpuError:
            unready += 1
            found.append({"name": name, "ready": False})
            rows.append((name, "broken", "-", "-", "-", f"'simgpu down --name {name}' deletes it"))
            continue
        found.append(one)
        unready += not one.ready
        nodes, ready = f"{one.nodes_ready}/{one.nodes}", "yes" if one.ready else "no"
        rows.append((one.name, ready, nodes, str(one.gpus), str(one.pods), one.endpoints["apiserver"]))
    return _Seen(found, output.table(rows) if len(rows) > 1 else "No clusters.", not unready)


def _cluster_table(one: ClusterStatus) -> str:
    running = {
        name: state if state == "running" else click.style(state, fg="red") for name, state in one.components.items()
    }
    rows = {
        "Cluster": one.name,
        "Ready": click.style("yes", fg="green") if one.ready else click.style("no", fg="red"),
        "Nodes": f"{one.nodes_ready} of {one.nodes} ready",
        "GPUs": f"{one.gpus} ({one.gpus_wanted} requested on each node)",
        "Pods": str(one.pods),
        **running,
        **one.endpoints,
        "kubeconfig": one.kubeconfig,
    }
    repair = "" if one.ready else f"\n\nRepair it with: {output.program()} up --name {one.name}"
    return output.table(list(rows.items())) + repair


@click.command()
@_name
@click.option("--url", is_flag=True, help="Only print the address.")
def dashboard(name: str, url: bool) -> int:
    """Open the live page of a cluster in a browser, or print its address where there is none.

    \b
      simgpu dashboard
      simgpu dashboard --url
    """
    import webbrowser

    from simgpu import app
    from simgpu.cluster import lifecycle

    one = output.run(lifecycle.status(name, app.cluster_roles()))
    address = one.endpoints["dashboard"]
    click.echo(address)
    if one.components.get("controller") != "running":
        click.echo(f"It is not running. Start it with: {output.program()} up --name {one.name}", err=True)
        return 1
    if not url and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(address)
    return 0 if one.ready else 1


@click.command()
@_name
def kubeconfig(name: str) -> None:
    """Print the path of a cluster's kubeconfig.

    \b
      export KUBECONFIG=$(simgpu kubeconfig)
    """
    click.echo(str(_folder(name).kubeconfig))


@click.command(
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "help_option_names": ["--help"],
    }
)
@_name
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def kubectl(name: str, arguments: tuple[str, ...]) -> None:
    """Run kubectl, in a matching version, on a cluster.

    \b
      simgpu kubectl get pods -A
    """
    from simgpu.cli import progress
    from simgpu.cluster import binaries, locate

    folder = _folder(name)
    known = folder.load()
    bin_dir = known.existing_bin_dir() if known is not None else None
    found = output.run(locate.find(binaries.ALL["kubectl"], bin_dir))
    if found is None:
        with progress.shown() as shown:
            found = output.run(locate.ensure(["kubectl"], shown, bin_dir))["kubectl"]
    environment = {**os.environ, "KUBECONFIG": str(folder.kubeconfig)}
    os.execve(found.path, ["kubectl", *arguments], environment)  # noqa: S606 - becomes kubectl


@click.command()
@_name
@click.argument("component", required=False)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines.")
@click.option("--tail", default=50, show_default=True, metavar="N", help="Number of last lines to print; 0 for all.")
def logs(name: str, component: str | None, follow: bool, tail: int) -> None:
    """Print the logs of a cluster's processes: of one COMPONENT, or of each.

    \b
      simgpu logs kube-scheduler -f
    """
    folder = _folder(name)
    known = folder.components_with_logs()
    if component is not None and component not in known:
        raise errors.InputError("COMPONENT", f"{component!r} has no log; there are: {', '.join(known) or 'none'}")
    if tail < 0:
        raise errors.InputError("--tail", f"{tail}: must be 0 or more")
    if follow and component is None:
        raise errors.InputError("--follow", "needs one COMPONENT")
    for each in known if component is None else [component]:
        if component is None:
            click.echo(f"==> {each} <==")
        _print_log(folder.log(each), tail, follow=follow)


def _print_log(path: Path, lines: int, *, follow: bool) -> None:
    with path.open(encoding="utf-8", errors="replace") as log:
        text = log.readlines()
        click.echo("".join(text[-lines:] if lines else text), nl=False)
        while follow:
            more = log.read()
            if more:
                click.echo(more, nl=False)
            elif not path.exists():
                return
            else:
                time.sleep(0.2)


def _folder(name: str) -> Folder:
    from simgpu.cluster import record

    folder = record.Folder(name)
    if not folder.kubeconfig.exists():
        raise record.no_such_cluster(name)
    return folder
