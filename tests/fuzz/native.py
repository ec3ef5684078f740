"""Targets in C: library, tool and step of `native/`, built with libc, libFuzzer and sanitizers by Debian's clang.

What is built depends on nothing but the sources, so it is kept in the cache. Without Debian's packages there are no
such targets (`debian.UnavailableError`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deploy.image import cached, debian
from simgpu.page import layout
from tests.fixtures import pages
from tests.fuzz import steps
from tests.fuzz.target import Target

HERE = Path(__file__).parent / "c"
build: Any = importlib.import_module("native.build")  # which is no package: its folder has the sources
_PACKAGES = ("clang-14", "libclang-rt-14-dev")
_PROGRAMS = {  # with the part of `native/` in each
    "library": "nvml", "smi_pages": "smi", "smi_arguments": "smi", "step": "engine",
}  # fmt: skip
NAMES = tuple(f"native-{name}".replace("_", "-") for name in _PROGRAMS)
_FLAGS = (
    "-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", "-fno-omit-frame-pointer",
    "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-pthread",
)  # fmt: skip
_SYSTEM = ("-include", str(HERE / "system.h"), str(HERE / "pages.c"))  # what readers of pages find
_OPTIONS = {
    # The own memcpy and the like of the library have other names here, as the sanitizers have those of libc. Code that
    # compilers find in their loops would call the latter.
    "nvml": (*_SYSTEM, "-fno-builtin", *(f"-D{name}=text_{name}" for name in ("memcpy", "memmove", "memset"))),
    "smi": (
        *_SYSTEM, str(HERE / "tool.c"), "-Dmain=tool_main", "-Wl,--wrap=sleep_milliseconds", "-Wl,--wrap=print_to",
        "-Wl,--wrap=cards_open",
    ),
    "engine": ("-O2", "-ffp-contract=off", "-Wno-pass-failed"),  # loops become vectors, though not all of them here
}  # fmt: skip
_PID_NAMESPACE = 4026531836  # as `pages.c` has it
_SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:handle_abort=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}

_PROTOTYPE = re.compile(r'visibility\("default"\)\)\)\s+int\s+(nvml\w+)\s*\(([^)]*)\)')
# These take what only another call can have made, or a structure with an address in it: `library.c` calls those by hand
# that read the page.
_LEFT_OUT = re.compile(
    r"EventSet|RegisterEvents|Gpm|ProcessDetailList|ProcessesUtilizationInfo|Init|Shutdown|ExportTable"
)
# Their count is an answer only: a caller's list has room for all instances and places that a card can have.
_ALL_ROOM = re.compile(r"PossiblePlacements|GpuInstances$|ComputeInstances$")
_SIZES = ("size", "words", "count")
_SCALARS = {"char": "1", "unsigned": "4", "int": "4", "uint32_t": "4", "uint64_t": "8", "handle": "8"}
_OF_VOID = {  # whose version the function's name has
    "nvmlDeviceGetComputeRunningProcesses": "sizeof(struct process_v1)",
    "nvmlDeviceGetComputeRunningProcesses_v2": "sizeof(struct process_v2)",
    "nvmlDeviceGetComputeRunningProcesses_v3": "sizeof(struct process_v2)",
}


class Compiler:
    """Debian's clang, unpacked: its packages are of this machine's release, and so it runs with this machine's libc."""

    def __init__(self) -> None:
        self._root = cached.made(
            "debian/clang-14-system", lambda folder: debian.unpack(debian.closure(*_PACKAGES), folder)
        )

    def run(self, words: list[str]) -> str:
        """Run clang, and return what it prints."""
        (libraries,) = self._root.glob("usr/lib/*-linux-gnu")
        command = [
            str(self._root / "usr/lib/llvm-14/bin/clang"), f"--sysroot={self._root}", f"-B{self._root}/usr/bin", *words,
        ]  # fmt: skip
        environ = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout


