"""Grafana dashboards: every query finds data in a Prometheus that scrapes an exporter with that identity."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.dashboards import files
from tests.fixtures import boxes
from tests.fixtures.exporters import Exporter
from tests.fixtures.prometheus import Prometheus

DOCUMENTS = {path.stem: json.loads(path.read_text()) for path in sorted(files.HERE.glob("*.json"))}
DIVIDED = ["3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb"]
Scraping = Callable[[str, dict[str, str]], tuple[Prometheus, Exporter]]
IDENTITIES = {name: name.removeprefix("simgpu-") for name in DOCUMENTS}


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries(document: dict[str, Any]) -> Iterator[str]:
    for panel in panels(document):
        yield from (target["expr"] for target in panel["targets"])


def asked_for(expression: str, **variables: str) -> str:
    """A query as Grafana sends it: with the values of its variables, all by default."""
    known = {"__range": "30s", "__rate_interval": "10s", "prefix": "", "node": ".*", "model": ".*", "instance": ".*"}
    for variable, value in (known | variables).items():
        expression = expression.replace(f"${{{variable}}}", value).replace(f"${variable}", value)
    assert "$" not in expression
    return expression


@pytest.fixture
def scraped(prometheus: Callable[..., Prometheus], tmp_path: Path) -> Iterator[Scraping]:
    """Starts a Prometheus that scrapes a box of the identity, with a pod's workload; the target may have labels.

    NVIDIA's has a GPU that is divided, and Intel's GPUs have tiles.
    """
    started: list[Exporter] = []

    def start(identity: str, labels: dict[str, str]) -> tuple[Prometheus, Exporter]:
        config, load = tmp_path / "box.yaml", tmp_path / "load.json"
        model = boxes.OWN[identity]
        divided = {"type": model, "count": 1} | ({"mig": DIVIDED} if identity == "dcgm" else {})
        config.write_text(json.dumps({"gpus": [{"type": model, "count": 3}, divided]}))
        hangs = {"Func": "constant", "Min": 1, "Unit": "absolute", "Period": 1}
        pod = {"Name": "train-0", "Namespace": "ml", "Container": "main"}
        load.write_text(json.dumps({"Name": "w", "Profile": [{"Load": 100, "Metrics": {"hangs": hangs}}], "Pod": pod}))
        options = ("--config", str(config), "--base-workload", str(load), "--identity", identity)
        started.append(Exporter(*options))
        targets = [{"targets": [started[-1].target], "labels": labels}]
        scrape = {"job_name": "gpus", "scrape_interval": "1s", "static_configs": targets}
        return prometheus(config={"scrape_configs": [scrape]}), started[-1]

    yield start
    for item in started:
        item.stop()


@pytest.mark.parametrize(
    ("name", "prefix"),
    [*((name, "") for name in DOCUMENTS), ("simgpu-dcgm", "exported_")],
)
def test_every_query_of_a_dashboard_finds_data(name: str, prefix: str, scraped: Scraping) -> None:
    own = {"pod": "nvidia-dcgm-exporter-x7k2p", "namespace": "gpu-operator"} if prefix else {}
    server, _ = scraped(IDENTITIES[name], own)
    variables: dict[str, str] = {}
    for variable in DOCUMENTS[name]["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert server.eventually(metric)
            assert server.get(f"/api/v1/label/{label}/values", **{"match[]": metric})
            variables[variable["name"]] = variable["allValue"]
    for expression in dict.fromkeys(queries(DOCUMENTS[name])):
        asked = expression.removesuffix(" or vector(0)")  # which would be an answer of its own
        assert server.eventually(asked_for(asked, prefix=prefix, **variables)), expression


def panel_queries(name: str, title: str, kind: str = "stat") -> list[str]:
    found = (panel for panel in panels(DOCUMENTS[name]) if (panel["title"], panel["type"]) == (title, kind))
    return [target["expr"] for panel in found for target in panel["targets"]]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_gpu_counts_once_whatever_instances_or_tiles_it_has(name: str, scraped: Scraping) -> None:
    server, exporter = scraped(IDENTITIES[name], {})

    def values(expression: str) -> list[float]:
        return [float(item["value"][1]) for item in server.eventually(asked_for(expression))]

    def power() -> float:
        return sum(float(device["power_average"]) for device in exporter.json("/api/v1/devices"))

    deadline = time.monotonic() + 60
    while values(*panel_queries(name, "Power")) != [pytest.approx(power(), rel=0.05)]:  # they warm up
        assert time.monotonic() < deadline, f"{values(*panel_queries(name, 'Power'))} W, not {power()} W"
    assert values(*panel_queries(name, "GPUs")) == values(*panel_queries(name, "Busy")) == [4]
    if pods := panel_queries(name, "Pods", "table"):
        assert values(*panel_queries(name, "In use by pods")) == [4]
        count, usage, _, drawn = map(values, pods)
        assert count == [4]
        assert usage == [pytest.approx(100 if name == "simgpu-dcgm" else 1, rel=0.05)]
        assert drawn == [pytest.approx(power(), rel=0.1)]


def named(legend: str, labels: dict[str, str]) -> str:
    """A series as Grafana calls it."""
    return re.sub(r"{{(\w+)}}", lambda label: labels.get(label[1], ""), legend)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_two_curves_of_a_panel_have_the_same_name(name: str, scraped: Scraping) -> None:
    server, _ = scraped(IDENTITIES[name], {})
    for panel in panels(DOCUMENTS[name]):
        drawn = [
            named(target["legendFormat"], found["metric"])
            for target in (panel["targets"] if panel["type"] == "timeseries" else ())
            for found in server.eventually(asked_for(target["expr"]))
        ]
        assert len(drawn) == len(set(drawn)), (panel["title"], drawn)


def test_the_files_of_the_tree_and_of_the_chart_are_current() -> None:
    for path, text in files.rendered():
        assert path.read_text() == text, "run 'make docs'"
    assert {*DOCUMENTS} == {dashboard.name for dashboard in files.ALL}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_two_panels_of_a_dashboard_overlap(name: str) -> None:
    places = [panel["gridPos"] for panel in DOCUMENTS[name]["panels"]]
    cells = list(
        itertools.chain.from_iterable(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])) for at in places
        )
    )
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def unknown(written: Any, read: Any, path: str = "") -> list[str]:
    """What of a document is missing or different in another one."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [
            problem
            for key, value in written.items()
            for problem in (unknown(value, read[key], f"{path}.{key}") if key in read else [f"{path}.{key}"])
        ]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        return [problem for place, (one, other) in pairs for problem in unknown(one, other, f"{path}[{place}]")]
    return [] if written == read else [path]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_of_a_dashboard_is_one_that_grafanas_own_model_has(name: str) -> None:
    plugins.register_default_plugins()

    def lost(document: dict[str, Any]) -> list[str]:
        read = Dashboard.from_json(json.loads(json.dumps(document)))
        return unknown(document, json.loads(json.dumps(read, cls=encoder.JSONEncoder)))

    document = DOCUMENTS[name]
    assert lost(document) == []
    first, *others = document["panels"]
    options = {**others[0].get("options", {}), "colourMode": "value"}
    assert lost({**document, "panels": [first, {**others[0], "options": options}]}) == [".panels[1].options.colourMode"]
