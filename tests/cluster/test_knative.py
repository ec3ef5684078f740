"""Inference pods on a fake node follow a real Prometheus, which scrapes a counter of requests."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import yaml

from simgpu.kube import resources
from tests.fixtures.cluster import eventually
from tests.fixtures.controller import Fleet
from tests.fixtures.prometheus import Prometheus


class Requests:
    """A page with the counter of a pod's requests, of which there are so many a second."""

    def __init__(self, namespace: str) -> None:
        self.rate, self._count, self._since = 400.0, 0.0, time.monotonic()
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                labels = f'namespace_name="{namespace}",pod_name="served",response_code="200"'
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(f"revision_app_request_count{{{labels}}} {page.count()}\n".encode())

            def log_message(self, *_arguments: object) -> None:
                """Keep quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def count(self) -> float:
        now = time.monotonic()
        self._count, self._since = self._count + self.rate * (now - self._since), now
        return self._count


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
        return busy()["served"] < 50

    await eventually(falls, seconds=90)  # a minute after the burst