def calls(preprocessed: str, header: str) -> str:
    """Return the table of the library's functions: the kind of each argument, and the size of what it points to."""
    known = set(re.findall(r"^struct (\w+) ?\{", header, re.MULTILINE))
    lines = []
    for name, given in sorted(dict(_PROTOTYPE.findall(preprocessed)).items()):
        if _LEFT_OUT.search(name) or given.strip() == "void":
            continue
        parts = [" ".join(part.split()) for part in given.split(",")]
        kinds = [_kind(part, name) for part in parts]
        sizes = [_size(part, name, known) for part in parts]
        if (at := _list(kinds, parts)) is not None and _ALL_ROOM.search(name):
            sizes[at] = f"MAX_SLICES * {sizes[at]}"
        elif at is not None:
            kinds[at] = "l"
            if "s" in kinds and parts[kinds.index("s")].endswith(" size"):  # in bytes
                sizes[at] = "1"
        lines.append(f'    {{(void *){name}, "{"".join(kinds)}", {{{", ".join(sizes)}}}}},')
    declared = "\n".join(f"int {name}();" for name in sorted(dict(_PROTOTYPE.findall(preprocessed))))
    table = "\n".join(lines)
    return (
        f'#include "nvml/nvml.h"\n#include "slices.h"\n{declared}\n'
        f"static const struct {{ void *function; const char *kinds; size_t sizes[8]; }} CALLS[] = {{\n{table}\n}};\n"
    )


def _kind(part: str, function: str) -> str:
    """Return the letter of an argument, as `library.c` has them."""
    kind, name = part.rpartition(" ")[0], re.split(r"[ *]", part)[-1]
    pointer = "*" in part or "[" in part
    if kind == "handle" and not pointer:
        return "d" if name != "instance" else "i" if function.startswith("nvmlComputeInstance") else "g"
    if not pointer:
        return "s" if name in _SIZES else "n"
    if part.startswith("const char"):
        return "t"
    return "c" if name == "count" else "p"


def _size(part: str, function: str, known: set[str]) -> str:
    """Return the size of what a pointer points to, in C; 0 if it is not known."""
    found = re.fullmatch(r"(?:const )?(?:struct )?(\w+) ?(\**) ?\w+(?:\[(\d+)\])?", part)
    if found is None or not (found[2] or found[3]):
        return "0"
    if found[1] == "void":
        return "8" if found[2] == "**" else _OF_VOID.get(function, "0")
    one = f"sizeof(struct {found[1]})" if found[1] in known else _SCALARS.get(found[1], "0")
    return "0" if found[1] == "char" else f"{found[3] or 1} * {one}"


def _list(kinds: list[str], parts: list[str]) -> int | None:
    """Return which argument is the list or text whose room another argument has; a structure has its own size."""
    if "c" in kinds:
        at = kinds.index("c")
        behind = [i for i in range(at + 1, len(kinds)) if kinds[i] == "p"]
        before = [i for i in range(at) if kinds[i] == "p"]
        return behind[0] if behind else before[-1] if before else None
    lists = [i for i, kind in enumerate(kinds) if kind == "p"]
    own = "s" not in kinds or (parts[lists[0]].startswith("struct") and not parts[kinds.index("s")].endswith("count"))
    return None if own else lists[0]


@functools.cache
def _built() -> Path:
    """Return the folder of the programs, built if a source has changed."""
    header, recorded = layout.header(), steps.recorded().tobytes()
    found = hashlib.sha256((build.digest(header) + Path(__file__).read_text()).encode() + recorded)
    for path in sorted(HERE.glob("*")):
        found.update(path.read_bytes())
    return cached.made(f"fuzz/{found.hexdigest()[:16]}", functools.partial(_build, header=header, recorded=recorded))


def _build(folder: Path, *, header: str, recorded: bytes) -> None:
    folder.mkdir()
    compiler = Compiler()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "page.h").write_text(header)
        (work / "stubs.c").write_text(build.stubs())
        include = [f"-I{work}", f"-I{build.HERE}", f"-I{HERE}"]
        sources = list(map(str, build.sources("nvml")))
        expanded = "".join(compiler.run(["-E", "-P", *include, source]) for source in sources)
        (work / "calls.h").write_text(calls(expanded, (build.HERE / "nvml" / "nvml.h").read_text()))
        for name, part in _PROGRAMS.items():
            # The step is in one file with what calls it, which sees its structures.
            files = [] if part == "engine" else list(map(str, build.sources(part)))
            more = [str(work / "stubs.c")] if part == "nvml" else []
            words = [*_FLAGS, *include, *_OPTIONS[part], *more, *files, str(HERE / f"{name}.c")]
            compiler.run([*words, "-o", str(folder / name)])
    (folder / "page").write_bytes(pages.recorded(mig=["1g.18gb", "2g.35gb"]).tobytes())
    (folder / "steps").write_bytes(recorded)


