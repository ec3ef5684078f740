"""Commands about GPU models and workload shapes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simgpu import errors, vocabulary
from simgpu.cli import options, output

if TYPE_CHECKING:
    from simgpu.catalog import captures, importing


def user_files() -> list[Path]:
    """Return the user's catalog files, from SIMGPU_CATALOG."""
    return [Path(item) for item in os.environ.get(vocabulary.CATALOG_ENV, "").split(os.pathsep) if item]


@click.group(invoke_without_command=True)
@options.catalog
@options.output
@click.pass_context
def catalog(context: click.Context, files: tuple[Path, ...], form: str) -> None:
    """List the GPU models and workload shapes that can be simulated.

    Add your own models as YAML files: the file name is the key, `base: h200` inherits everything from another model,
    and only the differences have to be given.

    \b
      simgpu catalog show h200
    """
    context.obj = {"files": files, "form": form}
    if context.invoked_subcommand is not None:
        return
    from simgpu.catalog import models, shapes

    known, mixes = models.load([*user_files(), *files]), shapes.load()
    if form == "json":
        output.print_json({"models": dict(known.models), "shapes": mixes})
        return
    rows = [("MODEL", "PRODUCT", "MEMORY", "POWER", "MIG")]
    for key, model in sorted(known.models.items()):
        mig = "yes" if model.mig else "no"
        rows.append((key, model.product, f"{model.memory_mib.total} MiB", f"{model.power_w.default:.0f} W", mig))
    output.print_rows(rows)
    click.echo()
    memory = {name: "-" if shape.footprint is None else f"{shape.footprint:.0%}" for name, shape in mixes.items()}
    listed = [(name, memory[name], shape.about) for name, shape in mixes.items()]
    output.print_rows([("SHAPE", "MEMORY", "WHAT IT IS"), *listed])


@catalog.command()
@click.argument("name")
@options.catalog
@options.output
@click.pass_obj
def show(given: dict[str, Any], name: str, files: tuple[Path, ...], form: str) -> None:
    """Show one model: every value, and which are estimates.

    NAME is a key, a product name or an alias: h200, "NVIDIA H200".
    """
    import msgspec

    from simgpu.catalog import models

    model = models.load([*user_files(), *given["files"], *files]).get(name, field="NAME")
    if "json" in (form, given["form"]):
        output.print_json(model)
        return
    facts: dict[str, Any] = msgspec.to_builtins(model)
    rows = []
    for path, value in _flat(facts):
        note = "estimate" if model.is_estimated(path) else ""
        rows.append((path, str(value), note))
    output.print_rows(rows)
    if model.mig:
        click.echo()
        header = ("MIG PROFILE", "ID", "INSTANCES", "MEMORY", "SM")
        known = [
            (
                item.name,
                str(item.id),
                str(item.count),
                f"{item.memory_mib} MiB" if item.memory_mib else "?",
                str(item.sm or "?"),
            )
            for item in model.mig
        ]
        output.print_rows([header, *known])


@catalog.command("import")
@click.argument("capture", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--gpu", type=click.IntRange(0), metavar="INDEX", help="Index of the GPU in the capture.  [default: the first]"
)
@click.option("--key", metavar="NAME", help="Key of the model.  [default: from the product name]")
@click.option("--base", metavar="MODEL", help="Model for values that the capture lacks.  [default: the closest]")
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
    help="File to write, - for standard output. Its name is the key.  [default: KEY.yaml]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
@options.catalog
@click.pass_obj
def import_(
    given: dict[str, Any],
    capture: Path,
    gpu: int | None,
    key: str | None,
    base: str | None,
    target: Path | None,
    force: bool,
    files: tuple[Path, ...],
) -> None:
    """Create a model file from the nvidia-smi output of your own card.

    CAPTURE is the output of `nvidia-smi -q -x` on an idle machine; - reads standard input. Values that it lacks
    (multiprocessors, links, MIG profiles) are taken from the closest model, and marked as estimated unless that is
    the same product.

    \b
      nvidia-smi -q -x > capture.xml
      simgpu catalog import capture.xml
    """
    from simgpu.catalog import captures, importing, models

    extra = [*user_files(), *given["files"], *files]
    known = models.load(extra)
    found = captures.parse(_content(capture, captures.MAX_BYTES))
    if gpu is not None and gpu >= len(found.gpus):
        raise errors.InputError("--gpu", f"{gpu}: the capture has {_counted(len(found.gpus))}, from 0")
    like = None if base is None else known.get(base, field="--base")
    made = importing.import_gpu(found.gpus[gpu or 0], found.driver, known, base=like)
    name, path = _name_and_path(made.key, key, target)
    models.check(name, made.document, where=path or Path(f"{name}.yaml"), extra=extra)
    if path is None:
        click.echo(made.yaml(), nl=False)
    else:
        _write(path, made.yaml(), force=force)
    _report(made, name, path, others=[item for item in found.gpus if item.index != (gpu or 0)], chosen=gpu)


def _content(path: Path, max_bytes: int) -> bytes:
    """Read a file or standard input; one byte more than the maximum shows that it is too large."""
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(max_bytes + 1)
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise errors.InputError("CAPTURE", errors.explain(error)) from None


def _name_and_path(own: str, key: str | None, target: Path | None) -> tuple[str, Path | None]:
    """Return the model's key and its file; None if it is printed."""
    if target is None or str(target) == "-":
        name = key or own
        return name, None if target is not None else Path(f"{name}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise errors.InputError("--output", f"{target}: must end in .yaml or .yml")
    if key is not None and key != target.stem:
        raise errors.InputError("--output", f"{target}: the file name is the key, so it must be {key}.yaml")
    return target.stem, target


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError:
        raise errors.InputError("--output", f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise errors.InputError("--output", errors.explain(error)) from None


def _report(
    made: importing.Imported,
    name: str,
    path: Path | None,
    *,
    others: Sequence[captures.CapturedGpu],
    chosen: int | None,
) -> None:
    """Print a summary of the import to stderr, because standard output may be the file."""
    product = made.document["product"]
    click.echo(f"{path or name}: {product}, based on {made.base.key} ({made.why})", err=True)
    if others and chosen is None:
        different = {item.text("product_name") for item in others} - {product}
        which = f", among them {', '.join(sorted(filter(None, different)))}" if different else ""
        click.echo(f"It is the first of {len(others) + 1} GPUs{which}; choose another with --gpu INDEX.", err=True)
    if made.missing:
        click.echo(f"Not in the capture, so taken from {made.base.key}: behaviour under load, and", err=True)
        for field, value in made.missing.items():
            click.echo(f"  {field:<26} {_brief(value)}", err=True)
    estimated = made.document["estimated"]
    click.echo(f"Marked as estimated: {', '.join(estimated)}" if estimated else "Nothing is estimated.", err=True)
    if path is not None:
        click.echo(f"Try it: simgpu run --catalog {path} --model {name} -- nvidia-smi", err=True)


def _counted(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(str(item["name"]) if isinstance(item, dict) else f"{item:g}" for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in facts.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flat(value, f"{path}.")
        elif name == "aliases":
            yield path, ", ".join(value)
        elif isinstance(value, tuple | list) and value and isinstance(value[0], float):
            yield path, ", ".join(f"{item:g}" for item in value)
        elif isinstance(value, tuple | list) and value and isinstance(value[0], dict) and name != "mig":
            for number, item in enumerate(value):
                yield f"{path}[{number}]", ", ".join(f"{key} {part}" for key, part in item.items())
        elif value is not None and name not in ("mig", "estimated"):
            yield path, value
