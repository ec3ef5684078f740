"""What a process that is killed leaves behind: whatever moment it was, its GPUs go on from there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WORKS = """
import itertools, sys, time
from pathlib import Path
from simgpu.controllers.equipping import Equipment
from simgpu.catalog import models
from simgpu.node import cpu
from simgpu.node.state import StateFiles
from simgpu.machines import profiles, users
from simgpu.topology import pools

folder = Path(sys.argv[1])
made = Equipment(
    "node-a", StateFiles(folder, folder / "gpus"), cpu.Meter(Path("/")), pages=folder / "gpus", stale=10.0, control="",
    seed=1,
)
made.equip(pools.NodeGpus((pools.NodeGpu(models.load().models["h200"]),) * 8))
first = not made.state.saved.devices
if first:
    made.box.engine.set_limit(1, 500)
made.box.admit(profiles.level("w", users.ALL), list(range(8)))
for step in itertools.count():
    if step:
        made.box.step(made.state.saved.now + step / 2, clock=time.time())
        made.stepped(0.0)
    read = {name: made.box.engine.read(name, [1])[0] for name in ("energy", "temperature", "limit")}
    print(*read.values(), flush=True)
"""


@pytest.mark.parametrize("seed", range(3))
def test_gpus_of_a_process_that_is_killed_go_on(tmp_path: Path, seed: int) -> None:
    moments = random.Random(seed)
    energy, temperature, limit = 0.0, 0.0, 500.0
    for life in range(3):
        child = subprocess.Popen([sys.executable, "-c", WORKS, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(60 if life == 0 else moments.randrange(1, 30))]
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.read().splitlines()  # a line may be cut
        child.wait()
        child.stdout.close()
        seen = [[float(part) for part in line.split()] for line in lines if line.count(" ") == 2]
        assert seen[0][0] >= energy
        assert abs(seen[0][1] - temperature) < 3 or life == 0
        assert {row[2] for row in seen} == {limit}
        energy, temperature, _ = seen[-1]
    assert temperature > 45
