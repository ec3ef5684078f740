"""Writes the reference pages that come from the code: `python -m docs.generate`."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu import vocabulary
from simgpu.catalog import models
from simgpu.cli import main

CLI_PAGE = Path(__file__).parent / "reference" / "cli.md"
MODELS_PAGE = Path(__file__).parent / "reference" / "gpu-models.md"
KEYS_PAGE = Path(__file__).parent / "reference" / "keys.md"


_MODELS_HEAD = """\
# GPU models

<!-- Written by `make docs` from the catalog. -->

`simgpu catalog show KEY` has every figure of a model, and which of them are estimates. Anywhere a model can be named,
its product name or feature discovery's spelling of it means the same: `a100-pcie-40gb`, `NVIDIA A100-PCIE-40GB` and
`NVIDIA-A100-PCIE-40GB`.
"""

_KEYS_HEAD = """\
# Names and limits

<!-- Written by `make docs` from the vocabulary. -->

Labels, annotations, objects, environment variables and files, with who writes each: "you" are users of the cluster,
SimGPU is its controller or its agent. Names of other projects keep their meaning; names of our own start with
`simgpu.dev/` or `SIMGPU_`.
"""
_KEYS_NOTES = {
    "Labels of feature discovery": "They describe the node's GPUs; a fact that is not known of a card has no label.",
}


def cli_reference() -> str:
    """Every command with its help, in the order of the alphabet."""
    root = click.Context(main.root, info_name="simgpu", terminal_width=100, **main.root.context_settings)
    parts = ["# Command reference", "<!-- Written by `make docs` from the commands themselves. -->", _help(root)]
    parts += [part for name, command in sorted(main.root.commands.items()) for part in _section(command, name, root)]
    return "\n\n".join(parts) + "\n"


def models_reference() -> str:
    """Every GPU model with what people choose it by."""
    rows = [
        "| key | product | architecture | memory | power | MIG | figures from |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, model in sorted(models.load().models.items()):
        profiles = ", ".join(profile.name for profile in model.mig if "+" not in profile.name) or "no"
        cells = (
            f"`{key}`", model.product, model.architecture, f"{model.memory_mib.total} MiB",
            f"{model.power_w.default:.0f} W", profiles, model.source,
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([_MODELS_HEAD, *rows, ""])


def keys_reference() -> str:
    """Every name and limit of the interface."""
    parts = [_KEYS_HEAD]
    for heading, terms in vocabulary.TERMS.items():
        read_by = "read by" if heading == "Environment variables" else "on"
        rows: list[tuple[str, ...]] = [(f"`{term.name}`", *term[1:]) for term in terms]
        table = _table(("name", read_by, "written by", "meaning", "values", "default"), rows)
        parts.append("\n\n".join(filter(None, (f"## {heading}", _KEYS_NOTES.get(heading), table))) + "\n")
    limits: list[tuple[str, ...]] = [(f"{limit.highest:,}", limit.what, limit.why) for limit in vocabulary.LIMITS]
    return "\n".join([*parts, "## Limits\n", _table(("at most", "of what", "why"), limits), ""])


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table without columns in which nothing stands."""
    filled = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line[place] for place in filled)} |" for line in lines)


def _section(command: click.Command, name: str, parent: click.Context) -> list[str]:
    """A command's help, and that of the commands below it."""
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    parts = [f"## {context.command_path}", _help(context)]
    for inner, below in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
        parts += _section(below, inner, context)
    return parts


def _help(context: click.Context) -> str:
    return f"```text\n{context.get_help()}\n```"


if __name__ == "__main__":
    CLI_PAGE.write_text(cli_reference())
    MODELS_PAGE.write_text(models_reference())
    KEYS_PAGE.write_text(keys_reference())
