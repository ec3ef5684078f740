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
    """Catalog files of the user's, from SIMGPU_CATALOG."""
    return [Path(item) for item in os.environ.get(vocabulary.CATALOG_ENV, "").split(os.pathsep) if item]


@click.group(invoke_without_command=True)
@options.catalog
@options.output
@click.pass_context
def catalog(context: click.Context, files: tuple[Path, ...], form: str) -> None:
    """List the GPU models and workload shapes that can be simulated.

    Add models of your own as YAML files: the file's name is the key, `base: h200` takes everything from another
    model, and only what differs has to be written.

    \b
      simgpu catalog show h200
    """
    context.obj = {"files": files, "form": form}
    if context.invoked_subcommand is not None:
        return
    from simgpu.catalog import models, shapes

    known, mixes = models.load([*user_files(), *files]), shapes.load()
    if form == "json":
        output.print_json({"models": known.models, "shapes": mixes})
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
    """Explain one model: every figure, where it comes from, and which are estimates.

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
@click.option("--gpu", type=click.IntRange(0), metavar="INDEX", help="Which GPU of the capture.  [default: the first]")
@click.option("--key", metavar="NAME", help="The model's key.  [default: from the product's name]")
@click.option("--base", metavar="MODEL", help="Take what the capture does not say from here.  [default: the closest]")
@click.option(
    "-o", "--output", "target", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
    help="Where to write it; - prints it. The file's name is the key.  [default: KEY.yaml]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
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
    """Make a model file from what nvidia-smi printed of a card of your own.

    CAPTURE is the output of `nvidia-smi -q -x` on an idle machine; - reads standard input. What it does not say
    (multiprocessors, links, MIG profiles) is taken from the closest model, and marked as estimated unless that is
    of the same product.

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


def _content(path: Path, most: int) -> bytes:
    """A file's bytes, or standard input's; one more than is allowed shows that there are too many."""
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(most + 1)
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise errors.InputError("CAPTURE", errors.explain(error)) from None


def _name_and_path(own: str, key: str | None, target: Path | None) -> tuple[str, Path | None]:
    """The model's key, and the file that is named after it; none if it is printed."""
    if target is None or str(target) == "-":
        name = key or own
        return name, None if target is not None else Path(f"{name}.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise errors.InputError("--output", f"{target}: must end in .yaml or .yml")
    if key is not None and key != target.stem:
        raise errors.InputError("--output", f"{target}: the file's name is the key, so it must be {key}.yaml")
    return target.stem, target


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x") as file:
            file.write(text)
    except FileExistsError:
        raise errors.InputError("--output", f"{path} is there already; --force replaces it") from None
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
    """What became of the capture, for a person: standard output may be the file."""
    product = made.document["product"]
    click.echo(f"{path or name}: {product}, on top of {made.base.key} ({made.why})", err=True)
    if others and chosen is None:
        different = {item.text("product_name") for item in others} - {product}
        which = f", among them {', '.join(sorted(filter(None, different)))}" if different else ""
        click.echo(f"It is the first of {len(others) + 1} GPUs{which}; --gpu INDEX takes another.", err=True)
    if made.missing:
        click.echo(f"Not in the capture, and so as with {made.base.key}: how it behaves under load, and", err=True)
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
