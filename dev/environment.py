"""Makes the Python environment in .venv: `python3 dev/environment.py run|native|dev`. Standard library only.

`run` holds what the commands need, `native` also the compiler of native/, `dev` also what tests, linters and
benchmarks need. Packages are installed by uv,
which is fetched with pip where it is not there and follows pip's own settings; where uv does not work, by pip.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
EXTRAS = {"run": "fast", "native": "fast,native", "dev": "dev,fast,native,plot"}
OLDEST_PYTHON = (3, 11)
# Where .venv is on PATH this runs in it, and there pip may be missing and everything be replaced.
INTERPRETER = str(getattr(sys, "_base_executable", None) or sys.executable)

# pip's setting -> the variables in which uv expects it.
UV_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, simgpu
names = [module.name for module in pkgutil.walk_packages(simgpu.__path__, "simgpu.")]
late = [name for name in ("numpy.random", "uvloop") if importlib.util.find_spec(name)]
for name in (*names, *late):
    importlib.import_module(name)
"""


def uv_variables(printed: str, given: dict[str, str]) -> dict[str, str]:
    """What `pip config list` printed, as variables for uv; a variable that is set already stays."""
    found: dict[str, str] = {}
    for line in printed.splitlines():
        key, _, value = line.partition("=")
        name = UV_SETTINGS.get(key.rpartition(".")[2])
        try:
            text = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            continue
        if name is not None and name not in given and isinstance(text, str):
            found[name] = ("," if name == "UV_FIND_LINKS" else " ").join(text.split())
    return found


def pip_settings(python: str) -> dict[str, str]:
    """Variables that make uv use the index and certificates that pip is set up with."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    return uv_variables(listed.stdout, dict(os.environ)) if listed.returncode == 0 else {}


def cache() -> Path:
    """What outlives a clone, as in simgpu.cluster.paths."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given.startswith("/") else Path.home() / ".cache") / "simgpu"


def find_uv() -> str | None:
    """uv from PATH, or fetched earlier."""
    kept = cache() / "uv" / "bin" / "uv"
    return shutil.which("uv") or (str(kept) if kept.exists() else None)


def fetch_uv() -> None:
    """Install uv into the cache, with the pip that is there or with one of a new environment."""
    options = ["install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--upgrade"]
    command = ["-m", "pip", *options, "--target", str(cache() / "uv"), "uv"]
    if not run([INTERPRETER, *command], quiet=True):
        make_venv()
        run([str(PYTHON), *command], quiet=True)


def make_venv() -> None:
    """An empty environment with pip in it; without Python's venv module, an explanation of what to install."""
    if PYTHON.exists() and run([str(PYTHON), "-m", "pip", "--version"], quiet=True):
        return
    if run([INTERPRETER, "-m", "venv", "--clear", str(VENV)], quiet=True):
        return
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit(f"Python's venv module is missing: install it (on Debian and Ubuntu: {package}) and run again")
    print(f"  Python's venv module is missing: installing the system package {package} with apt-get", flush=True)
    run(["apt-get", "update", "-qq"])
    if not run(["apt-get", "install", "-qq", "-y", package]):
        run(["apt-get", "install", "-qq", "-y", "python3-venv"])
    if not run([INTERPRETER, "-m", "venv", "--clear", str(VENV)]):
        raise SystemExit(f"{INTERPRETER} -m venv {VENV} failed")


def run(command: list[str], *, quiet: bool = False, variables: dict[str, str] | None = None) -> bool:
    """Whether a command succeeded; its output is shown unless it is to be quiet."""
    output = subprocess.DEVNULL if quiet else None
    environment = {**os.environ, **(variables or {})}
    return subprocess.run(command, stdout=output, stderr=output, env=environment, cwd=ROOT, check=False).returncode == 0


def install(level: str) -> str:
    """Install the packages of a level; which installer did it."""
    project = f".[{EXTRAS[level]}]"
    if find_uv() is None:
        fetch_uv()
    uv = find_uv()
    if uv is not None and install_with_uv(uv, project):
        return "uv"
    make_venv()
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not run([*pip, "--editable", project], variables={"PIP_CONSTRAINT": "constraints.txt"}):
        raise SystemExit("the Python packages could not be installed; pip's message is above")
    return "pip"


def install_with_uv(uv: str, project: str) -> bool:
    """Whether uv could do it; the editable build needs no compiler, so nothing but hatchling is fetched for it."""
    variables = pip_settings(INTERPRETER)
    made = PYTHON.exists() or run([uv, "venv", "--quiet", "--python", INTERPRETER, str(VENV)])
    pip = [uv, "pip", "install", "--quiet", "--python", str(PYTHON), "--constraint", "constraints.txt"]
    needs = made and run([*pip, "hatchling", "editables"], variables=variables)
    if needs and run([*pip, "--no-build-isolation-package", "simgpu", "--editable", project], variables=variables):
        return True
    print("  uv did not work here; installing with pip", flush=True)
    return False


def main(level: str) -> int:
    """Make the environment, compile our modules, and leave a mark that make looks at."""
    if sys.version_info < OLDEST_PYTHON:
        raise SystemExit(f"Python 3.11 or newer is needed, and {sys.executable} is {sys.version.split()[0]}")
    started = time.monotonic()
    print(f"Setting up Python packages in .venv ({level})", flush=True)
    installer = install(level)
    # Where PYTHONDONTWRITEBYTECODE is set, our modules and all that they import would be compiled at each start.
    run([str(PYTHON), "-c", IMPORT_ALL], variables={"PYTHONDONTWRITEBYTECODE": ""})
    for each in EXTRAS if level == "dev" else [level]:
        (VENV / each).touch()
    print(f"  Python packages by {installer}: {time.monotonic() - started:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        raise SystemExit(f"usage: {sys.argv[0]} {'|'.join(EXTRAS)}")
    sys.exit(main(sys.argv[1]))
