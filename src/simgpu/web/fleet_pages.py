"""HTTP routes of a fleet: metrics of all fake nodes and of each, service discovery, and the topology as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
from aiohttp import web

from simgpu import errors
from simgpu.identities import labels, render
from simgpu.identities.identity import FAMILY, Identity
from simgpu.machines.fleet import pod_usage
from simgpu.machines.machine import Machine
from simgpu.vocabulary import EXPORTER
from simgpu.web import pages, server

ENDPOINT = "gpu-metrics"
_ROWS = 2000  # pods in a piece of a page
_MAX_NODE_PAGES = 64  # kept, of the nodes that were read last: some 10 MiB


class FleetView(Protocol):
    """What the pages read of a fleet."""

    def machine(self) -> Machine:
        """Return all GPUs."""

    def machine_of(self, name: str) -> Machine | None:
        """Return a node's GPUs; None for an unknown node."""

    def exporters(self) -> Iterator[tuple[str, str, str]]:
        """Yield node, pod name and address of each simulated exporter."""


def with_target_labels(identity: Identity, namespace: str) -> Identity:
    """Return the identity with the target labels that Prometheus adds when it scrapes an exporter on each node.

    The exporter's own labels of these names get the prefix `exported_`, as Prometheus does it.
    """
    target = {
        "container": f"={EXPORTER}", "endpoint": f"={ENDPOINT}", "instance": "@instance", "job": f"={EXPORTER}",
        "namespace": f"={namespace}", "pod": "@exporter", "service": f"={EXPORTER}",
    }  # fmt: skip
    own = {f"exported_{name}" if name in target else name: source for name, source in identity.labels.items()}
    both = {**own, **target}
    both.setdefault(FAMILY, FAMILY)
    return msgspec.structs.replace(identity, labels=both, target_labels=tuple(target))


def of_all_nodes(identity: Identity) -> Identity:
    """Return the identity without series that have no label for their node, for all nodes on one page."""
    if "hostname" in identity.labels.values():
        return identity
    families = (item for item in identity.families if item.of != "node" or "hostname" in item.information.values())
    return msgspec.structs.replace(identity, families=tuple(families))


class FleetPages:
    """Serves the metrics of the fleet; 503 while there is no fleet.

    With `plain`, the page of all nodes has no target labels. `scraped` gets page and seconds of each scrape.
    """

    def __init__(
        self,
        fleet: Callable[[], FleetView | None],
        identity: Identity,
        *,
        namespace: str,
        plain: bool,
        scraped: Callable[[str, float], None],
    ) -> None:
        self._fleet = fleet
        self._node_identity = identity
        self._identity = of_all_nodes(identity) if plain else with_target_labels(identity, namespace)
        self._namespace = namespace
        self._scraped = scraped
        self._following: tuple[FleetView, pages.Following] | None = None
        self._node_pages: dict[str, pages.Page] = {}  # the one that was read last is the last

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/metrics", self._all),
            web.get("/metrics/nodes/{node}", self._one),
            web.get("/sd", self._discovery),
        ]

    async def _all(self, request: web.Request) -> web.StreamResponse:
        fleet = self._fleet()
        if fleet is None:
            return web.Response(status=503, text="not leading\n")
        started = time.perf_counter()
        answer = await self._page_of(fleet)(request)
        self._scraped("fleet", time.perf_counter() - started)
        return answer

    def _page_of(self, fleet: FleetView) -> pages.Following:
        """Return the page of the current fleet: each term as leader has another."""
        if self._following is None or self._following[0] is not fleet:
            self._following = (fleet, pages.Following(fleet.machine, self._identity, _pod_series))
        return self._following[1]

    async def _one(self, request: web.Request) -> web.StreamResponse:
        fleet = self._fleet()
        if fleet is None:
            return web.Response(status=503, text="not leading\n")
        started = time.perf_counter()
        name = request.match_info["node"]
        machine = fleet.machine_of(name)
        if machine is None:
            return web.Response(status=404, text="no such node\n")
        answer = await self._page_of_node(name, machine)(request)
        self._scraped("node", time.perf_counter() - started)
        return answer

    def _page_of_node(self, name: str, machine: Machine) -> pages.Page:
        """Return a node's page, which is rendered once per step however often it is read."""
        known = self._node_pages.pop(name, None)
        page = pages.Page(render.Renderer(machine, self._node_identity)) if known is None else known.on(machine)
        self._node_pages[name] = page
        if len(self._node_pages) > _MAX_NODE_PAGES:
            del self._node_pages[next(iter(self._node_pages))]
        return page

    async def _discovery(self, request: web.Request) -> web.StreamResponse:
        fleet = self._fleet()
        if fleet is None:
            return web.Response(status=503, text="not leading\n")
        found = [
            {
                "targets": [request.host],
                "labels": {
                    "__metrics_path__": f"/metrics/nodes/{node}", "namespace": self._namespace, "pod": pod,
                    "container": EXPORTER, "service": EXPORTER, "endpoint": ENDPOINT, "node": node, "instance": address,
                },
            }
            for node, pod, address in fleet.exporters()
        ]  # fmt: skip
        return server.json_response(found)


def _pod_series(machine: Machine) -> Iterator[render.Piece]:
    """Return Run:ai's own series: the use of each GPU by each pod."""
    return _pod_pieces(pod_usage(machine))


def _pod_pieces(usages: Iterable[tuple[str, int, float, float]]) -> Iterator[render.Piece]:
    rows = [
        (f'{{pod_uuid="{labels.escaped(pod)}",gpu="{index}"}}', percent, memory)
        for pod, index, percent, memory in usages
    ]
    if rows:
        yield from _family("runai_pod_gpu_utilization", "Utilisation of a GPU by a pod, in percent.", rows, 1)
        yield from _family("runai_pod_gpu_memory_used_bytes", "Memory of a GPU that a pod uses.", rows, 2)


def _family(name: str, about: str, rows: Sequence[tuple[Any, ...]], column: int) -> Iterator[render.Piece]:
    """Yield a family in pieces: labels in the first column of each row, and values in another."""
    yield render.Piece(f"# HELP {name} {about}\n# TYPE {name} gauge\n".encode)
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        yield render.Piece("".join([f"{name}{row[0]} {int(row[column])}\n" for row in some]).encode)


def topology_routes(
    ready: Callable[[], bool], fleet: Callable[[], dict[str, Any] | None], node: Callable[[str], dict[str, Any] | None]
) -> list[web.RouteDef]:
    """Return the routes of the topology API: the whole configuration, and each node's view, as JSON."""

    async def whole(_request: web.Request) -> web.Response:
        found = fleet()
        return server.json_response(found) if found is not None else server.error(503, "no topology yet")

    async def one(request: web.Request) -> web.Response:
        if not ready():
            return server.error(503, "not leading")
        try:
            found = node(request.match_info["node"])
        except errors.InputError as error:
            return server.error(500, str(error))
        return server.json_response(found) if found is not None else server.error(404, "Node topology not found")

    async def none(_request: web.Request) -> web.Response:
        return server.error(400, "the path must name a node: /topology/nodes/NODE")

    return [
        web.get("/topology", whole),
        web.get("/topology/nodes/", none),
        web.get("/topology/nodes", none),
        web.get("/topology/nodes/{node}", one),
    ]
