"""Processes of pods as a reader on the node sees them: by the node's pids, those of containers that have the GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from simgpu import vocabulary
from simgpu.controllers.equipping import Equipment
from simgpu.dra.node_devices import MigPart
from simgpu.machines.users import PodRef
from simgpu.node import cpu
from simgpu.node.state import StateFiles
from simgpu.page import writer
from simgpu.topology.devices import part_id
from tests.fixtures import nvml, smi
from tests.fixtures.equipment import IDS, share, spec

APPS = ("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")


def on_node(folder: Path, pids: dict[str, Sequence[int]]) -> Equipment:
    def processes(ref: PodRef) -> Sequence[int]:
        return pids.get(ref.name, ())

    return Equipment(
        "node-a", StateFiles(folder, folder / "gpus"), cpu.Meter(folder), pages=folder / "gpus", stale=10.0,
        control=vocabulary.POD_SOCKET, seed=1, processes=processes,
    )  # fmt: skip


def step(made: Equipment) -> None:
    made.box.step(made.box.engine.now + 30.0, clock=time.time())
    made.stepped(made.box.engine.now)


def test_the_nodes_nvidia_smi_lists_the_processes_of_the_pods_that_have_a_gpu(tmp_path: Path) -> None:
    with smi.programs("first", "second", "third") as (one, two, three):
        made = on_node(tmp_path, {"p": (one, two), "q": (three,)})
        made.equip(spec(2))
        made.use({IDS[0]: (share("p", part=0.5), share("q", part=0.5)), IDS[1]: (share("unknown"),)})
        step(made)
        table = smi.say(made.pages, *APPS).splitlines()
        assert [line.split(", ")[0] for line in table] == [str(one), str(two), str(three)]
        memory = [int(line.split(", ")[1]) for line in table]
        page = writer.read(made.pages / IDS[0] / "page")
        assert page is not None
        assert memory[0] == pytest.approx(memory[1], abs=1)
        assert memory[2] == pytest.approx(2 * memory[0], abs=2)
        assert sum(memory) == pytest.approx(int(page["memory_used"][0]) >> 20, abs=2)
        asked = nvml.ask(made.pages, [
            "[(p.pid, p.usedGpuMemory >> 20) for p in N.nvmlDeviceGetComputeRunningProcesses(card)]",
            "sum(p.smUtil for p in N.nvmlDeviceGetProcessUtilization(card, 0))",
            f"N.nvmlSystemGetProcessName({three})",
        ])  # fmt: skip
    assert [pid for pid, _ in asked[0]] == [one, two, three]
    assert [used for _, used in asked[0]] == pytest.approx(memory, abs=1)
    assert asked[1] == int(page["usage"][0])
    assert asked[2].endswith("third")


def test_a_process_is_on_the_mig_instance_of_its_container(tmp_path: Path) -> None:
    parts = (MigPart("1g.18gb", 0, 7, 16384), MigPart("3g.71gb", 4, 2, 71424))
    with smi.programs("trainer") as (pid,):
        made = on_node(tmp_path, {"p": (pid,)})
        made.equip(spec(1), {IDS[0]: parts})
        made.use({IDS[0]: (msgspec.structs.replace(share("p"), part=2),)})
        step(made)
        assert f"|    0    2    0 {pid:>16}      C" in smi.say(made.pages)
        own = writer.folder(made.pages, part_id(IDS[0], 2))
        page, other = writer.read(own / "page"), writer.read(own.with_name(part_id(IDS[0], 7)) / "page")
    assert page is not None
    assert other is not None
    assert (int(page["app_count"][0]), int(page["apps"][0][0]["instance"])) == (1, 0)
    assert int(other["app_count"][0]) == 0
