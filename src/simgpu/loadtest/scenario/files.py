"""Finds scenario files: those that a path names, and the built-in ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec

from simgpu.loadtest.scenario.fields import ScenarioError

BUILT_IN = Path(__file__).parent.parent / "scenarios"
MAX_FILE = 1 << 20  # bytes

# Paths of perf-tests by which built-in scenarios can be named where there is no such file.
_ELSEWHERE = {
    "pkg/dependency/kwok/examples/test-config.yaml": "kwok-dra/test-config.yaml",
    "testing/dra/config.yaml": "dra-steady-state/config.yaml",
}


class BuiltIn(msgspec.Struct, frozen=True):
    """A built-in scenario."""

    name: str
    description: str
    file: Path


def built_in() -> list[BuiltIn]:
    """Return the built-in scenarios; the first line of each is a comment that describes it."""
    found = []
    for folder in sorted(path for path in BUILT_IN.iterdir() if path.is_dir() and not path.name.startswith("_")):
        file = next(folder.glob("*config.yaml"))
        with file.open(encoding="utf-8") as lines:
            found.append(BuiltIn(folder.name, lines.readline().lstrip("# ").strip(), file))
    return found


def resolve(given: str) -> tuple[Path, str]:
    """Return the file that a path or the name of a built-in scenario means, and a note if that is not obvious."""
    path = Path(given)
    if path.is_file():
        return path, ""
    for scenario in built_in():
        if given == scenario.name:
            return scenario.file, ""
    for tail, name in _ELSEWHERE.items():
        if _ends_with(given, tail) or given == PurePosixPath(tail).name == "test-config.yaml":
            return BUILT_IN / name, f"{given}: no such file here; the built-in scenario {name.split('/')[0]} is used"
    names = ", ".join(scenario.name for scenario in built_in())
    raise ScenarioError(f"{given}: no such file; built-in scenarios are: {names}")


def _ends_with(given: str, tail: str) -> bool:
    parts, wanted = PurePosixPath(given).parts, PurePosixPath(tail).parts
    return parts[-len(wanted) :] == wanted


class Files:
    """Files beside a scenario, and after that those of built-in scenarios."""

    def __init__(self, config: Path) -> None:
        self.folder = config.absolute().parent
        self.notes: list[str] = []

    @property
    def folders(self) -> Sequence[Path]:
        """Where files are looked up, in this order."""
        return (self.folder, *(scenario.file.parent for scenario in built_in()))

    def find(self, name: str) -> Path | None:
        """Return the file that a scenario names, relative to its own folder."""
        for folder in self.folders:
            path = folder / name.lstrip("/")
            if path.is_file():
                if folder != self.folder:
                    self._note(f"{name}: not beside the scenario; the one of built-in scenario {folder.name} is used")
                return path
        return None

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)


def read(path: Path) -> str:
    """Return the text of a file, within a limit."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_FILE:
        raise ScenarioError(f"{path}: larger than {MAX_FILE >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: is not UTF-8 text") from None
