"""Pages of a whole fleet: all fake nodes on one, each node on its own, and where to find them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from simgpu import errors
from simgpu.identities import labels, render, view
from simgpu.identities.identity import FAMILY, Identity
from simgpu.vocabulary import EXPORTER
from simgpu.web import pages, server
from simgpu.web.server import Handler

ENDPOINT = "gpu-metrics"


class Shown(Protocol):
    """What is shown of a fleet."""

    def machine(self) -> view.Machine:
        """All GPUs."""

    def machine_of(self, name: str) -> view.Machine | None:
        """One node's GPUs."""

    def exporters(self) -> Iterator[tuple[str, str, str]]:
        """Node, name and address of each exporter that is pretended to be."""

    def pod_usage(self) -> Iterator[tuple[str, int, float, float]]:
        """Pod, index of the GPU, utilisation in percent, memory in bytes."""


def enriched(identity: Identity, namespace: str) -> Identity:
    """An identity with the labels that Prometheus would have given to an exporter on each node.

    What the exporter itself calls by one of these names arrives under the name that Prometheus gives to a label which
    clashes with its own.
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
    """An identity as it can be printed for all nodes on one page: without series of which nothing says their node."""
    if "hostname" in identity.labels.values():
        return identity
    families = (item for item in identity.families if item.of != "node" or "hostname" in item.information.values())
    return msgspec.structs.replace(identity, families=tuple(families))


class FleetPages:
    """Serves the fleet; nothing while there is none to show."""

    def __init__(
        self,
        shown: Callable[[], Shown | None],
        identity: Identity,
        *,
        namespace: str,
        plain: bool,
        scraped: Callable[[str, float], None],
    ) -> None:
        self._shown = shown
        self._node_identity = identity
        self._identity = of_all_nodes(identity) if plain else enriched(identity, namespace)
        self._namespace = namespace
        self._scraped = scraped
        self._page: pages.Page | None = None

    def routes(self) -> list[web.RouteDef]:
        """All paths."""
        return [
            web.get("/metrics", self._all),
            web.get("/metrics/nodes/{node}", self._one),
            web.get("/sd", self._discovery),
        ]

    async def _all(self, request: web.Request) -> web.StreamResponse:
        shown = self._shown()
        if shown is None:
            return web.Response(status=503, text="not leading\n")
        started = time.perf_counter()
        answer = await self._page_of(shown)(request)
        self._scraped("fleet", time.perf_counter() - started)
        return answer

    def _page_of(self, shown: Shown) -> pages.Page:
        """The page that is there, or one of the machine as it is since nodes came or went."""
        machine = shown.machine()
        if self._page is None:
            self._page = pages.Page(render.Renderer(machine, self._identity), _Pods(shown))
        elif self._page.renderer.machine is not machine:
            self._page = pages.Page(self._page.renderer.on(machine), _Pods(shown))
        return self._page

    async def _one(self, request: web.Request) -> web.StreamResponse:
        shown = self._shown()
        if shown is None:
            return web.Response(status=503, text="not leading\n")
        started = time.perf_counter()
        machine = shown.machine_of(request.match_info["node"])
        if machine is None:
            return web.Response(status=404, text="no such node\n")
        answer = await pages.Page(render.Renderer(machine, self._node_identity))(request)
        self._scraped("node", time.perf_counter() - started)
        return answer

    async def _discovery(self, request: web.Request) -> web.StreamResponse:
        shown = self._shown()
        if shown is None:
            return web.Response(status=503, text="not leading\n")
        found = [
            {
                "targets": [request.host],
                "labels": {
                    "__metrics_path__": f"/metrics/nodes/{node}", "namespace": self._namespace, "pod": pod,
                    "container": EXPORTER, "service": EXPORTER, "endpoint": ENDPOINT, "node": node, "instance": address,
                },
            }
            for node, pod, address in shown.exporters()
        ]  # fmt: skip
        return server.json_response(found)


class _Pods:
    """Run:ai's own series: what each pod has of each GPU."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def __call__(self) -> bytes:
        usage, memory = [], []
        for pod, index, percent, used in self._shown.pod_usage():
            uid = labels.escaped(pod)
            usage.append(f'runai_pod_gpu_utilization{{pod_uuid="{uid}",gpu="{index}"}} {percent:g}\n')
            memory.append(f'runai_pod_gpu_memory_used_bytes{{pod_uuid="{uid}",gpu="{index}"}} {used:.0f}\n')
        if not usage:
            return b""
        return "".join(
            [
                "# HELP runai_pod_gpu_utilization Utilisation of a GPU by a pod, in percent.\n",
                "# TYPE runai_pod_gpu_utilization gauge\n",
                *usage,
                "# HELP runai_pod_gpu_memory_used_bytes Memory of a GPU that a pod uses.\n",
                "# TYPE runai_pod_gpu_memory_used_bytes gauge\n",
                *memory,
            ]
        ).encode()


def health(problems: Callable[[], Iterable[str]]) -> Handler:
    """Alive; `?verbose` says what is not as it should be."""

    async def handler(request: web.Request) -> web.Response:
        found = list(problems()) if "verbose" in request.query else []
        return web.Response(text="\n".join(["ok", *found]) + "\n")

    return handler


def topology_routes(
    ready: Callable[[], bool], fleet: Callable[[], dict[str, Any] | None], node: Callable[[str], dict[str, Any] | None]
) -> list[web.RouteDef]:
    """The topology as JSON: the whole configuration, and each node's view."""

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
        return server.error(400, "which node?")

    return [
        web.get("/topology", whole),
        web.get("/topology/nodes/", none),
        web.get("/topology/nodes", none),
        web.get("/topology/nodes/{node}", one),
    ]