def program(name: str) -> Path:
    """Return the program of a target."""
    return _built() / name.removeprefix("native-").replace("-", "_")


def environment() -> dict[str, str]:
    """Return the environment in which the programs run."""
    return {
        **os.environ,
        **_SANITIZERS,
        "SIMGPU_FUZZ_PAGE": str(_built() / "page"),
        "SIMGPU_FUZZ_STEPS": str(_built() / "steps"),
    }


def _pages() -> Iterator[bytes]:
    shown = pages.hold(pages.recorded(**pages.LOAD, pid_namespace=_PID_NAMESPACE), 1, 7)
    shown["processes"] = layout.ALL_PROCESSES
    for made in (
        pages.recorded(), pages.recorded(**pages.LOAD), pages.recorded(mig=["1g.18gb", "3g.71gb"]),
        pages.hold(pages.recorded(**pages.LOAD), 1), pages.cards("t4"), pages.cards("rtx-4090"), pages.cards("k80"),
        pages.recorded(**pages.LOAD, processes=layout.ALL_PROCESSES), shown,
    ):  # fmt: skip
        yield made.tobytes()
    beyond_int = b"8" * 32  # what the kernel says of processes may be as the page begins
    yield beyond_int + pages.recorded(**pages.LOAD, processes=layout.ALL_PROCESSES).tobytes()[len(beyond_int) :]


def _seeds(head: int, count: int) -> tuple[bytes, ...]:
    """Return pages after a head that chooses what is asked, and the digits that the owner of a card answers.

    The byte behind it is how they are found, see `pages.h`.
    """
    made, found = list(_pages()), (0, 4, 8, 16, 10, 6, 24, 96, 146)
    return tuple(
        bytes([number, *b"9" * (head - 1), found[number % len(found)]]) + made[number % len(made)]
        for number in range(count)
    )


_LINES = (
    "-q", "-q\n-x", "-L", "-q\n-d\nCLOCK,POWER,MEMORY", "--query-gpu=name,uuid\n--format=csv,noheader,nounits",
    "--query-compute-apps=pid,used_memory\n--format=csv", "-i\n0\n-pl\n300", "-lgc\n300,1500", "-rgc", "-ac\n3201,1980",
    "-mig\n1", "mig\n-cgi\n19,14:0\n-C", "mig\n-dci\n-ci\n0\n-gi\n1", "mig\n-lgip", "dmon\n-s\npucvmet\n-c\n1\n-o\nDT",
    "pmon\n-c\n1\n-s\num", "topo\n-m", "topo\n-p2p\nn", "nvlink\n-s\n-i\n0", "-l\n1", "-lms\n100", "--help", "-h",
    "-i\nGPU-11111111-2222-3333-4444-555555555555", "-i\n0000:00:06.0", "--id=0", "-pm\n1", "-c\nEXCLUSIVE_PROCESS",
    "-e\n1", "-p\n0", "-r", "--version", "c2c\n-s", "vgpu\n-q", "--help-query-gpu", "-B", "-f\nx", "clocks\n--help",
)  # fmt: skip


def _steps(count: int) -> Iterator[bytes]:
    """Yield what chooses a record, cards and how calls divide them, and the bytes of which their states are made."""
    drawn = random.Random(1)  # the same ones each time
    for number in range(count):
        yield bytes([number * 7 % 256, number % 4 == 0]) + drawn.randbytes(14 + 40 * (number % 8))


def targets() -> dict[str, Target]:
    """Return the targets: nothing checks an input but the sanitizers."""
    size = layout.DTYPE.itemsize + 64
    found = (
        Target("native-library", lambda _data: None, _seeds(23, 90), max_length=size),
        Target("native-smi-pages", lambda _data: None, _seeds(16, 90), max_length=size),
        Target(
            "native-smi-arguments",
            lambda _data: None,
            tuple(line.encode() for line in _LINES),
            _words(),
            max_length=512,
        ),
        Target("native-step", lambda _data: None, tuple(_steps(40)), max_length=1024),
    )
    return {target.name: target for target in found}


def _words() -> tuple[str, ...]:
    """Return the words that the tool's sources know."""
    found = (word for path in build.sources("smi") for word in re.findall(r'"([\w.=-]{2,40})"', path.read_text()))
    return tuple(dict.fromkeys(found))
