"""The controller's own metrics: its queue and writes, its requests to the API, and its latencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import prometheus_client
from aiohttp import web
from prometheus_client import metrics_core, registry

from simgpu.web import pages
from simgpu.web.server import Handler

WRITES = ("create", "patch", "delete")
_PREFIX = "simgpu_controller"
_BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

GAUGES = {
    "leading": "1 while this controller leads.",
    "nodes": "Fake nodes that have GPUs.",
    "queue_depth": "Nodes that wait to be reconciled.",
    "slices_queue_depth": "Nodes whose resource slices wait to be compared with what they should be.",
    "gpus_overcommitted": "GPUs that pods request and that claims or other pods hold.",
    "writes_pending": "Objects with writes that are queued or in flight.",
    "write_lag_seconds": "Age of the oldest write that is not yet done.",
}
COUNTERS = {
    "writes_unchanged": "Writes that were not sent because they would have changed nothing.",
    "writes_failed": "Writes that were given up.",
}


class Meters(registry.Collector):
    """Observes latencies as they occur; `state` and `requests` (by verb and resource) are read on each scrape."""

    def __init__(
        self, state: Callable[[], Mapping[str, float]], requests: Callable[[], Mapping[tuple[str, str], int]]
    ) -> None:
        self._state = state
        self._requests = requests
        self._registry = prometheus_client.CollectorRegistry()
        self._lag = prometheus_client.Histogram(
            f"{_PREFIX}_event_lag_seconds",
            "Time from receiving a change to reconciling its node.",
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._scrapes = prometheus_client.Histogram(
            f"{_PREFIX}_scrape_seconds", "Time to answer a scrape.", ["page"], registry=self._registry, buckets=_BUCKETS
        )
        self._registry.register(self)

    def waited(self, seconds: float) -> None:
        """Record the seconds from a change to its processing."""
        self._lag.observe(seconds)

    def scraped(self, page: str, seconds: float) -> None:
        """Record the seconds that a page took."""
        self._scrapes.labels(page).observe(seconds)

    def collect(self) -> Iterator[metrics_core.Metric]:
        """Yield the metrics of this moment."""
        state = self._state()
        for name, text in GAUGES.items():
            yield metrics_core.GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=state[name])
        for name, text in COUNTERS.items():
            yield metrics_core.CounterMetricFamily(f"{_PREFIX}_{name}", text, value=state[name])
        writes = metrics_core.CounterMetricFamily(
            f"{_PREFIX}_api_writes", "Requests to the API that write, by kind.", labels=["resource", "verb"]
        )
        for (verb, resource), count in sorted(self._requests().items()):
            if verb in WRITES:
                writes.add_metric([resource, verb], count)
        yield writes

    def page(self) -> Handler:
        """Return the handler of the page."""

        async def handler(_request: web.Request) -> web.Response:
            body = prometheus_client.generate_latest(self._registry)
            return web.Response(body=body, headers={"Content-Type": pages.TEXT})

        return handler
