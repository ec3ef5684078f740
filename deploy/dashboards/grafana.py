"""Grafana's JSON: panels, variables and where panels stand. Knows nothing of any exporter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]

COLUMNS = 24  # of Grafana's grid
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """An expression and how its series are called."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """A panel; `warn` and `alarm` are values from which it turns yellow and red."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    about: str = ""
    kind: Literal["stat", "gauge", "timeseries", "table"] = "timeseries"
    width: int = 8
    height: int = 8
    warn: float | None = None
    alarm: float | None = None
    most: float | None = None
    stack: bool = False


@dataclass(frozen=True)
class Row:
    """A heading, and the panels below it."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """A choice at the top: the values of a label, or some texts."""

    name: str
    label: str
    metric: str = ""
    source: str = ""
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Dashboard:
    """A dashboard; `name` is its file's and its uid."""

    name: str
    title: str
    about: str
    variables: Sequence[Variable]
    rows: Sequence[Row]
    tags: Sequence[str] = field(default=("gpu", "simgpu"))


def stat(title: str, expression: str, unit: str = "short", **more: Any) -> Panel:
    """A single number with its curve behind it."""
    return Panel(title, [Query(expression)], unit, kind="stat", width=4, height=4, **more)


def curves(title: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """Curves over time, from pairs of expression and legend."""
    return Panel(title, [Query(*query) for query in queries], unit, **more)


def document(dashboard: Dashboard) -> Json:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": list(dashboard.tags),
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), *(_variable(item) for item in dashboard.variables)]},
        "panels": [*_placed(dashboard.rows)],
    }


def _datasource() -> Json:
    return {
        "name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {},
        "refresh": 1,
    }  # fmt: skip


def _variable(variable: Variable) -> Json:
    if variable.options:
        chosen = variable.options[0]
        return {
            "name": variable.name, "label": variable.label, "type": "custom", "query": ",".join(variable.options),
            "current": {"text": chosen, "value": chosen, "selected": True},
            "options": [{"text": each, "value": each, "selected": each == chosen} for each in variable.options],
        }  # fmt: skip
    query = f"label_values({variable.metric}, {variable.source})"
    return {
        "name": variable.name, "label": variable.label, "type": "query", "datasource": SOURCE,
        "query": {"query": query, "refId": variable.name}, "refresh": 2, "sort": 7, "multi": True, "includeAll": True,
        "allValue": ".*", "current": {"text": "All", "value": "$__all", "selected": True},
    }  # fmt: skip


def _placed(rows: Iterable[Row]) -> Iterable[Json]:
    """Yield panels with their places: from left to right, and below one another where a line is full."""
    number = top = 0
    for row in rows:
        number += 1
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        top, left, line = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                top, left, line = top + line, 0, 0
            number += 1
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            yield {"id": number, "gridPos": place, **_panel(panel)}
            left, line = left + panel.width, max(line, panel.height)
        top += line


def _panel(panel: Panel) -> Json:
    instant = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query.expression,
            "legendFormat": query.legend or "__auto", "instant": instant, "range": not instant,
            "format": "table" if instant else "time_series",
        }
        for index, query in enumerate(panel.queries)
    ]  # fmt: skip
    common: Json = {
        "type": panel.kind, "title": panel.title, "description": panel.about, "datasource": SOURCE, "targets": targets,
    }  # fmt: skip
    defaults: Json = {"unit": panel.unit, "thresholds": _thresholds(panel), "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    return common | _SHAPES[panel.kind](panel, defaults)


def _thresholds(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    steps += [
        {"color": colour, "value": value}
        for colour, value in (("yellow", panel.warn), ("red", panel.alarm))
        if value is not None
    ]
    return {"mode": "absolute", "steps": steps}


def _stat(panel: Panel, defaults: Json) -> Json:
    coloured = panel.warn is not None or panel.alarm is not None
    defaults["color"] = {"mode": "thresholds"} if coloured else {"mode": "fixed", "fixedColor": "blue"}
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"graphMode": "area", "colorMode": "value", "justifyMode": "auto", "reduceOptions": reduce},
    }


def _gauge(_: Panel, defaults: Json) -> Json:
    defaults["color"] = {"mode": "thresholds"}
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": reduce, "showThresholdMarkers": True, "showThresholdLabels": False},
    }


def _timeseries(panel: Panel, defaults: Json) -> Json:
    defaults["color"] = {"mode": "palette-classic"}
    defaults["custom"] = {
        "drawStyle": "line", "lineWidth": 1, "lineInterpolation": "linear", "fillOpacity": 25 if panel.stack else 8,
        "showPoints": "never", "spanNulls": False, "stacking": {"mode": "normal" if panel.stack else "none"},
        "thresholdsStyle": {"mode": "dashed" if panel.alarm is not None else "off"},
    }  # fmt: skip
    legend = {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]}
    return {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
    }


def _table(panel: Panel, defaults: Json) -> Json:
    """A column for each query, called by its legend, with one line for each set of labels."""
    names = {f"Value #{chr(ord('A') + index)}": query.legend for index, query in enumerate(panel.queries)}
    units = panel.unit.split(",")
    overrides = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, unit in zip(names.values(), units, strict=True)
    ]
    defaults.pop("unit")
    return {
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {"cellHeight": "sm", "showHeader": True},
        "transformations": [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
        ],
    }


_SHAPES = {"stat": _stat, "gauge": _gauge, "timeseries": _timeseries, "table": _table}
