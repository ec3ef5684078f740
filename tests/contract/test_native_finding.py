"""Where library and tool find pages: in the driver folder that they are in, and in containers as firmware."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt
import pytest

from simgpu.catalog import models
from simgpu.node import driver_texts
from simgpu.page import apps, layout, native
from simgpu.page import rows as page_rows
from simgpu.topology import devices
from tests.fixtures import pages

LIBRARY = f"usr/lib/{platform.machine()}-linux-gnu/libnvidia-ml.so.580.159.04"
COUNT = """
import ctypes, sys
library, count = ctypes.CDLL(sys.argv[1]), ctypes.c_uint()
print(library.nvmlInit_v2(), library.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value)
"""


def put(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True)
    shutil.copy(source, target)
    return target


def without_pages() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "SIMGPU_PAGES"}


def container(
    root: Path, rows: npt.NDArray[Any], *options: str, cards: Sequence[int], caps: Sequence[int] = ()
) -> list[str]:
    """What nvidia-smi prints in a container that has these device files, of a node with these cards."""
    put(native.tool(), root / "bin" / "nvidia-smi")
    pages.write(root / "all", rows)
    firmware = root / "lib/firmware/nvidia/580.159.04"
    firmware.mkdir(parents=True)
    (firmware / "gsp_ga10x.bin").touch()
    for row in rows:
        name = row["uuid"].decode()
        shutil.move(root / "all" / name / "page", firmware / f"gsp_simgpu-{name}.bin")
    (root / "dev/nvidia-caps").mkdir(parents=True)
    for card in cards:
        (root / f"dev/nvidia{card}").touch()
    for cap in caps:
        (root / f"dev/nvidia-caps/nvidia-cap{cap}").touch()
    command = ["chroot", str(root), "/bin/nvidia-smi", *(options or ("-L",))]
    done = subprocess.run(command, capture_output=True, text=True, env=without_pages(), check=False, timeout=20)
    return done.stdout.splitlines()


def divided() -> tuple[npt.NDArray[Any], int]:
    """The page of a card whose first instance two compute instances share, and the number of that instance."""
    entry = devices.GpuEntry(type="h200", mig=("3g.71gb", "1g.18gb"))
    [card] = devices.build(devices.BoxConfig((entry,)), models.load([]), node="test")
    shared = card.placements()[0].number
    compute = devices.ComputeInstance(shared, 0, 0, 2), devices.ComputeInstance(shared, 1, 1, 0)
    rows = pages.cards("h200", 1, mig=entry.mig)
    page_rows.describe_instances(rows[0], msgspec.structs.replace(card, bare=(shared,), compute=compute))
    return rows, shared


@pytest.mark.parametrize("program", ["library", "tool"])
def test_a_driver_folder_works_wherever_it_is_mounted(tmp_path: Path, program: str) -> None:
    pages.write(tmp_path / "driver-root/var/lib/simgpu/gpus", pages.cards("h200", 3))
    if program == "tool":
        command = [str(put(native.tool(), tmp_path / "driver-root/usr/bin/nvidia-smi")), "-L"]
    else:
        command = [sys.executable, "-c", COUNT, str(put(native.library(), tmp_path / "driver-root" / LIBRARY))]
    done = subprocess.run(command, capture_output=True, text=True, env=without_pages(), check=False, timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout == "0 0 3\n") if program == "library" else len(done.stdout.splitlines()) == 3


def test_the_environment_comes_before_the_driver_folder(tmp_path: Path) -> None:
    pages.write(tmp_path / "root/var/lib/simgpu/gpus", pages.cards("h200", 3))
    folder = pages.write(tmp_path / "named", pages.cards("h200", 2))
    library = put(native.library(), tmp_path / "root" / LIBRARY)
    command = [sys.executable, "-c", COUNT, str(library)]
    environ = {**os.environ, "SIMGPU_PAGES": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True, timeout=20)
    assert done.stdout == "0 0 2\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the root of the file system")
class TestContainer:
    def test_a_container_sees_the_cards_whose_device_files_it_has(self, tmp_path: Path) -> None:
        shown = container(tmp_path, pages.cards("h200", 3), cards=(0, 2))
        assert [line.partition(":")[0] for line in shown] == ["GPU 0", "GPU 1"]
        uuids = [row["uuid"].decode() for row in pages.cards("h200", 3)]
        assert [uuids.index(line.partition("UUID: ")[2].rstrip(")")) for line in shown] == [0, 2]

    def test_a_container_without_device_files_has_no_card(self, tmp_path: Path) -> None:
        assert not [line for line in container(tmp_path, pages.cards("h200", 3), cards=()) if line.startswith("GPU")]

    def test_a_container_sees_the_instances_whose_capability_files_it_has(self, tmp_path: Path) -> None:
        mig = ("1g.18gb", "1g.18gb", "2g.35gb")
        rows = pages.cards("h200", 3, mig=mig)
        own = rows["instances"][1][1]
        cap = driver_texts.gpu_instance_minor(1, int(own["gpu_instance"]))
        shown = container(tmp_path, rows, cards=(1,), caps=(cap, cap + 1))
        assert len([line for line in shown if line.startswith("GPU")]) == 1
        [only] = [line for line in shown if "MIG" in line]
        assert own["uuid"].decode() in only

    def test_a_container_sees_one_of_the_compute_instances_that_share_an_instance(self, tmp_path: Path) -> None:
        rows, shared = divided()
        cap = driver_texts.gpu_instance_minor(0, shared)
        shown = container(tmp_path, rows, cards=(0,), caps=(cap, cap + 2))
        [only] = [line for line in shown if "MIG" in line]
        assert only.strip().startswith("MIG 2c.3g.71gb")
        assert rows["instances"][0][1]["uuid"].decode() in only

    def test_a_container_sees_the_processes_of_its_own_instances(self, tmp_path: Path) -> None:
        rows, shared = divided()
        rows["open"], rows["processes"] = 1, layout.NAMED_PROCESSES
        apps.fill(rows[0], [apps.App(100 + place, 1, 1, place) for place in range(3)])
        rows["app_names"]["text"][0, :3] = [b"first", b"second", b"third"]
        cap = driver_texts.gpu_instance_minor(0, shared)
        shown = container(tmp_path, rows, "-q", "-d", "PIDS", cards=(0,), caps=(cap, cap + 2))
        words = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in shown)}
        assert [line for line in shown if "Process ID" in line] == [line for line in shown if ": 101" in line] != []
        assert words["Name"] == "second"
        assert (words["GPU instance ID"], words["Compute instance ID"]) == (str(shared), "1")


def test_the_address_of_this_code_is_found_among_many_mapped_files(tmp_path: Path) -> None:
    pages.write(tmp_path / "root/var/lib/simgpu/gpus", pages.cards("h200", 1))
    library = put(native.library(), tmp_path / "root" / LIBRARY)
    many = [put(native.library(), tmp_path / f"{number:03d}{'x' * 200}" / "other.so") for number in range(60)]
    load = "".join(f"ctypes.CDLL({str(path)!r})\n" for path in many)
    command = [sys.executable, "-c", f"import ctypes\n{load}{COUNT}", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, env=without_pages(), check=True, timeout=20)
    assert done.stdout == "0 0 1\n"
