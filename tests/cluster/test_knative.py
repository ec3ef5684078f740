"""Inference pods on a fake node follow a real Prometheus, which scrapes a counter of requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from simgpu.kube import resources
from tests.fixtures.cluster import eventually
from tests.fixtures.controller import Fleet
from tests.fixtures.knative import Requests
from tests.fixtures.prometheus import Prometheus


@pytest.fixture
def requests(namespace: str) -> Iterator[Requests]:
    made = Requests(namespace)
    yield made
    made.server.shutdown()
    made.server.server_close()


async def test_an_inference_pod_is_as_busy_as_its_requests(
    fleet: Fleet, requests: Requests, prometheus: Callable[..., Prometheus]
) -> None:
    started = prometheus(requests.address)
    await fleet.configure("", default={"gpus": [{"type": "h200", "count": 2}]})
    node = await fleet.node("a")
    await fleet.start("--prometheus-url", started.url)
    await fleet.gpus(node, 2)
    own = {"simgpu.dev/requests-at-full-load": "50"}
    await fleet.pod("served", node, 1, labels={"workloadKind": "InferenceWorkload"}, own=own)
    await fleet.pod("unasked", node, 1, labels={"workloadKind": "InferenceWorkload"})

    def busy() -> dict[str, float]:
        found = fleet.series().values()
        return {labels["exported_pod"]: value for labels, value in found if "exported_pod" in labels}

    async def rises() -> bool:
        found = busy()
        return found.get("served") == 100 and found.get("unasked") == 0

    await eventually(rises, seconds=60)
    view = await fleet.client.get(resources.CONFIG_MAPS, f"topology-{node}", namespace=fleet.namespace)
    used = [gpu["status"]["podGpuUsageStatus"] for gpu in yaml.safe_load(view.data["topology.yml"])["gpus"]]
    assert [item["useKnativeUtilization"] for gpu in used for item in gpu.values()] == [True, True]
    requests.count()
    requests.rate = 0.0

    async def falls() -> bool:
        return busy().get("served", 100.0) < 50

    await eventually(falls, seconds=90)  # a minute after the burst
