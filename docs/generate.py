"""Writes the reference pages that come from the code: `python -m docs.generate`."""

from __future__ import annotations

from pathlib import Path

import click

from simgpu.cli import main

CLI_PAGE = Path(__file__).parent / "reference" / "cli.md"


def cli_reference() -> str:
    """Every command with its help, in the order of the alphabet."""
    root = click.Context(main.root, info_name="simgpu", terminal_width=100, **main.root.context_settings)
    parts = ["# Command reference", "<!-- Written by `make docs` from the commands themselves. -->", _help(root)]
    for name, command in sorted(main.root.commands.items()):
        context = click.Context(command, parent=root, info_name=name, **command.context_settings)
        parts += [f"## simgpu {name}", _help(context)]
    return "\n\n".join(parts) + "\n"


def _help(context: click.Context) -> str:
    return f"```text\n{context.get_help()}\n```"


if __name__ == "__main__":
    CLI_PAGE.write_text(cli_reference())
