"""The Dockerfile, built by Debian's buildah on a base image and with Python packages that are made ready here.

The programs that it compiles are built before, and the compiler is an empty package: to compile them takes minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.image import cached, contents, oci
from tests.fixtures import debian
from tests.fixtures.systems import SHELL

ROOT = Path(__file__).parents[2]
BASE, BUILT = "simgpu.test/base:1", "simgpu.test/docker:1"
# In mounts of its own, of which nothing is left; the libraries that buildah needs are there besides the machine's.
NAMESPACE = """
set -eu
mount -t overlay simgpu -o "lowerdir=$LIBRARIES" "$LIBRARY_FOLDER"
"$BUILDAH" pull --quiet --policy always --signature-policy "$POLICY" "oci-archive:$ARCHIVE" >&2
"$BUILDAH" bud --isolation chroot --pull-never --signature-policy "$POLICY" --ulimit nofile=20000:20000 \\
    --build-arg BASE="$BASE" --file deploy/Dockerfile --tag "$BUILT" "$@" . >&2
"$BUILDAH" inspect --type image "$BUILT" >"$INSPECTED"
container="$("$BUILDAH" from --pull-never --signature-policy "$POLICY" "$BUILT")"
"$BUILDAH" run --isolation chroot "$container" -- simgpu run --model h200 --count 2 -- nvidia-smi -L
"$BUILDAH" run --isolation chroot "$container" -- id -u
"""


def base_image(target: Path) -> str:
    """Write an image with Debian's Python, pip, and a shell, as official images of Python have them; its Python."""
    layer, version = contents.system(oci.this_platform(), (*contents.PACKAGES, *SHELL), ["pip"])
    environment = ["PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/packages"]
    oci.write(target, {BASE: [oci.Image(oci.this_platform(), (layer,), {"Env": environment})]})
    return version


def packages(version: str) -> Path:
    """A folder with the Python packages that the Dockerfile installs."""
    wanted = [*contents.project_requirements(), "hatchling", "numpy", "msgspec"]
    options = contents.pip_options(oci.this_platform(), version)
    constraints = (ROOT / "constraints.txt").read_text()
    digest = hashlib.sha256("\n".join([*wanted, *options, constraints]).encode()).hexdigest()[:16]

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "-q", "--dest", str(folder), *options, *wanted]
        subprocess.run(command, check=True, timeout=400)
        (compiler,) = re.findall(r"^ziglang==(.*)$", constraints, re.MULTILINE)
        with zipfile.ZipFile(folder / f"ziglang-{compiler}-py3-none-any.whl", "w") as wheel:
            info = f"ziglang-{compiler}.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: ziglang\nVersion: {compiler}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    return cached.made(f"images/packages-{digest}", make)


@pytest.mark.usefixtures("wheel")  # with which the programs are built
def test_the_dockerfile_makes_an_image_that_runs_as_ours_does(tmp_path: Path) -> None:
    volumes = {packages(base_image(tmp_path / "base.tar")): "/packages:ro"}
    for part in ("page", "sim"):
        shutil.copytree(ROOT / "src" / "simgpu" / part / "built", tmp_path / part)
        volumes[tmp_path / part] = f"/source/src/simgpu/{part}/built"
    options = [f"--volume={here}:{there}" for here, there in volumes.items()]
    (tmp_path / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    (tmp_path / "tmp").mkdir()
    root, libraries = debian.system("buildah"), f"lib/{platform.machine()}-linux-gnu"
    settings = {
        "BUILDAH": root / "usr/bin/buildah", "LIBRARY_FOLDER": f"/usr/{libraries}",
        "LIBRARIES": f"/usr/{libraries}:{root}/usr/{libraries}:{root}/{libraries}",
        "ARCHIVE": tmp_path / "base.tar", "POLICY": tmp_path / "policy.json", "INSPECTED": tmp_path / "inspected.json",
        "BASE": BASE, "BUILT": BUILT, "CONTAINERS_STORAGE_CONF": tmp_path / "storage.conf", "TMPDIR": tmp_path / "tmp",
    }  # fmt: skip
    storage = {"driver": "overlay", "graphroot": str(tmp_path / "store"), "runroot": str(tmp_path / "run")}
    lines = [f"{name} = {json.dumps(value)}" for name, value in storage.items()]
    (tmp_path / "storage.conf").write_text("\n".join(["[storage]", *lines]) + "\n")
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "sh", *options]
    environment = os.environ | {name: str(value) for name, value in settings.items()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    *gpus, user = done.stdout.splitlines()
    found, ours = json.loads((tmp_path / "inspected.json").read_text())["OCIv1"]["config"], contents.config()
    assert {name: found[name] for name in ("Entrypoint", "Cmd", "User", "WorkingDir")} == {
        name: ours[name] for name in ("Entrypoint", "Cmd", "User", "WorkingDir")
    }
    assert {*ours["Env"][1:]} <= {*found["Env"]}
    assert [re.sub(r" \(UUID.*", "", line) for line in gpus] == ["GPU 0: NVIDIA H200", "GPU 1: NVIDIA H200"]
    assert user == str(contents.USER)
