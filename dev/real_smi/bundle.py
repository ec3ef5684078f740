"""Makes the folder that runs the real nvidia-smi on our library elsewhere: `python -m dev.real_smi.bundle FOLDER`."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from simgpu.page import layout, native
from tests.fixtures import pages, recordings

HERE: Final = Path(__file__).parent
SYMBOLS: Final = HERE.parent.parent / "native" / "nvml" / "symbols.txt"
LIBRARY: Final = "libnvidia-ml.so.1"
TABLE: Final = "nvmlInternalGetExportTable"
SLOTS: Final = 270
MODULES: Final = ("__init__.py", "views.py", "trace.py", "load.py")


def main(folder: Path) -> int:
    """Write the folder: programs, our library, the tracer, and a page for each view."""
    (folder / "pages").mkdir(parents=True)
    (folder / "library").mkdir()
    (folder / "dev" / "real_smi").mkdir(parents=True)
    for name in MODULES:
        shutil.copy(HERE / name, folder / "dev" / "real_smi" / name)
    (folder / "dev" / "__init__.py").touch()
    shutil.copy(HERE / "run.sh", folder / "run.sh")
    shutil.copy(native.BUILT / "x86_64" / LIBRARY, folder / "library" / LIBRARY)
    build_tracer(folder / "tracer")
    apps, samples = layout.DTYPE.fields["apps"], layout.DTYPE.fields["samples"]  # type: ignore[index]
    made = list(views(folder))
    manifest = {
        "written_ns": layout.DTYPE.fields["written_ns"][1],  # type: ignore[index]
        "apps": [apps[1], layout.DTYPE["apps"].base.itemsize],
        "first_sample_us": samples[1] + layout.DTYPE["samples"].base.fields["time_us"][1],  # type: ignore[index]
        "views": made,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    print(f"{len(made)} views in {folder}")
    return 0


def views(folder: Path) -> Iterator[dict[str, Any]]:
    """Every recorded command, with the page of its card."""
    for name in recordings.TEXTS:
        words, _, output = recordings.recording(name)
        if name == "load-smi-dmon-all":  # counts from row to row
            states = list(moments(name, output))
            for earlier, later in itertools.pairwise(states):
                later["throttle_power_ns"] = earlier["throttle_power_ns"] + 10**10
            yield view(folder, name, words, *states)
        elif name in recordings.SCROLLING:
            for place, fields in enumerate(moments(name, output)):
                yield view(folder, f"{name}.{place}", [*words[:-1], "1"], fields)
        else:
            yield view(folder, name, words, recordings.fields(name))
    for name in recordings.QUERIES:
        groups = json.loads((recordings.RECORDINGS / f"{name}.json").read_text())
        for place, names in enumerate(groups):
            words = [*f"--query-gpu={names}".split(" "), "--format=csv"]
            yield view(folder, f"{name}.{place}", words, recordings.fields(name))


def moments(name: str, output: str) -> Iterator[dict[str, Any]]:
    """The state of each row of a recording that scrolls."""
    header, _, *rows = output.splitlines()
    for row in rows:
        yield {**recordings.STATES.get(recordings.kind(name), {}), **recordings.moment(header, row)}


def view(folder: Path, name: str, words: list[str], *states: dict[str, Any]) -> dict[str, Any]:
    """Write the pages of a view; what the machine there needs to know of it."""
    programs = recordings.PROGRAMS.get(recordings.kind(name), {})
    made = []
    for place, fields in enumerate(states):
        rows = recordings.card(name.partition(".")[0], fields)
        if programs:
            rows = pages.hold(rows, *range(1, 1 + len(programs)))
            rows["sample_count"] = 1
        made.append(f"pages/{name}-{place}.page")
        (folder / made[-1]).write_bytes(page_bytes(rows))
    return {"name": name, "words": words, "pages": made, "programs": programs}


def page_bytes(rows: np.ndarray[Any, Any]) -> bytes:
    """The page of the only card, good on any machine, for a day."""
    rows["boot"], rows["stale_ns"] = b"", 24 * pages.HOUR_NS
    return bytes(rows[0].tobytes())


def build_tracer(folder: Path) -> None:
    """Compile a library that passes all calls on to another one, and writes them down."""
    folder.mkdir()
    names = [name for name in SYMBOLS.read_text().split() if name != TABLE]
    calls = "\n".join(f"PUBLIC({number}, {name})" for number, name in enumerate(names))
    slots = "\n".join(f"SLOT({number})" for number in range(SLOTS))
    taken = ", ".join(f"slot_{number}" for number in range(SLOTS))
    (folder / "calls.h").write_text(f"{calls}\n{slots}\nstatic const function SLOTS[] = {{{taken}}};\n")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-s"]
    shared = ["-target", "x86_64-linux-gnu.2.17", "-fPIC", "-shared", f"-Wl,-soname,{LIBRARY}", f"-I{folder}", "-ldl"]
    subprocess.run([*compiler, *shared, str(HERE / "tracer.c"), "-o", str(folder / LIBRARY)], check=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
