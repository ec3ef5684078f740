"""Grafana dashboards: every query finds data in a Prometheus that scrapes an exporter with that identity."""

from __future__ import annotations

import itertools
import json
import re
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
IDENTITIES = {name: name.removeprefix("simgpu-") for name in DOCUMENTS}


def panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries(document: dict[str, Any]) -> Iterator[str]:
    for panel in panels(document):
        yield from (target["expr"] for target in panel["targets"])


@pytest.fixture
def scraped(prometheus: Callable[..., Prometheus], tmp_path: Path) -> Iterator[Callable[..., Prometheus]]:
    """A Prometheus that scrapes a box of the identity, on which a pod's workload runs; the target may have labels."""
    started: list[Exporter] = []

    def start(identity: str, labels: dict[str, str]) -> Prometheus:
        config, load = tmp_path / "box.yaml", tmp_path / "load.json"
        config.write_text(json.dumps({"gpus": [{"type": boxes.OWN[identity], "count": 4}]}))
        hangs = {"Func": "constant", "Min": 1, "Unit": "absolute", "Period": 1}
        pod = {"Name": "train-0", "Namespace": "ml", "Container": "main"}
        load.write_text(json.dumps({"Name": "w", "Profile": [{"Load": 100, "Metrics": {"hangs": hangs}}], "Pod": pod}))
        options = ("--config", str(config), "--base-workload", str(load), "--identity", identity)
        started.append(Exporter(*options))
        targets = [{"targets": [started[-1].target], "labels": labels}]
        scrape = {"job_name": "gpus", "scrape_interval": "1s", "static_configs": targets}
        return prometheus(config={"scrape_configs": [scrape]})

    yield start
    for item in started:
        item.stop()


@pytest.mark.parametrize(
    ("name", "prefix"),
    [*((name, "") for name in DOCUMENTS), ("simgpu-dcgm", "exported_")],
)
def test_every_query_of_a_dashboard_finds_data(name: str, prefix: str, scraped: Callable[..., Prometheus]) -> None:
    own = {"pod": "nvidia-dcgm-exporter-x7k2p", "namespace": "gpu-operator"} if prefix else {}
    server = scraped(IDENTITIES[name], own)
    variables = {"__range": "30s", "__rate_interval": "10s", "prefix": prefix}
    for variable in DOCUMENTS[name]["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert server.eventually(metric)
            assert server.get(f"/api/v1/label/{label}/values", **{"match[]": metric})
            variables[variable["name"]] = variable["allValue"]
    for expression in dict.fromkeys(queries(DOCUMENTS[name])):
        asked = expression.removesuffix(" or vector(0)")  # which would be an answer of its own
        for variable, value in variables.items():
            asked = asked.replace(f"${{{variable}}}", value).replace(f"${variable}", value)
        assert "$" not in asked
        assert server.eventually(asked), expression


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
