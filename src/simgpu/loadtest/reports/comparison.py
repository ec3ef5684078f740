"""Compares two runs figure by figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from simgpu import errors
from simgpu.loadtest.measurements import percentiles
from simgpu.loadtest.reports import contents
from simgpu.loadtest.running.results import RunResult

RESULTS = "results.json"
_MAX_BYTES = 256 << 20
_LATEST = 253402300799  # the last second of the year 9999


class ComparedFigure(msgspec.Struct, frozen=True):
    """One figure of two runs; a change is relative to the first."""

    name: str
    unit: str
    before: float
    after: float

    @property
    def change(self) -> float | None:
        """The relative change; None if the first is zero."""
        return (self.after - self.before) / self.before if self.before else None


def read(path: Path) -> RunResult:
    """Return the result of a report, by its folder or its results.json."""
    file = path / RESULTS if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise errors.InputError(str(path), "is too large for a report")
        result = msgspec.json.decode(data, type=RunResult)
    except OSError as error:
        raise errors.InputError(str(path), f"is not a report of 'simgpu loadtest': {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.InputError(str(file), f"is not a report of 'simgpu loadtest': {error}") from None
    if not 0 <= result.started <= _LATEST:
        raise errors.InputError(f"{file}: started", f"{result.started:g}: must be seconds since 1970")
    return result


def figures(result: RunResult) -> Iterator[tuple[str, str, float]]:
    """Yield name, unit and value of each figure of a run."""
    yield "run time", "s", result.seconds
    yield "pods started", "", float(result.pods)
    took = sorted(seconds for _, seconds in result.startup)
    for percent in (50, 90, 99):
        yield f"pod start-up p{percent}", "s", round(percentiles.at(took, percent), 4)
    yield "highest scheduling rate", "pods/s", max((item.scheduled_per_second for item in result.timeline), default=0.0)
    yield "most GPUs in use", "", float(max((item.gpus for item in result.timeline), default=0))
    yield "API p99 of creations, worst", "ms", max((item.api_p99 for item in result.timeline), default=0.0)
    for summary in result.summaries:
        if summary.name.startswith(("Stateless", "Stateful")):
            continue  # parts of another summary
        yield from _of_summary(summary.name, summary.content)


def _of_summary(name: str, content: object) -> Iterator[tuple[str, str, float]]:
    """Yield the numbers of a summary that a file holds; whatever else is in it is left out."""
    items = contents.items(content)
    if items is not None:
        for item in items:
            for key, value in contents.numbers(item.get("data")):
                yield f"{name}: {contents.label(item)} {key}", str(item.get("unit", "")), value
        return
    for key, inner in contents.fields(content).items():
        for part, nanoseconds in contents.numbers(inner):
            yield f"{name}: {key} {part}", "ms", round(nanoseconds / 1e6, 3)
    yield from ((f"{name}: {key}", "", value) for key, value in contents.numbers(content))


def compare(before: RunResult, after: RunResult) -> list[ComparedFigure]:
    """Return the figures that both runs have; those that are zero in both are left out.

    Of several with one name the last counts.
    """
    earlier, later = ({name: (unit, value) for name, unit, value in figures(run)} for run in (before, after))
    return [
        ComparedFigure(name, unit, earlier[name][1], value)
        for name, (unit, value) in later.items()
        if name in earlier and (value or earlier[name][1])
    ]
