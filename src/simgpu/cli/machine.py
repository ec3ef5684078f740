"""Commands about this machine: tools, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simgpu.cli import options, output

if TYPE_CHECKING:
    from simgpu.cluster.locate import Found


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "--build", "everything", is_flag=True, help="Install every missing tool.")
@options.bin_dir
@options.release_files
@options.output
def tools(
    names: tuple[str, ...], everything: bool, bin_dir: Path | None, mirror: str | None, download: bool, form: str
) -> None:
    """Print the paths of Kubernetes programs, and install missing ones; without NAME list them all.

    \b
      $(simgpu tools helm) version

    A missing program is downloaded from the official releases, verified by its checksum, and cached; if it cannot be
    downloaded, it is built from source with Go.
    """
    from simgpu.cli import progress
    from simgpu.cluster import binaries, locate, releases

    source = releases.choose(mirror, download=download)
    wanted = [binaries.named(name).name for name in names] or list(binaries.ALL)
    found = {each: output.run(locate.find(binaries.ALL[each], bin_dir)) for each in wanted}
    missing = [each for each in wanted if found[each] is None]
    if missing and (names or everything):
        with progress.shown() as shown:
            found |= output.run(locate.ensure(missing, shown, bin_dir, source))
    if form == "json":
        rows = [_described(each, place) for each, place in found.items()]
        output.print_json(rows[0] if len(names) == 1 else rows)
    elif not names and not everything:
        _print_tools(found)
    else:
        for place in found.values():
            click.echo("" if place is None else str(place.path))


def _described(name: str, place: Found | None) -> dict[str, str | None]:
    from simgpu.cluster import binaries

    if place is None:
        return {"name": name, "version": binaries.ALL[name].module.version, "source": None, "path": None, "url": None}
    version = binaries.dotted(place.version)
    return {"name": name, "version": version, "source": place.source, "path": str(place.path), "url": place.url}


def _print_tools(found: dict[str, Found | None]) -> None:
    rows = [("TOOL", "VERSION", "FROM", "PATH")]
    for name, place in found.items():
        shown = _described(name, place)
        origin = "not installed" if place is None else f"{place.source}, downloaded" if place.url else place.source
        rows.append((name, shown["version"] or "", origin, shown["path"] or ""))
    output.print_rows(rows)


@click.command()
@options.bin_dir
@options.output
def doctor(bin_dir: Path | None, form: str) -> int:
    """Check this machine's requirements for SimGPU, and advise on what is missing.

    Exit code 1 if 'simgpu up' cannot work.
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
