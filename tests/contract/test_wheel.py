"""The wheel alone is enough: library and tool come with it, for both processors."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path


def test_it_has_all_that_is_built_for_both_processors_and_nothing_else(wheel: Path) -> None:
    built = {item.filename: item.external_attr >> 16 for item in zipfile.ZipFile(wheel).infolist()}
    built = {name: mode for name, mode in built.items() if "/built/" in name}

    assert set(built) == {
        f"simgpu/{folder}/built/{machine}/{name}"
        for machine in ("x86_64", "aarch64")
        for folder, name in (
            ("page", "libnvidia-ml.so.1"),
            ("page", "nvidia-smi"),
            ("page", "preloader.so"),
            ("sim", "step.so"),
        )
    }
    assert all(mode & 0o111 for mode in built.values())


def test_a_program_sees_gpus_after_an_install_of_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        tmp_path,
        wheel,
    ]
    subprocess.run([*map(str, install)], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *site.getsitepackages()])}
    command = [sys.executable, "-S", "-m", "simgpu", "run", "--", "nvidia-smi", "-L"]  # -S: not this checkout's
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)

    assert done.stdout.startswith("GPU 0: NVIDIA H200"), done.stderr
