"""Builds the programs for pods and the engine's compiled step, when a source has changed: `python -m native.build`."""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "simgpu"
BUILT = PACKAGE / "page" / "built"
MACHINES = ("x86_64", "aarch64")
LIBRARY = "libnvidia-ml.so.1"
TOOL = "nvidia-smi"
PRELOADER = "preloader.so"
STEP = "step.so"
FOLDERS = {LIBRARY: BUILT, TOOL: BUILT, PRELOADER: BUILT, STEP: PACKAGE / "sim" / "built"}  # each has one per machine

_STRICT = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=undefined", "-s")
_FREESTANDING = (
    "-DFREESTANDING", "-fPIC", "-shared", "-nostdlib", "-fno-builtin", "-fno-stack-protector", "-fvisibility=hidden",
)  # fmt: skip
_STUB = '__attribute__((weak, visibility("default"))) int {name}(void) {{ return nvml_unsupported(); }}'


def sources(part: str) -> list[Path]:
    """The C files of the library (`nvml`) or the tool (`smi`), with those that they share, or of another part."""
    shared = HERE.glob("*.c") if part in {"nvml", "smi"} else ()
    return sorted([*shared, *(HERE / part).glob("*.c")])


def stubs() -> str:
    """Return stubs of every function of the real library, for those that are not implemented: NOT_SUPPORTED."""
    names = (HERE / "nvml" / "symbols.txt").read_text().split()
    return "int nvml_unsupported(void);\n" + "\n".join(_STUB.format(name=name) for name in names) + "\n"


def digest(header: str) -> str:
    """What decides whether to build: every source, the page's header, and the compiler."""
    found = hashlib.sha256(header.encode())
    for path in sorted(HERE.rglob("*")):
        if path.suffix in {".c", ".h", ".txt", ".py"}:
            found.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes())
    found.update(importlib.metadata.version("ziglang").encode())
    return found.hexdigest()


def is_current(header: str) -> bool:
    """Whether what is built was built from what is there."""
    mark = BUILT / "digest"
    whole = all((folder / machine / name).is_file() for machine in MACHINES for name, folder in FOLDERS.items())
    return whole and mark.is_file() and mark.read_text() == digest(header)


def build(header: str) -> None:
    """Build everything anew, and put it in place when all of it is good."""
    for interrupted in BUILT.glob(".building-*"):
        shutil.rmtree(interrupted, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=BUILT, prefix=".building-") as made:
        work = Path(made)
        (work / "page.h").write_text(header)
        (work / "stubs.c").write_text(stubs())
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done in [pool.submit(subprocess.run, command, check=True) for command in _commands(work)]:
                done.result()
        for machine in MACHINES:
            for name, folder in FOLDERS.items():
                (folder / machine).mkdir(parents=True, exist_ok=True)
                (work / f"{machine}-{name}").chmod(0o755)
                shutil.move(work / f"{machine}-{name}", folder / machine / name)
    (BUILT / "digest").write_text(digest(header))


def _commands(work: Path) -> Iterator[list[str]]:
    compiler = [sys.executable, "-m", "ziglang", "cc", *_STRICT, f"-I{work}", f"-I{HERE}"]
    for machine in MACHINES:
        shared = ["-target", f"{machine}-linux-gnu.2.17", *_FREESTANDING]
        library = [*shared, f"-Wl,-soname,{LIBRARY}", str(work / "stubs.c")]
        preloader = [*shared, f"-Wl,-soname,{PRELOADER}"]
        tool = ["-target", f"{machine}-linux-musl", "-static"]
        step = [*shared, f"-Wl,-soname,{STEP}", "-ffp-contract=off"]  # rounds as numpy does
        for name, part, flags in (
            (LIBRARY, "nvml", library),
            (TOOL, "smi", tool),
            (PRELOADER, "preloader", preloader),
            (STEP, "engine", step),
        ):
            yield [*compiler, *flags, *map(str, sources(part)), "-o", str(work / f"{machine}-{name}")]


def main() -> int:
    """Build if a source has changed."""
    from simgpu.page import layout  # noqa: PLC0415 - the build of a wheel finds it another way

    header = layout.header()
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:  # of two that want them at once, one builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current(header):
            (BUILT / "digest").touch()  # newer than every source
            return 0
        print(
            "Building libnvidia-ml.so.1, nvidia-smi, preloader.so and step.so (up to a minute the first time)",
            flush=True,
        )
        try:
            build(header)
        except subprocess.CalledProcessError as error:
            return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
