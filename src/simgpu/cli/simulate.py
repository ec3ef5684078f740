"""`simgpu simulate`: plays a load profile on simulated cards, faster than real time."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from simgpu import errors, vocabulary
from simgpu.cli import catalog, options, output

if TYPE_CHECKING:
    from simgpu.catalog.models import Model
    from simgpu.cli import drawing
    from simgpu.sim import playing


@click.command()
@click.option("--model", default=vocabulary.DEFAULT_MODEL, show_default=True, help="GPU model from the catalog.")
@click.option(
    "--profile", "path", type=options.PATH, required=True, metavar="FILE", help="Load profile, as YAML; see above."
)
@click.option(
    "--rate", type=click.FloatRange(0.001, 1000), default=10.0, show_default=True, help="Rows per simulated second."
)
@options.seed("rows")
@click.option(
    "--csv",
    "target",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="OUT",
    help="File to write rows to; - is standard output.",
)
@click.option(
    "--inlet-temp",
    type=click.FloatRange(-20, 80),
    metavar="C",
    help="Temperature of the coolant, in °C.  [default: of the model]",
)
@click.option(
    "--count",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Number of cards; each differs a little from the first.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Plot power, temperature, clock, usage and memory, as .svg, .html or, with the extra 'plot', .png.",
)
@options.catalog
@options.output
def simulate(  # noqa: PLR0913 - one for each option
    model: str, path: Path, rate: float, seed: int, target: Path | None, inlet_temp: float | None, count: int,
    plot: Path | None, files: tuple[Path, ...], form: str,
) -> None:  # fmt: skip
    """Play a load profile on simulated cards, faster than real time.

    A profile is a list of phases, each with its seconds and either a shape of the catalog or demands from 0 to 1.
    `duty` is the share of each `period` (seconds) with load; without a period, it scales the load. `fb_mib` is the
    memory in use.

    \b
      phases:
      - {seconds: 10, shape: idle}
      - {seconds: 60, name: train, shape: matmul-bf16, fb_mib: 40000}
      - {seconds: 20, demand: {sm: 0.4, memory: 0.9}, duty: 0.5, period: 2}

    \b
      simgpu simulate --model h200 --profile examples/11-load/load.yaml --csv out.csv
      simgpu simulate --model a100 --profile examples/11-load/load.yaml --plot load.html

    Prints the means of each phase, unless rows go to standard output. Values depend on the seed, never on the rate.
    """
    from simgpu.catalog import models
    from simgpu.sim import playing

    known = models.load([*catalog.user_files(), *files]).get(model, field="--model")
    profile = read_profile(path)
    _check_memory(profile, known, path)
    _check_numbers(profile, rate, count, inlet_temp)
    player = playing.Player(known, profile, seed=seed, count=count, inlet=inlet_temp)
    drawn: list[tuple[float, str, list[float]]] = []
    with ExitStack() as stack:
        file = _open(target, stack)
        writer = None if file is None else csv.writer(file, lineterminator="\n")
        if writer is not None:
            writer.writerow(("t", "phase", *playing.COLUMNS, *(("gpu",) if count > 1 else ())))
        bar = stack.enter_context(_progress(profile, rate, hidden=target == Path("-")))
        for row in player.samples(rate):
            bar.update(1)
            if writer is not None:
                writer.writerows(_cells(row, count))
            if plot is not None:
                drawn.append((row.t, row.phase, row.values[:, 0].tolist()))
    if plot is not None:
        _draw(_timeline(drawn, playing.COLUMNS, known), player.totals(), plot)
    if form == "json":
        output.print_json(player.totals())
    elif target != Path("-"):
        _print_summary(player.totals())


def read_profile(path: Path) -> playing.LoadProfile:
    """Read a load profile from a file; InputError with the field if it is invalid."""
    from simgpu import yaml_text
    from simgpu.catalog import shapes
    from simgpu.sim import playing

    try:
        document = yaml_text.parse_file(path)
    except ValueError as error:
        raise errors.InputError(str(path), str(error)) from None
    except OSError as error:
        raise errors.InputError(str(path), error.strerror or str(error)) from None
    profile = errors.convert(document, playing.LoadProfile, field=str(path))
    known = shapes.load()
    for index, phase in enumerate(profile.phases):
        where = f"{path}: phases[{index}]"
        if (phase.shape is None) == (phase.demand is None):
            raise errors.InputError(where, "needs either a shape or a demand")
        if phase.shape is not None and phase.shape not in known:
            raise errors.InputError(f"{where}.shape", f"no shape {phase.shape!r}; there are: {', '.join(known)}")
        if phase.period is not None and phase.duty is None:
            raise errors.InputError(f"{where}.period", "needs a duty")
    return profile


def _open(target: Path | None, stack: ExitStack) -> IO[str] | None:
    if target is None:
        return None
    return sys.stdout if target == Path("-") else stack.enter_context(target.open("w"))


def _progress(profile: playing.LoadProfile, rate: float, *, hidden: bool) -> Any:
    quiet = hidden or not sys.stderr.isatty()
    return click.progressbar(length=round(profile.seconds * rate), label="Simulating", file=sys.stderr, hidden=quiet)


_FORMS = ("{:.0f}".format,) * 2 + ("{:.3f}".format,) * 2 + ("{:.0f}".format,) * 7


def _cells(row: playing.Sample, count: int) -> Iterator[tuple[str, ...]]:
    for card in range(count):
        cells = (form(value) for form, value in zip(_FORMS, row.values[:, card].tolist(), strict=True))
        yield (f"{row.t:.6f}".rstrip("0").rstrip("."), row.phase, *cells, *((str(card),) if count > 1 else ()))


def _check_numbers(profile: playing.LoadProfile, rate: float, count: int, inlet: float | None) -> None:
    if math.isnan(rate) or (inlet is not None and math.isnan(inlet)):
        raise errors.InputError("--rate" if math.isnan(rate) else "--inlet-temp", "must be a number")
    if round(profile.seconds * rate) * count > 20_000_000:
        raise errors.InputError("--rate", "more than 20 million rows; lower --rate or --count")


def _check_memory(profile: playing.LoadProfile, model: Model, path: Path) -> None:
    usable = model.memory_mib.usable
    for index, phase in enumerate(profile.phases):
        if phase.fb_mib is not None and phase.fb_mib > usable:
            raise errors.InputError(f"{path}: phases[{index}].fb_mib", f"{model.product} has {usable} MiB")


def _print_summary(table: list[dict[str, Any]]) -> None:
    header = ("PHASE", "GPU", "MEMORY", "POWER", "TEMPERATURE", "SM CLOCK", "ENERGY")
    rows = [
        (
            entry["phase"], f"{entry['gpu_util']:.0f} %", f"{entry['mem_util']:.0f} %", f"{entry['power_w']:.1f} W",
            f"{entry['temp_c']:.1f} °C", f"{entry['sm_mhz']:.0f} MHz", f"{entry['energy_j'] / 1000:.2f} kJ",
        )
        for entry in table
    ]  # fmt: skip
    output.print_rows([header, *rows])


def _timeline(
    rows: Sequence[tuple[float, str, list[float]]], columns: Sequence[str], model: Model
) -> drawing.CardTimeline:
    from simgpu.cli import drawing

    return drawing.CardTimeline(
        title=model.product,
        times=[t for t, _, _ in rows],
        phases=[phase for _, phase, _ in rows],
        columns={name: [values[index] for _, _, values in rows] for index, name in enumerate(columns)},
        limits={"Power": model.power_w.default, "Memory in use": model.memory_mib.total / 1024},
    )


def _draw(timeline: drawing.CardTimeline, totals: Sequence[dict[str, Any]], target: Path) -> None:
    """Write the picture in the form that the file's name asks for."""
    from simgpu.cli import drawing

    form = target.suffix.lower()
    if form == ".svg":
        target.write_text(drawing.svg(timeline), encoding="utf-8")
    elif form in {".html", ".htm"}:
        target.write_text(drawing.page(timeline, totals), encoding="utf-8")
    else:
        _draw_pixels(timeline, target)


def _draw_pixels(timeline: drawing.CardTimeline, target: Path) -> None:
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise errors.InputError("--plot", "needs matplotlib: pip install 'simgpu[plot]'; or a .svg or .html") from None
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 1, figsize=(11, 9), sharex=True, layout="constrained")
    for axis, names, label in zip(
        axes,
        (("power_w",), ("temp_c", "mem_temp_c"), ("sm_mhz",), ("gpu_util", "mem_util")),
        ("power, W", "temperature, °C", "SM clock, MHz", "utilisation, %"),
        strict=True,
    ):
        for name in names:
            axis.plot(timeline.times, timeline.columns[name], label=name, linewidth=1)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        if len(names) > 1:
            axis.legend(loc="upper right")
    axes[0].set_title(timeline.title)
    axes[-1].set_xlabel("seconds")
    try:
        figure.savefig(target, dpi=110)
    except ValueError as error:
        raise errors.InputError("--plot", str(error)) from None
    finally:
        pyplot.close(figure)
