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
    parts += [part for name, command in sorted(main.root.commands.items()) for part in _section(command, name, root)]
    return "\n\n".join(parts) + "\n"


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
