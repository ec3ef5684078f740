"""Commands about GPU models and workload shapes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from simgpu.cli import options, output


def user_files() -> list[Path]:
    """Catalog files of the user's, from SIMGPU_CATALOG."""
    return [Path(item) for item in os.environ.get("SIMGPU_CATALOG", "").split(os.pathsep) if item]


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
