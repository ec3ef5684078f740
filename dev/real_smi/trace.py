"""Writes down what the machine's nvidia-smi asks of its library: of the real one on a real card, and of ours.

`python3 -m dev.real_smi.trace BUNDLE RESULTS`: `real.trace` and `real.txt` are of views that change nothing,
`pmon.trace` has the answers about utilisation of processes while two programs work, `paint.json` what `pmon` prints
after one word of such an answer is another, and `ours.trace` is of every view of the bundle. Standard library only.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dev.real_smi import views

UTILISATION_SLOT = "145"
UNKNOWN_SLOTS = "12,20,75,108,138,193,194,199"  # whose arguments are written down in the views below
PAINT = "77"
PAINTED = {5: 256, 6: 64, 7: 64, 8: 64, 9: 64}  # bytes of each argument
AT_ONCE = 8
HARMLESS: Sequence[Sequence[str]] = (
    ("-L",), (), ("-q",), ("-q", "-x"), ("topo", "-m"), ("nvlink", "-s"), ("nvlink", "-c"), ("c2c", "-s"),
    ("mig", "-lgip"), ("mig", "-lgipp"), ("mig", "-lgi"), ("mig", "-lci"), ("dmon", "-c", "1"),
    ("dmon", "-c", "1", "-s", "pucvmet"), ("dmon", "-c", "1", "--gpm-metrics", "1,2,5,10"), ("pmon", "-c", "1"),
    ("pmon", "-c", "1", "-s", "um"), ("--query-compute-apps=pid,name,used_memory", "--format=csv"),
    ("--query-accounted-apps=pid,gpu_util", "--format=csv"), ("--version",), ("-q", "-d", "POWER"),
    ("-q", "-d", "MEMORY,UTILIZATION"), ("-q", "-d", "PIDS"), ("vgpu",), ("topo", "-p2p", "n"), ("-i", "9"),
    ("boost-slider", "-l"), ("compute-policy", "-l"), ("power-hint", "-l"),
    ("--query-gpu=enforced.power.limit", "--format=csv"),
    ("-q", "-d", "POWER,TEMPERATURE,PERFORMANCE"), ("-q", "-d", "TEMPERATURE"),
)  # fmt: skip


def real_library() -> str:
    """The library that a program gets which asks for it."""
    ctypes.CDLL("libnvidia-ml.so.1")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libnvidia-ml" in line)


def traced(bundle: Path, words: Sequence[str], **variables: str) -> str:
    """What the tool prints with the tracer between it and a library, and its exit code."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(bundle / "tracer"), **variables}
    code, printed, errors = views.finish([views.TOOL, *words], environment)
    return f"[rc={code}]\n{printed}{errors}"


def trace_real(bundle: Path, results: Path, library: str) -> None:
    """Views that change nothing, one after the other."""
    trace = results / "real.trace"
    place = views.finish([views.TOOL, "--query-gpu=pci.bus_id", "--format=csv,noheader"], os.environ)[1]
    by_place = ("-i", place.strip().partition(":")[2], "--query-gpu=index", "--format=csv")
    with (results / "real.txt").open("w") as printed:
        for words in (*HARMLESS, by_place):
            with trace.open("a") as file:
                file.write(f"=== {' '.join(words)}\n")
            text = traced(bundle, words, TRACE_LIBRARY=library, TRACE_FILE=str(trace), TRACE_DUMP=UNKNOWN_SLOTS)
            printed.write(f"$ nvidia-smi {' '.join(words)}\n{text}\n")


def trace_processes(bundle: Path, results: Path, library: str) -> None:
    """The answers of the utilisation slot, as they are and with single words changed."""
    common = {"TRACE_LIBRARY": library, "TRACE_DUMP": UTILISATION_SLOT}
    with (results / "pmon.txt").open("w") as printed:
        for words in (("pmon", "-c", "3"), ("pmon", "-c", "1", "-s", "um"), ("pmon", "-c", "1", "-s", "m")):
            printed.write(traced(bundle, words, TRACE_FILE=str(results / "pmon.trace"), **common))
    places = [(argument, offset) for argument, size in PAINTED.items() for offset in range(0, size, 4)]

    def painted(place: tuple[int, int]) -> str:
        word = f"{place[0]}:{place[1]}:{PAINT}"
        return traced(bundle, ("pmon", "-c", "1"), TRACE_FILE="/dev/null", TRACE_PAINT=word, **common)

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        found = {f"{a}:{o}": text for (a, o), text in zip(places, pool.map(painted, places))}  # noqa: B905
    (results / "paint.json").write_text(json.dumps(found, indent=1))


def trace_ours(bundle: Path, results: Path) -> None:
    """Every view of the bundle, on our library, one trace each."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    with tempfile.TemporaryDirectory() as made, (results / "ours.trace").open("w") as trace:
        for view in manifest["views"]:
            name = view["name"]
            lines = Path(made) / f"{name}.trace"
            environment = {
                "LD_LIBRARY_PATH": str(bundle / "tracer"),
                "TRACE_LIBRARY": str(bundle / "library" / "libnvidia-ml.so.1"),
                "TRACE_FILE": str(lines),
            }
            views.run_view(manifest, view, bundle, Path(made), environment)
            trace.write(f"=== {name}\n{lines.read_text() if lines.exists() else ''}")


def main(bundle: Path, results: Path) -> int:
    """Trace both; without a real card, or with one that cannot compute, ours alone."""
    library = real_library()
    trace_real(bundle, results, library)
    loads = [
        subprocess.Popen([sys.executable, "-m", "dev.real_smi.load", mib, "150"], stdout=subprocess.PIPE, text=True)
        for mib in ("1024", "2048")
    ]
    try:
        ready = [load.stdout.readline().strip() for load in loads if load.stdout]
        print(f"loads: {ready}, {[load.pid for load in loads]}")
        trace_processes(bundle, results, library)
    finally:
        for load in loads:
            load.kill()
            load.wait()
    trace_ours(bundle, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
