"""The controller's pages over HTTP: the topology API's errors, and the controller's own metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from prometheus_client import parser

from simgpu.web import fleet, metering, server

NODES = {"a": {"GpuProduct": "Tesla-K80"}}


def node(name: str) -> dict[str, str] | None:
    if name == "broken":
        raise RuntimeError("a mistake of ours")
    return NODES.get(name)


@pytest.fixture
async def topology() -> AsyncIterator[str]:
    made = server.Server(fleet.topology_routes(lambda: True, lambda: {"NodePools": {}}, node), [server.json_errors])
    await made.start("127.0.0.1", 0, field="x")
    yield f"http://{made.address}"
    await made.stop()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/topology", 200), ("GET", "/topology/nodes/a", 200), ("GET", "/topology/nodes/b", 404),
        ("GET", "/topology/nodes/", 400), ("GET", "/elsewhere", 404), ("POST", "/topology", 405),
        ("DELETE", "/topology/nodes/a", 405), ("GET", "/topology/nodes/broken", 500),
    ],
)  # fmt: skip
async def test_every_answer_of_the_topology_api_is_json_with_its_code(
    topology: str, method: str, path: str, status: int
) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, f"{topology}{path}") as answer:
        assert answer.status == status
        assert answer.content_type == "application/json"
        body = await answer.json()
        assert ("error" in body) == (status >= 400)
        if status == 405:
            assert "GET" in answer.headers["Allow"]


async def test_the_controllers_own_metrics_count_writes_by_kind_and_measure_times() -> None:
    requests = {("patch", "nodes"): 3, ("watch", "pods"): 7, ("create", "events"): 1}
    meters = metering.Meters(lambda: dict.fromkeys([*metering.GAUGES, *metering.COUNTERS], 2.0), lambda: requests)
    meters.waited(0.2)
    meters.scraped("fleet", 0.7)
    made = server.Server([server.get("/metrics/controller", meters.page())])
    await made.start("127.0.0.1", 0, field="x")
    async with aiohttp.ClientSession() as session, session.get(f"http://{made.address}/metrics/controller") as answer:
        page = await answer.text()
    await made.stop()
    samples: Mapping[tuple[str, ...], float] = {
        (sample.name.removeprefix("simgpu_controller_"), *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["api_writes_total", "nodes", "patch"] == 3
    assert samples["api_writes_total", "events", "create"] == 1
    assert ("api_writes_total", "pods", "watch") not in samples
    assert samples["queue_depth",] == 2
    assert samples["event_lag_seconds_bucket", "0.1"] == 0
    assert samples["event_lag_seconds_bucket", "0.25"] == 1
    assert samples["scrape_seconds_sum", "fleet"] == 0.7
