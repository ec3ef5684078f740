"""Writes the report of a run into a folder, with the file names that perfdash looks for."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from simgpu.loadtest.reports import comparison, junit, page
from simgpu.loadtest.reports.comparison import ComparedFigure
from simgpu.loadtest.running.results import RunResult
from simgpu.loadtest.scenario.model import Scenario


def write_config(folder: Path, scenario: Scenario) -> Path:
    """Write the scenario as it was rendered."""
    folder.mkdir(parents=True, exist_ok=True)
    tail = f"_{scenario.identifier}" if scenario.identifier else ""
    path = folder / f"generatedConfig_{_name(scenario.name)}{_name(tail)}.yaml"
    path.write_text(yaml.safe_dump(scenario.document, sort_keys=False), encoding="utf-8")
    return path


def write(folder: Path, result: RunResult, compared: Sequence[ComparedFigure] = (), *, against: str = "") -> list[Path]:
    """Write all files of a report but its configuration. Return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    when = datetime.datetime.fromtimestamp(result.started + result.seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tail = f"_{result.identifier}" if result.identifier else ""
    files: dict[str, bytes] = {
        f"{_name(summary.name)}_{_name(result.scenario + tail)}_{when}.json": _json(summary.content)
        for summary in result.summaries
    }
    files["junit.xml"] = junit.document([result])
    files["cl2-metadata.json"] = _json({"provider": "simgpu", "run": result.run, "server": result.server})
    files[comparison.RESULTS] = msgspec.json.encode(result)
    files["report.html"] = page.render(result, compared, against).encode()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value)) + b"\n"


def _name(text: str) -> str:
    """Return text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._ -]", "-", text)[:150]
