"""The JSON files of all dashboards: beside this file, and in the chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from deploy.dashboards import collectd, dcgm, grafana, xpum

ALL = (dcgm.DASHBOARD, xpum.DASHBOARD, collectd.DASHBOARD)
HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parent / "chart" / "files" / "dashboards")


def rendered() -> Iterator[tuple[Path, str]]:
    """Yield each file with its text."""
    for dashboard in ALL:
        text = json.dumps(grafana.document(dashboard), indent=1, ensure_ascii=False) + "\n"
        for folder in FOLDERS:
            yield folder / f"{dashboard.name}.json", text


def write() -> None:
    """Write all files anew."""
    for path, text in rendered():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
