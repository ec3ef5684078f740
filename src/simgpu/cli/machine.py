"""Commands about this machine: tools, doctor."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu.cli import options, output


@click.command()
@click.argument("name", required=False)
@click.option("--build", "everything", is_flag=True, help="Build every tool that is not here yet.")
@options.bin_dir
def tools(name: str | None, everything: bool, bin_dir: Path | None) -> None:
    """Print the path of a Kubernetes program, building it first if need be; without NAME list them all.

    \b
      $(simgpu tools helm) version
    """
    from simgpu.cli import progress
    from simgpu.cluster import binaries, locate

    if name is None and not everything:
        _print_tools(bin_dir)
        return
    wanted = list(binaries.ALL) if name is None else [binaries.named(name).name]
    if name is not None:
        found = output.run(locate.find(binaries.ALL[name], bin_dir))
        if found is not None:
            click.echo(str(found.path))
            return
    with progress.shown() as shown:
        made = output.run(locate.ensure(wanted, shown, bin_dir))
    for place in made.values():
        click.echo(str(place.path))


def _print_tools(bin_dir: Path | None) -> None:
    from simgpu.cluster import binaries, locate

    rows = [("TOOL", "VERSION", "FROM", "PATH")]
    for name, binary in binaries.ALL.items():
        found = output.run(locate.find(binary, bin_dir))
        if found is None:
            rows.append((name, binary.module.version, "to be built", ""))
        else:
            rows.append((name, locate.dotted(found.version), found.source, str(found.path)))
    output.print_rows(rows)


@click.command()
@options.bin_dir
@options.output
def doctor(bin_dir: Path | None, form: str) -> int:
    """Say what this machine can do, and what to do about what is missing.

    Exit code 1 if something keeps 'simgpu up' from working.
    """
    from simgpu.cluster import doctor as examination

    findings = output.run(examination.examine(bin_dir))
    if form == "json":
        output.print_json(findings)
    else:
        marks = {"good": ("✓", "green"), "limited": ("!", "yellow"), "missing": ("✗", "red")}
        rows = []
        for item in findings:
            mark, colour = marks[item.verdict]
            rows.append((click.style(mark, fg=colour), item.topic, item.detail))
            if item.advice:
                rows.append(("", "", click.style(f"→ {item.advice}", fg="yellow")))
        output.print_rows(rows)
    return 1 if any(item.verdict == "missing" for item in findings) else 0
