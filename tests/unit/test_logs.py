"""What commands log: one line for each record, whatever others sent."""

from __future__ import annotations

import subprocess
import sys

LOGS = """
import logging
import click
from simgpu.cli import options

@click.command()
@options.log_level
def command():
    log = logging.getLogger("x")
    forged = "\\n\\r2026-01-01 00:00:00,000 ERROR agent: forged"
    log.info("workload refused: Limits.%s: unknown\\x1b[2J\\u2028\\u202e\\ud800", forged)
    log.info("a name may be any text: j\u00f6b \u4e2d")
    try:
        raise ValueError("bad" + forged)
    except ValueError:
        log.exception("GET /%s failed", forged)

command()
"""


def test_nothing_that_is_quoted_starts_a_line_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", LOGS], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    first, second, third, *traceback = lines
    escaped = r"\n\r2026-01-01 00:00:00,000 ERROR agent: forged"
    assert first.endswith(rf" INFO x: workload refused: Limits.{escaped}: unknown\x1b[2J\u2028\u202e\ud800")
    assert second.endswith(" INFO x: a name may be any text: j\u00f6b \u4e2d")
    assert third.endswith(f" ERROR x: GET /{escaped} failed")
    assert any("ValueError: bad" in line for line in traceback)
    assert all(line.startswith("  ") for line in traceback)
