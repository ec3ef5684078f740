"""What the image holds: Debian's Python, the packages that our wheel needs, and the wheel; without a shell.

Packages and requirements are one layer, which changes seldom and is kept in the cache; the wheel is another. Modules
are compiled beforehand, because the root of a container is read-only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import simgpu
from deploy.image import cached, debian, oci

NAME = f"simgpu:{simgpu.__version__}"
USER = 65532  # as in other images without a shell
PACKAGES = ("python3", "libstdc++6")

_ROOT = Path(__file__).parents[2]
_LEFT_OUT = ("dpkg", "tar")  # needed only to install packages
_DOCUMENTS = ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/bug", "usr/share/info")
_MODULES = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo")  # of Python, for people
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MACHINES = {name: machine for machine, name in oci.PLATFORMS.items()}
_NEWEST_GLIBC = 36  # of Debian 12


def image(wheel: Path, scratch: Path, platform: str) -> oci.Image:
    """Return the image for a processor, with layers in the cache and in a scratch folder."""
    requirements = project_requirements()
    base, version = system(platform, PACKAGES, requirements)
    with oci.Layer(scratch / f"wheel-{platform}.tar.gz") as layer:
        root = scratch / f"root-{platform}"
        install(root, [str(wheel)], platform, version, "--no-deps")
        for machine in {*_MACHINES.values()} - {_MACHINES[platform]}:
            for other in root.glob(f"usr/**/built/{machine}"):
                shutil.rmtree(other)
        compile_modules(root, version)
        layer.tree(root)
    return oci.Image(platform, (base, layer.blob), config())


def config() -> dict[str, Any]:
    """Return what a container of the image runs, and as whom."""
    return {
        "Entrypoint": ["simgpu"], "Cmd": ["--help"], "User": f"{USER}:{USER}", "WorkingDir": "/tmp",  # noqa: S108 - the one folder for all
        "Env": [f"PATH={_PATH}", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1"],
        "Labels": {
            "org.opencontainers.image.title": "simgpu", "org.opencontainers.image.version": simgpu.__version__,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }  # fmt: skip


def project_requirements() -> list[str]:
    """Return the packages that our wheel needs, with those that make it faster."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["fast"]]


def system(platform: str, packages: Sequence[str], requirements: Sequence[str]) -> tuple[oci.Blob, str]:
    """Return a layer with Debian packages and Python packages, and the version of its Python."""
    machine = platform if platform != oci.this_platform() else ""
    wanted = [item for item in debian.closure(*packages, machine=machine) if item.split("=")[0] not in _LEFT_OUT]
    version = python_version(wanted)
    parts = [platform, *wanted, *requirements, (_ROOT / "constraints.txt").read_text(), Path(__file__).read_text()]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def make(target: Path) -> None:
        root = target.with_name("root")
        for name in ("bin", "lib", "lib64", "sbin"):  # as on every Debian system
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
        debian.unpack(wanted, root, machine=machine)
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)
        accounts = {"passwd": "{0}:x:{1}:{1}:{0}:{2}:/sbin/nologin\n", "group": "{0}:x:{1}:\n"}
        for name, line in accounts.items():
            text = "".join(line.format(*who) for who in (("root", 0, "/root"), ("simgpu", USER, "/tmp")))  # noqa: S108
            (root / "etc" / name).write_text(text)
        install(root, requirements, platform, version)
        _prune(root, version)
        compile_modules(root, version)
        target.mkdir()
        with oci.Layer(target / "layer.tar.gz") as layer:
            layer.tree(root)
        layer.blob.save()

    folder = cached.made(f"images/system-{platform}-{digest}", make)
    return oci.Blob.load(folder / "layer.tar.gz"), version


def python_version(packages: Sequence[str]) -> str:
    """Return the version of Python among packages, such as 3.11."""
    return next(found[1] for item in packages if (found := re.match(r"python(3\.\d+)=", item)))


def install(root: Path, requirements: Sequence[str], platform: str, version: str, *options: str) -> None:
    """Install Python packages below a root, as pip would do there: for that processor and that Python."""
    site = root / "usr" / "local" / "lib" / f"python{version}" / "dist-packages"
    where = ["--target", str(site), *pip_options(platform, version)]
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", *where, *options]
    subprocess.run([*command, *requirements], check=True, timeout=600)
    (root / "usr" / "local" / "bin").mkdir(parents=True, exist_ok=True)
    for script in (site / "bin").iterdir() if (site / "bin").exists() else ():
        _, _, code = script.read_text().partition("\n")
        target = root / "usr" / "local" / "bin" / script.name
        target.write_text(f"#!/usr/bin/python3\n{code}")
        target.chmod(0o755)
    shutil.rmtree(site / "bin", ignore_errors=True)


def pip_options(platform: str, version: str) -> list[str]:
    """Return options of pip for packages of that processor and that Python, in the versions that were tested."""
    machine = _MACHINES[platform]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, 16, -1)]
    found = ["--python-version", version, "--implementation", "cp", "--only-binary=:all:"]
    found += [part for tag in (*tags, f"manylinux2014_{machine}") for part in ("--platform", tag)]
    return [*found, "--constraint", str(_ROOT / "constraints.txt")]


def compile_modules(root: Path, version: str) -> None:
    """Compile all modules below a root, the same from any source at any time."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        python = [sys.executable]
    else:  # modules are the same for all processors, so this machine's Python of that version will do
        native = debian.system(f"python{version}-minimal")
        with tempfile.TemporaryDirectory() as folder:
            script = debian.launcher(native, f"usr/bin/python{version}", Path(folder) / "bin")
            _compile([str(script)], root, version, {"PYTHONHOME": str(native / "usr")})
            return
    _compile(python, root, version, {})


def _compile(python: Sequence[str], root: Path, version: str, more: dict[str, str]) -> None:
    folders = [str(root / "usr" / "lib" / f"python{version}"), str(root / "usr" / "local" / "lib")]
    options = ["-q", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
    environment = {**os.environ, "PYTHONHASHSEED": "0", **more}
    # Files that are no modules of this Python, such as templates, are reported and left out.
    subprocess.run([*python, "-m", "compileall", *options, *folders], env=environment, check=False, timeout=600)


def _prune(root: Path, version: str) -> None:
    """Remove what people read, tests, and parts of Python that no program here imports."""
    library, site = root / f"usr/lib/python{version}", root / f"usr/local/lib/python{version}/dist-packages"
    unused = [*(root / path for path in _DOCUMENTS), *(library / name for name in _MODULES), site / "numpy" / "f2py"]
    unused += [*site.rglob("tests"), *site.rglob("*.pyi"), *site.rglob("*.a"), *site.rglob("*.pyx")]
    for path in unused:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
