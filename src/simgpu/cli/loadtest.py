"""Load tests: `simgpu loadtest`, and `clusterloader2`, which takes that program's options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click

from simgpu import vocabulary
from simgpu.cli import catalog, options, output

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simgpu.loadtest.abandoned import AbandonedRun
    from simgpu.loadtest.reports.comparison import ComparedFigure
    from simgpu.loadtest.running.results import RunResult
    from simgpu.loadtest.scenario.model import Scenario

_REPORTS = Path("loadtest-reports")  # without --report-dir
_SHOWN = 20  # objects of a run that are listed before they are removed

# Options of ClusterLoader2 that mean nothing here: they are accepted, and have no effect.
_IGNORED = (
    "enable-exec-service", "skip-cluster-verification", "k8s-clients-number", "enable-prometheus-server",
    "tear-down-prometheus-server", "alsologtostderr", "logtostderr", "run-from-cluster", "mastername", "masterip",
    "kubelet-port", "prometheus-scrape-node-exporter", "prometheus-scrape-kubelets", "master-internal-ip",
    "etcd-certificate", "etcd-key", "etcd-insecure-port", "apiserver-pprof-by-client-enabled", "provider-configs",
    "kubemark-root-kubeconfig",
)  # fmt: skip

# Options of ClusterLoader2 that would change the run, and what there is instead.
_INSTEAD = {
    "testsuite": "give its scenarios one by one, each with --testconfig",
    "overwrite-test-config": "edit the scenario, or set its variables by --testoverrides or CL2_ in the environment",
    "skip-steps": "remove the steps from the scenario, or put them into an {{if}} of a variable",
    "delete-stale-namespaces": "'simgpu loadtest cleanup' removes what killed runs left",
    "delete-automanaged-namespaces": "set namespace.deleteAutomanagedNamespaces in the scenario",
}
_INSTEAD_OF_PROMETHEUS = "--prometheus URL names a Prometheus that runs already"


class _Group(click.Group):
    """`loadtest FILE` is `loadtest run FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in {"-h", "--help"}):
            args = ["run", *args]
        return super().parse_args(ctx, args)


class _Run(click.Command):
    """Reports options that only ClusterLoader2 has in one line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from simgpu import errors

        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-")
            known = _INSTEAD_OF_PROMETHEUS if name.startswith(("prometheus-", "experimental-")) else None
            instead = _INSTEAD.get(name, known)
            if instead is None:
                raise
            raise errors.InputError(f"--{name}", f"not supported; {instead}") from None


@click.group(cls=_Group, invoke_without_command=False)
def loadtest() -> None:
    """Run a ClusterLoader2 scenario on simulated GPUs, measure, and write a report.

    \b
      simgpu loadtest --list                        built-in scenarios
      simgpu loadtest kwok-dra --nodes 10           run one of them
      simgpu loadtest my-config.yaml --dry-run      check a scenario, and create nothing
      simgpu loadtest compare before/ after/        compare two reports
      simgpu loadtest cleanup                       remove what killed runs left

    FILE is a scenario as ClusterLoader2 reads it, or the name of a built-in one. The run sets up the
    simulated nodes that the scenario asks for, and removes everything it made at its end, whatever
    happens. 'simgpu loadtest run --help' lists all options.
    """


def _ignored(command: Callable[..., int]) -> Callable[..., int]:
    for name in _IGNORED:
        command = click.option(f"--{name}", hidden=True, expose_value=False, is_flag=False, flag_value="true")(command)
    return command


@loadtest.command("run", cls=_Run)
@click.argument("file", required=False)
@click.option(
    "--testconfig", "configs", multiple=True, metavar="FILE", help="The scenario, as ClusterLoader2 spells it."
)
@click.option(
    "--nodes",
    type=click.IntRange(0, vocabulary.MAX_LOADTEST_NODES),
    metavar="N",
    help="Number of nodes: the variable Nodes, and the nodes of a dependency that names none.",
)
@click.option(
    "--report-dir",
    type=options.PATH,
    metavar="DIR",
    help="Folder for the report.  [default: loadtest-reports/NAME-TIME]",
)
@click.option(
    "--kubeconfig",
    type=options.PATH,
    metavar="FILE",
    help="Kubeconfig of the cluster.  [default: KUBECONFIG, then the cluster of 'simgpu up', then ~/.kube/config]",
)
@click.option("--provider", metavar="NAME", help="Accepted as ClusterLoader2's; any cluster is treated alike.")
@click.option(
    "--testoverrides",
    "overrides",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="File of variables; later files win.",
)
@click.option("--prometheus", metavar="URL", help="Prometheus to ask, for measurements that use one.")
@click.option(
    "--scheduler-metrics",
    metavar="URL",
    help="The scheduler's metrics page.  [default: that of the local cluster, or through the API server]",
)
@options.catalog
@click.option("--compare", type=options.PATH, metavar="DIR", help="Earlier report to compare with, in the page.")
@click.option("--dry-run", is_flag=True, help="Render and check the scenario; no cluster is needed.")
@click.option("--list", "listing", is_flag=True, help="List built-in scenarios.")
@click.option("--seed", type=int, metavar="N", help="Seed of random functions and schedules.")
@click.option("--v", "verbosity", type=int, metavar="N", help="How much is logged: 1 more, 4 everything; also KLOG_V.")
@_ignored
@options.output
def run(  # noqa: PLR0913 - one for each option
    file: str | None,
    configs: tuple[str, ...],
    nodes: int | None,
    report_dir: Path | None,
    kubeconfig: Path | None,
    provider: str | None,  # noqa: ARG001 - any cluster is treated alike
    overrides: tuple[Path, ...],
    prometheus: str | None,
    scheduler_metrics: str | None,
    files: tuple[Path, ...],
    compare: Path | None,
    dry_run: bool,
    listing: bool,
    seed: int | None,
    verbosity: int | None,
    form: str,
) -> int:
    """Run a scenario (the default command).

    \b
      simgpu loadtest kwok-dra --nodes 3 --report-dir /tmp/reports
      simgpu loadtest --testconfig=pkg/dependency/kwok/examples/test-config.yaml --nodes=3
      CL2_JOB_RUNNING_TIME_MS=10000 simgpu loadtest churn

    Exit codes: 0 if all checks passed and nothing is left behind, 1 if not, 2 if the scenario is invalid, 130 after
    Ctrl-C.
    """
    from simgpu import errors
    from simgpu.loadtest.reports import comparison
    from simgpu.loadtest.scenario import files as scenarios

    _start_logging(verbosity)
    if listing:
        _print_list(form)
        return 0
    given = [*([file] if file else []), *configs]
    if not given:
        raise errors.InputError("FILE", "give a scenario, or --list for built-in ones")
    before = comparison.read(compare) if compare is not None else None
    resolved = [scenarios.resolve(one) for one in given]
    known = (*catalog.user_files(), *files)
    code = 0
    for path, note in resolved:
        if dry_run:
            scenario = _load(path, note, nodes, overrides, known)
            code = max(code, _check(scenario, folder=report_dir))
            continue
        code = max(
            code,
            _run_one(
                _RunOptions(
                    path, note, nodes or None, overrides, report_dir, kubeconfig, prometheus or "",
                    scheduler_metrics or "", known, seed, before, str(compare or ""), form, several=len(resolved) > 1,
                )
            ),
        )  # fmt: skip
    return code


class _RunOptions(NamedTuple):
    """The options of one run."""

    path: Path
    note: str
    nodes: int | None
    overrides: Sequence[Path]
    report_dir: Path | None
    kubeconfig: Path | None
    prometheus: str
    scheduler: str
    catalog: tuple[Path, ...]
    seed: int | None
    before: RunResult | None
    against: str
    form: str
    several: bool


def _start_logging(verbosity: int | None) -> None:
    from simgpu.cli import logs

    text = os.environ.get(vocabulary.VERBOSITY_ENV, "")
    level = verbosity if verbosity is not None else int(text) if text.isdecimal() and len(text) < 3 else 0
    logs.start("debug" if level >= 4 else "info" if level >= 1 else "error")


def _print_list(form: str) -> None:
    from simgpu.loadtest.scenario import files

    found = files.built_in()
    if form == "json":
        output.print_json([{"name": item.name, "description": item.description} for item in found])
        return
    output.print_rows([(item.name, item.description) for item in found])
    click.echo(f"\nRun one with: {output.program()} loadtest NAME --nodes N")


def _load(path: Path, note: str, nodes: int | None, overrides: Sequence[Path], known: Sequence[Path]) -> Scenario:
    from simgpu.catalog import models
    from simgpu.loadtest.running import runner
    from simgpu.loadtest.scenario import loading, variables

    given = variables.gather(overrides, os.environ, nodes)
    methods = runner.methods(models.load(known))
    return loading.load(path, given, methods, loading.LoadOptions(nodes=nodes, note=note))


def _check(scenario: Scenario, *, folder: Path | None) -> int:
    from simgpu.loadtest.reports import writing

    for line in scenario.notes:
        click.echo(line, err=True)
    if folder is not None:
        click.echo(f"Wrote {writing.write_config(folder, scenario)}")
    steps = len(scenario.steps)
    objects = sum(phase.replicas * len(phase.namespaces) * len(phase.objects)
                  for step in scenario.steps for phase in step.phases)  # fmt: skip
    click.echo(f"{scenario.name}: valid; {steps} steps, {scenario.namespaces.number} namespaces, {objects} objects")
    return 0


def _run_one(chosen: _RunOptions) -> int:
    import datetime

    from simgpu.cli import progress
    from simgpu.loadtest.reports import comparison, writing

    # The options are checked before the cluster is asked for its nodes, so that mistakes show at once.
    _check_folder(chosen.report_dir or _REPORTS)
    with progress.shown() as shown:
        scenario, result = output.run(_work(chosen, shown), fast=True)
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    folder = chosen.report_dir or _REPORTS / f"{scenario.name}-{stamp}"
    if chosen.several and chosen.report_dir is not None:
        folder /= scenario.name
    compared = comparison.compare(chosen.before, result) if chosen.before is not None else []
    writing.write_config(folder, scenario)
    writing.write(folder, result, compared, against=chosen.against)
    if chosen.form == "json":
        output.print_json({"failed": result.failed, "report": str(folder), "errors": _problems(result),
                           "figures": {name: value for name, _, value in comparison.figures(result)}})  # fmt: skip
    else:
        _print_result(result, folder)
    if result.interrupted:
        return 130
    return 1 if result.failed else 0


def _check_folder(folder: Path) -> None:
    """Raise InputError if reports cannot be written; nothing is created."""
    from simgpu import errors

    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise errors.InputError("--report-dir", f"{folder}: {nearest} is not a folder in which files can be created")


async def _work(chosen: _RunOptions, shown: object) -> tuple[Scenario, RunResult]:
    from simgpu.app import loadtesting

    return await loadtesting.run(
        chosen.path,
        loadtesting.LoadTestOptions(
            note=chosen.note,
            nodes=chosen.nodes,
            overrides=tuple(chosen.overrides),
            kubeconfig=chosen.kubeconfig,
            prometheus=chosen.prometheus,
            scheduler_metrics=chosen.scheduler,
            seed=chosen.seed,
            catalog=chosen.catalog,
        ),
        shown,  # type: ignore[arg-type]  # a display of progress
    )


def _problems(result: RunResult) -> list[str]:
    return [*result.errors, *(f"{case.name}: {error}" for case in result.cases for error in case.errors)]


def _print_result(result: RunResult, folder: Path) -> None:
    from simgpu.loadtest.reports import comparison

    click.echo()
    for problem in _problems(result):
        click.echo(click.style("FAILED ", fg="red") + problem)
    rows = [
        (name, f"{value:,.4g} {unit}".strip()) for name, unit, value in comparison.figures(result) if ": " not in name
    ]
    output.print_rows(rows)
    verdict = click.style("passed", fg="green")
    if result.failed:
        verdict = click.style("interrupted" if result.interrupted else "failed", fg="red")
    click.echo(f"\n{result.scenario}: {verdict}, checks: {result.checks}; report: {folder / 'report.html'}")


@loadtest.command("compare")
@click.argument("before", type=options.PATH)
@click.argument("after", type=options.PATH)
@click.option("--html", "page", type=options.PATH, metavar="FILE", help="Also write a page with the comparison.")
@options.output
def compare_reports(before: Path, after: Path, page: Path | None, form: str) -> None:
    """Compare two reports, figure by figure.

    BEFORE and AFTER are report folders of 'simgpu loadtest'.
    """
    from simgpu.loadtest.reports import comparison
    from simgpu.loadtest.reports import page as pages

    later = comparison.read(after)
    found = comparison.compare(comparison.read(before), later)
    if page is not None:
        page.write_text(pages.render(later, found, str(before)), encoding="utf-8")
    if form == "json":
        output.print_json([{"figure": item.name, "unit": item.unit, "before": item.before, "after": item.after,
                            "change": item.change} for item in found])  # fmt: skip
        return
    output.print_rows([("FIGURE", "BEFORE", "AFTER", "CHANGE"), *(_compared_row(item) for item in found)])


def _compared_row(item: ComparedFigure) -> tuple[str, str, str, str]:
    change = "-" if item.change is None else f"{item.change:+.1%}"
    return item.name, f"{item.before:,.4g} {item.unit}".strip(), f"{item.after:,.4g} {item.unit}".strip(), change


@loadtest.command("cleanup")
@click.option(
    "--kubeconfig",
    type=options.PATH,
    metavar="FILE",
    help="Kubeconfig of the cluster.  [default: KUBECONFIG, then the cluster of 'simgpu up', then ~/.kube/config]",
)
@click.option("--run", "named", metavar="ID", help="Only this run, also if it has no lease or kept its namespaces.")
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@options.output
def clean_up(kubeconfig: Path | None, named: str | None, dry_run: bool, form: str) -> int:
    """Remove what runs left that were killed outright.

    A run renews a lease as long as it lasts; a minute after the last renewal it counts as dead, and its namespaces,
    nodes, slices, stages and all else with its label are removed. What runs share stays as long as one of them uses
    it. Runs that are alive are never touched.

    Exit codes: 0 if nothing of these runs is left, 1 if something is, 2 if --run names a run that is alive.
    """
    from simgpu import errors
    from simgpu.app import loadtesting
    from simgpu.loadtest.heartbeat import Liveness

    runs = [run for run in output.run(loadtesting.find_abandoned(kubeconfig)) if named in {None, run.id}]
    if named is not None and any(run.liveness is Liveness.ALIVE for run in runs):
        raise errors.InputError("--run", f"{named} is alive: its lease was renewed less than a minute ago")
    wanted = [run for run in runs if named is not None or run.liveness is Liveness.DEAD]
    report, code = [], 0
    for run in runs:
        removed = run in wanted and not dry_run
        if form != "json":
            _print_abandoned(run, chosen=run in wanted, dry_run=dry_run)
        left = output.run(loadtesting.remove_abandoned(kubeconfig, run)) if removed else []
        code = 1 if left else code
        report.append({"run": run.id, "state": run.liveness, "objects": [str(item) for item in run.traces],
                       "removed": removed, "left": left})  # fmt: skip
        for line in left:
            click.echo(f"still there: {line}", err=True)
    if form == "json":
        output.print_json(report)
    elif not wanted:
        click.echo(f"Nothing is left of run {named}." if named else "No dead run has left anything.")
    elif not dry_run and not code:
        click.echo("Removed.")
    return code


def _print_abandoned(run: AbandonedRun, *, chosen: bool, dry_run: bool) -> None:
    """Print a run, and what of it is removed; of thousands of objects the first few, unless nothing is removed."""
    untouched = "; not touched" if run.liveness == "alive" else "; not touched, because it has no lease: use --run"
    reason = "" if chosen else untouched
    click.echo(f"run {run.id}: {run.liveness}, {len(run.traces)} objects{reason}")
    if not chosen:
        return
    shown = run.traces if dry_run else run.traces[:_SHOWN]
    for trace in shown:
        click.echo(f"  {trace}")
    if len(shown) < len(run.traces):
        click.echo(f"  and {len(run.traces) - len(shown)} more")


def clusterloader2() -> NoReturn:
    """Run `simgpu loadtest` with ClusterLoader2's command line, in which options may have one dash."""
    from simgpu.cli import main

    arguments = [f"-{text}" if text.startswith("-") and not text.startswith("--") and len(text.split("=")[0]) > 2
                 else text for text in sys.argv[1:]]  # fmt: skip
    sys.exit(main.run(["loadtest", "run", *arguments]))
