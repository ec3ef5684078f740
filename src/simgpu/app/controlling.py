"""`simgpu controller`: everything for fake nodes, and the pages that show them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from simgpu.app.clock import SystemClock
from simgpu.catalog import models
from simgpu.controllers.fake_nodes import FakeNodes, FleetStores
from simgpu.identities import identity as identities
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.kube.leading import Election, Terms
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.views import ConfigMap, Node, Pod
from simgpu.kube.writer import Writer
from simgpu.machines import ticking
from simgpu.machines.fleet import Fleet
from simgpu.vocabulary import LEASE, MANAGER
from simgpu.web import fleet_pages, health, metering, server

SAVE_SECONDS = 6.0  # shorter than a lease, and than anybody waits for a process to end

_log = logging.getLogger(__name__)


class ControllerSettings(msgspec.Struct, frozen=True):
    """What a controller is started with."""

    target: ClientConfig
    namespace: str
    listen: tuple[str, int]
    topology_listen: tuple[str, int]
    identity: identities.Identity
    catalog: models.Catalog
    seed: int = 1
    interval: float = 0.5
    plain_labels: bool = False
    view_writes: float = 50.0
    lease_seconds: int = 15


class Controller:
    """One process for all fake nodes. It works while it leads; otherwise it is alive and not ready."""

    def __init__(self, settings: ControllerSettings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._leading = False
        self.fleet = Fleet(seed=settings.seed)
        self.nodes: FakeNodes | None = None
        self.queue: WorkQueue[str] | None = None
        self.writer: Writer | None = None
        self._clock = SystemClock()
        identity = f"{platform.node()}-{time.time_ns()}"
        terms = Terms.lasting(settings.lease_seconds)
        self.election = Election(client, LEASE, namespace=settings.namespace, identity=identity, terms=terms)
        self.meters = metering.Meters(self._state, lambda: client.requests)

    @property
    def ready(self) -> bool:
        """Whether it leads, and has looked at every node since."""
        return self._leading and self.fleet.steps > 0 and self.nodes is not None and not self.nodes.unseen

    async def lead(self) -> None:
        """Do the work, from what the API shows."""
        settings = self._settings
        nodes: Store[Node] = Store()
        pods: Store[Pod] = Store({"node": lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()})
        config_maps: Store[ConfigMap] = Store()
        self.fleet = Fleet(seed=settings.seed)
        self.queue = WorkQueue(waited=self.meters.waited)
        self.writer = Writer(self._client, manager=MANAGER, per_second=settings.view_writes, burst=50, in_flight=32)
        recorder = Recorder(self._client, component=LEASE)
        self.nodes = FakeNodes(
            FleetStores(nodes, pods, config_maps), self.fleet, self.queue, self.writer, recorder,
            namespace=settings.namespace, catalog=settings.catalog, clock=self._clock,
        )  # fmt: skip
        reflectors = (
            Reflector(self._client, resources.NODES, nodes),
            Reflector(self._client, resources.PODS, pods),
            Reflector(self._client, resources.CONFIG_MAPS, config_maps, namespace=settings.namespace),
        )
        self.nodes.unseen = {""}  # nothing is known before the stores are filled
        self._leading = True
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in reflectors:
                    group.create_task(reflector.run())
                group.create_task(self.writer.run())
                group.create_task(recorder.run())
                await asyncio.gather(*(store.synced.wait() for store in (nodes, pods, config_maps)))
                self.nodes.watch()
                self.nodes.start()
                group.create_task(self.queue.run(self.nodes.reconcile, workers=8))
                group.create_task(ticking.tick(self.fleet, settings.interval, self._clock))
        finally:
            self._leading = False  # from here on nobody sees counters grow
            if self.election.leading:
                await self._save()

    async def _save(self) -> None:
        """Keep the counters. What is not written in time goes on from where it was written last."""
        assert self.writer is not None  # noqa: S101 - there was work
        assert self.nodes is not None  # noqa: S101
        writing = asyncio.create_task(self.writer.run())
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                await self.nodes.save()
                await self.writer.drained()
        except TimeoutError:
            _log.warning("%d nodes' counters could not be saved in time", self.writer.pending)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def problems(self) -> Iterator[str]:
        """What users should know."""
        for problem in self.nodes.configuration.problems if self.nodes is not None else ():
            yield f"topology: {problem}"

    def describe(self) -> dict[str, Any] | None:
        """The configuration, for the topology API."""
        return self.nodes.configuration.describe() if self.nodes is not None and self.ready else None

    def describe_node(self, name: str) -> dict[str, Any] | None:
        """A node, for the topology API."""
        return self.nodes.describe_node(name) if self.nodes is not None and self.ready else None

    def _state(self) -> dict[str, float]:
        """How the controller itself is."""
        writer, queue = self.writer, self.queue
        return {
            "leading": float(self._leading),
            "nodes": float(len(self.fleet.nodes)),
            "queue_depth": float(queue.depth if queue is not None else 0),
            "writes_pending": float(writer.pending if writer is not None else 0),
            "write_lag_seconds": writer.lag if writer is not None else 0.0,
            "writes_unchanged": float(writer.counters.unchanged if writer is not None else 0),
            "writes_failed": float(writer.counters.failed if writer is not None else 0),
        }


async def run_controller(settings: ControllerSettings, ready: Callable[[str, str], None]) -> None:
    """The controller with its pages, until it is cancelled."""
    async with Client(settings.target) as client, contextlib.AsyncExitStack() as stack:
        controller = Controller(settings, client)
        views = fleet_pages.FleetPages(
            lambda: controller.fleet if controller.ready else None,
            settings.identity,
            namespace=settings.namespace,
            plain=settings.plain_labels,
            scraped=controller.meters.scraped,
        )
        routes = [
            *views.routes(),
            server.get("/healthz", health.liveness(controller.problems)),
            server.get("/readyz", health.readiness(lambda: None if controller.ready else "not leading")),
            server.get("/metrics/controller", controller.meters.page()),
        ]
        http = server.HttpServer(routes)
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        topology = server.HttpServer(
            fleet_pages.topology_routes(lambda: controller.ready, controller.describe, controller.describe_node),
            [server.json_errors],
        )
        await topology.start(*settings.topology_listen, field="--topology-listen")
        stack.push_async_callback(topology.stop)
        ready(http.address, topology.address)
        await controller.election.run(controller.lead)
