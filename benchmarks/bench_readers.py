"""Programs of others that read simulated GPUs and are too large to be built for every run of the tests: Telegraf."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks import frame
from deploy.image import cached

MODULE = Path(__file__).parent / "telegraf"
TAGS = "custom,inputs.nvidia_smi,outputs.file,serializers.json"
CONFIG = """
[agent]
omit_hostname = true
[[inputs.nvidia_smi]]
bin_path = "{tool}"
[[outputs.file]]
files = ["{output}"]
data_format = "json"
"""
# Fields of Telegraf, and the same of nvidia-smi.
FIELDS = {
    "memory_total": "memory.total", "memory_used": "memory.used", "memory_free": "memory.free",
    "temperature_gpu": "temperature.gpu", "utilization_gpu": "utilization.gpu", "power_draw": "power.draw",
    "power_limit": "power.limit", "clocks_current_sm": "clocks.sm", "clocks_current_memory": "clocks.mem",
    "pcie_link_width_current": "pcie.link.width.current",
}  # fmt: skip
TOLERANCE = 0.1  # of a reading: both look one after the other, at cards that work
GPUS = 4


async def figures() -> AsyncIterator[frame.Figure]:
    """All figures of the package."""
    yield telegraf_fields()


def telegraf() -> Path:
    """Telegraf with its input for nvidia-smi and nothing else, built once."""
    if shutil.which("go") is None:
        sys.exit("Go is needed to build Telegraf")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    flags = ("-tags", TAGS, "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-gcflags=all=-dwarf=false")

    def build(program: Path) -> None:
        command = ["go", "build", *flags, "-o", str(program), "github.com/influxdata/telegraf/cmd/telegraf"]
        subprocess.run(command, cwd=MODULE, env=environment, check=True)

    return cached.made(f"telegraf/{cached.go_key(MODULE, *flags)}", build)


def telegraf_fields() -> frame.Figure:
    """Fields of all GPUs that Telegraf and nvidia-smi agree on, of those that both have."""
    script = (
        'tool=$(command -v nvidia-smi); output="$HOME/telegraf.json"; '
        f'printf %s \'{CONFIG}\' | sed "s|{{tool}}|$tool|; s|{{output}}|$output|" > "$HOME/telegraf.conf"; '
        f'"{telegraf()}" --config "$HOME/telegraf.conf" --once --quiet >&2; cat "$output"; echo; echo ---; '
        f"nvidia-smi --query-gpu=uuid,{','.join(FIELDS.values())} --format=csv,noheader,nounits"
    )
    command = [sys.executable, "-m", "simgpu", "run", "--count", str(GPUS), "--load", "training", "--"]
    with_home = 'HOME=$(mktemp -d); trap "rm -rf $HOME" EXIT; '
    done = subprocess.run([*command, "sh", "-c", with_home + script], capture_output=True, text=True, check=True)
    theirs, ours = done.stdout.split("---\n")
    rows = [json.loads(line) for line in theirs.splitlines() if line]
    read = {row["tags"]["uuid"]: row["fields"] for row in rows if row["name"] == "nvidia_smi"}
    agreeing = there = 0
    for line in ours.splitlines():
        uuid, *values = line.split(", ")
        for name, value in zip(FIELDS, values, strict=True):
            if name in read[uuid]:
                there += 1
                agreeing += abs(float(read[uuid][name]) - float(value)) <= TOLERANCE * max(10.0, float(value))
    return frame.Figure("readers.telegraf", agreeing, there, "fields", "those of Telegraf", "higher")
