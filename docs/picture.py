"""Draws the README's picture from a real session: `python -m docs.picture`."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import rich.console
import rich.terminal_theme
import rich.text

PICTURE = Path(__file__).parent / "images" / "up.svg"
SIMGPU = str(Path(sys.executable).parent / "simgpu")
SESSION = ("up --sample", "kubectl get nodes", "kubectl get pods -n sample", "status")


def run(arguments: str) -> str:
    """What a command prints to a user."""
    environment = {**os.environ, "PATH": f"{Path(SIMGPU).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["simgpu", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip("\n").replace(os.environ["XDG_STATE_HOME"], "~/.local/state")


def draw() -> str:
    """The session as an SVG that needs nothing from elsewhere."""
    console = rich.console.Console(record=True, width=104, file=io.StringIO(), highlight=False)
    for arguments in SESSION:
        console.print(rich.text.Text.assemble(("$ ", "green"), (f"simgpu {arguments}", "bold")))
        console.print(rich.text.Text(run(arguments)), end="\n\n")
        time.sleep(2)
    svg = console.export_svg(title="simgpu", theme=rich.terminal_theme.DIMMED_MONOKAI, unique_id="simgpu")
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        try:
            PICTURE.write_text(draw())
        finally:
            run("down")
