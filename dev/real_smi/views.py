"""Runs every view of the bundle with the machine's nvidia-smi on our library, and writes what each printed.

`python3 -m dev.real_smi.views BUNDLE RESULTS.json`; standard library only.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TOOL = os.environ.get("NVIDIA_SMI", "/usr/bin/nvidia-smi")
AT_ONCE = 8
PATIENCE_SECONDS = 60.0
IDENTITY = "GPU-11111111-2222-3333-4444-555555555555"  # the recorded card's, which no real one has
# Where the number of a process stands: in -q and its XML, in columns before its type, and in a table before its name.
PLACES = tuple(
    re.compile(before + r"(?P<space> *)(?P<number>\b\d+)\b" + after, re.MULTILINE)
    for before, after in (
        (r"(?<=Process ID                        :)", ""), ("(?<=<pid>)", ""), ("", "(?= +C )"),
        ("^", "(?=, )"), (r"(?<=-\w{12},)", "(?=, )"),
    )
)  # fmt: skip

Manifest = Mapping[str, Any]
Result = tuple[int, str, str]


def main(bundle: Path, results: Path) -> int:
    """Run all views, once it is sure that the tool uses our library."""
    manifest: Manifest = json.loads((bundle / "manifest.json").read_text())
    library = bundle / "library"
    environment = {"LD_LIBRARY_PATH": str(library)}
    with tempfile.TemporaryDirectory() as made:
        first = run_view(manifest, find(manifest, "idle-smi-L"), bundle, Path(made), environment)
        if IDENTITY not in first[1]:
            print(f"{TOOL} does not use the library in {library}: {first}")
            return 1
        found = run_all(manifest, bundle, Path(made), environment)
    results.write_text(json.dumps(found, indent=1))
    print(f"{len(found)} views run")
    return 0


def find(manifest: Manifest, name: str) -> Mapping[str, Any]:
    """A view by its name."""
    found: Mapping[str, Any] = next(view for view in manifest["views"] if view["name"] == name)
    return found


def run_all(manifest: Manifest, bundle: Path, work: Path, environment: Mapping[str, str]) -> dict[str, Result]:
    """What each view printed, by its name."""
    views: Sequence[Mapping[str, Any]] = manifest["views"]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda view: run_view(manifest, view, bundle, work, environment), views)
        return dict(zip([view["name"] for view in views], results))  # noqa: B905 - Python 3.8 has no such argument


def run_view(
    manifest: Manifest, view: Mapping[str, Any], bundle: Path, work: Path, environment: Mapping[str, str]
) -> Result:
    """Run one view on its page; the numbers of its processes read as recorded."""
    folder = work / view["name"]
    with programs(*view["programs"].values()) as numbers:
        pages = [prepare(manifest, (bundle / page).read_bytes(), numbers) for page in view["pages"]]
        put(folder, pages[0])
        variables = {**os.environ, **environment, "SIMGPU_PAGES": str(folder)}
        command = [TOOL, *view["words"]]
        result = follow(command, variables, folder, pages) if len(pages) > 1 else finish(command, variables)
    return (result[0], *(name_again(text, numbers, list(view["programs"])) for text in result[1:]))  # type: ignore[return-value]


def prepare(manifest: Manifest, page: bytes, numbers: Sequence[int]) -> bytes:
    """The page as if written now, with the processes that run now in place of the numbers 1, 2, …

    What they do is of the time of the last sample: their page has one, taken now.
    """
    changed = bytearray(page)
    struct.pack_into("<Q", changed, manifest["written_ns"], time.monotonic_ns())
    if numbers:
        struct.pack_into("<Q", changed, manifest["first_sample_us"], time.time_ns() // 1000)
    first, step = manifest["apps"]
    for at in range(first, first + step * len(numbers), step):
        (placeholder,) = struct.unpack_from("<i", changed, at)
        struct.pack_into("<i", changed, at, numbers[placeholder - 1])
    return bytes(changed)


def put(folder: Path, page: bytes) -> None:
    """Where the library looks for it, in place: it may be open."""
    path = folder / "card" / "page"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+b") as file:
        file.write(page)


def finish(command: Sequence[str], variables: Mapping[str, str]) -> Result:
    """Run a command to its end."""
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        return 124, str(error.stdout), str(error.stderr)
    return done.returncode, done.stdout, done.stderr


def follow(command: Sequence[str], variables: Mapping[str, str], folder: Path, pages: Sequence[bytes]) -> Result:
    """Run a command that prints rows, with another page after each; on a terminal, so that it prints them at once."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=variables, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        later, text = iter(pages[1:]), ""
        with contextlib.suppress(OSError):  # the end of a terminal
            while chunk := os.read(ours, 4096).decode():
                rows = count_rows(text)
                text += chunk
                for _ in range(count_rows(text) - rows):
                    page = next(later, None)
                    if page is not None:
                        put(folder, page)
        os.close(ours)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, text.replace("\r\n", "\n"), errors


def count_rows(text: str) -> int:
    """How many rows are printed to their end, headers aside."""
    return sum(line.endswith("\n") and not line.startswith("#") for line in text.splitlines(keepends=True))


def name_again(text: str, numbers: Sequence[int], recorded: Sequence[str]) -> str:
    """A text with the recorded numbers of processes where one is shown; in columns, these stay."""
    names = dict(zip(map(str, numbers), recorded))  # noqa: B905 - Python 3.8 has no such argument

    def rename(found: re.Match[str]) -> str:
        space, shown = found["space"], names.get(found["number"], found["number"])
        return shown.rjust(len(found[0])) if len(space) > 1 else space + shown

    for place in PLACES:
        text = place.sub(rename, text)
    return text


@contextlib.contextmanager
def programs(*names: str) -> Iterator[list[int]]:
    """Processes of these names that do nothing: their numbers."""
    running = [subprocess.Popen([name, "-c", "read"], executable="/bin/bash", stdin=subprocess.PIPE) for name in names]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
