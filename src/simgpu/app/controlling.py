"""`simgpu controller`: everything for fake nodes, and the pages that show them."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from simgpu.app import responsive, watching_page, withdrawing
from simgpu.app.clock import SystemClock
from simgpu.app.step_threads import StepThreads
from simgpu.catalog import models
from simgpu.controllers import runai_rules
from simgpu.controllers.budgeting import ViewBudget
from simgpu.controllers.dra_fleet import DraFleet
from simgpu.controllers.fake_nodes import FakeNodes, FleetStores
from simgpu.controllers.knative import RequestRates
from simgpu.controllers.node_topologies import NodeTopologies
from simgpu.controllers.pod_groups import PodGroups
from simgpu.controllers.profile_maps import ProfileMaps
from simgpu.dashboard.serving import Dashboard
from simgpu.identities import identity as identities
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.kube.leading import Election, Terms
from simgpu.kube.lease_time import LeaseTime
from simgpu.kube.queue import WorkQueue
from simgpu.kube.recording import Recorder, Subject
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer, WriterCounters
from simgpu.machines import ticking
from simgpu.machines.fleet import Fleet
from simgpu.promql import asking
from simgpu.vocabulary import DEFAULT_PROMETHEUS, DEFAULT_RESERVATION_NAMESPACE, EXTENDED, LEASE, MANAGER, TOPOLOGY
from simgpu.web import fleet_pages, health, metering, server


class ControllerSettings(msgspec.Struct, frozen=True):
    """Settings of `simgpu controller`."""

    target: ClientConfig  # the API server
    namespace: str  # of the configuration, the views and the lease
    listen: tuple[str, int]  # host and port of metrics and health
    topology_listen: tuple[str, int]  # host and port of the topology API
    identity: identities.Identity
    catalog: models.Catalog
    allocation: str = EXTENDED  # how pods get GPUs where the topology does not say it
    seed: int = 1  # of the simulation's randomness
    interval: float = 0.5  # seconds between steps
    plain_labels: bool = False  # whether the page of all nodes omits target labels
    view_writes: float = 50.0  # view writes per second while few pods come and go
    lease_seconds: int = 15  # until another controller takes over from one that crashed
    runai_namespace: str = ""  # of Run:ai, which gets recording rules once it exists; empty for none
    runai_seconds: float = 120.0  # between looks for it
    prometheus: str = DEFAULT_PROMETHEUS  # which knows the requests of inference pods
    reservations: str = DEFAULT_RESERVATION_NAMESPACE  # namespace of Run:ai's reservation pods
    dashboard: bool | None = None  # whether the live page is served; only on loopback if None


class Controller:
    """One process for all fake nodes. It works while it leads; otherwise it is alive and not ready."""

    def __init__(self, settings: ControllerSettings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._leading = False
        self.withdrawn = False
        self._clock = SystemClock()
        self._threads = StepThreads()
        identity = f"{platform.node()}-{time.time_ns()}"
        terms = Terms.lasting(settings.lease_seconds)
        self._time = LeaseTime(self._clock.wall, self._clock.steady)
        self.election = Election(
            client, LEASE, namespace=settings.namespace, identity=identity, terms=terms, time=self._time
        )
        self.meters = metering.Meters(self._state, lambda: client.requests)
        self._writes = WriterCounters()  # of all terms: no counter falls while the process lives
        self._build()

    def _build(self) -> None:
        """Build what a term as leader needs."""
        settings, client = self._settings, self._client
        by_node = {"node": lambda pod: (pod.spec.node_name,) if pod.spec.node_name else ()}
        self._stores = FleetStores(Store(), Store(by_node), Store())
        self.fleet = Fleet(seed=settings.seed, parallel=self._threads)
        self._budget = ViewBudget(settings.view_writes, self._clock, others_busy=lambda: self._dra.slices.busy)
        self._stores.pods.listen(lambda _change: self._budget.pod_changed())
        self._queue: WorkQueue[str] = WorkQueue(waited=self.meters.waited)
        self._writer = Writer(client, manager=MANAGER, per_second=self._budget.per_second, burst=5, in_flight=32)
        self._writer.counters = self._writes
        self._recorder = Recorder(client, component=LEASE)
        self._dra = DraFleet(
            client, self._recorder, self._stores.pods, changed=self._queue.add, namespace=settings.namespace
        )
        self._topologies = NodeTopologies(client, self._writer, self._queue.add, namespace=settings.namespace)
        self.nodes = FakeNodes(
            self._stores, self.fleet, self._queue, self._writer, self._recorder,
            namespace=settings.namespace, catalog=settings.catalog, clock=self._clock, dra=self._dra,
            allocation=settings.allocation, reservations=settings.reservations, topologies=self._topologies,
            time=self._time.now, term=self.election.term,
        )  # fmt: skip
        self._profiles = ProfileMaps(client, self._stores.pods, self._queue.add)
        self.nodes.loads.find = self._profiles.text
        self._groups = PodGroups(client, self._queue.add)
        self.nodes.loads.find_class = self._groups.priority_class

        topology = Subject("v1", "ConfigMap", TOPOLOGY, settings.namespace)
        self._rates = RequestRates(
            lambda query, seconds: asking.instant(settings.prometheus, query, timeout_seconds=seconds),
            self.fleet.request_driven, self.fleet.engine.set_usage, self._clock,
            lambda problem: self._recorder.record(topology, "Warning", "PrometheusAway", problem),
        )  # fmt: skip

    def _begin_term(self) -> None:
        """Build everything anew; of an earlier term only counters stay, which may not have been saved when it ended."""
        shown = self.fleet.all_counters()
        self._build()
        self.fleet.remember(shown, 0.0)

    @property
    def ready(self) -> bool:
        """Whether it leads, and has reconciled every node since."""
        return self._leading and self.fleet.steps > 0 and not self.nodes.unseen

    async def lead(self) -> None:
        """Watch and reconcile until cancelled, then save the counters."""
        self._begin_term()
        responsive.collect()  # what an earlier term left: it has cycles
        client, stores, namespace = self._client, self._stores, self._settings.namespace
        reflectors = (
            Reflector(client, resources.NODES, stores.nodes),
            Reflector(client, resources.PODS, stores.pods, fields="spec.nodeName!="),  # others concern no node
            Reflector(client, resources.CONFIG_MAPS, stores.config_maps, namespace=namespace),
        )
        self._leading = True
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in reflectors:
                    group.create_task(reflector.run())
                group.create_task(self._writer.run())
                group.create_task(self._recorder.run())
                group.create_task(self._dra.run())
                group.create_task(self._profiles.run())
                group.create_task(self._groups.run())
                group.create_task(self._topologies.run())
                group.create_task(self._rates.run())
                await asyncio.gather(*(reflector.store.synced.wait() for reflector in reflectors))
                self.fleet.begin(self._clock.wall())
                self.nodes.watch()
                self.nodes.start()
                group.create_task(self._queue.run(self.nodes.reconcile))
                group.create_task(ticking.tick(self.fleet, self._settings.interval, self._clock, after=self._stepped))
                if self._settings.runai_namespace:
                    keep = runai_rules.keep(client, self._settings.runai_namespace, self._settings.runai_seconds)
                    group.create_task(keep)
        except* withdrawing.Withdrawn:
            self.withdrawn = True
        finally:
            self._leading = False  # pages show no counters that are higher than the saved ones
            if self.election.leading and not self.withdrawn:
                await self.nodes.save_before_exit()

    def _stepped(self) -> None:
        self.nodes.stepped()
        if self.nodes.withdrawn:
            raise withdrawing.Withdrawn

    def dashboard(self) -> Dashboard:
        """Return the live page."""
        return watching_page.of_fleet(
            lambda: self.fleet if self.ready else None, lambda: self._stores.pods, lambda: self._recorder, self._client,
            nodes=lambda: self.nodes,
        )  # fmt: skip

    def problems(self) -> Iterator[str]:
        """Yield problems for users to solve."""
        for problem in self.nodes.configuration.problems:
            yield f"topology: {problem}"
        if self._dra.problem:
            yield f"dynamic resource allocation is off: {self._dra.problem}"

    def describe(self) -> dict[str, Any] | None:
        """Return the configuration for the topology API; None while it is not ready."""
        return self.nodes.configuration.describe() if self.ready else None

    def describe_node(self, name: str) -> dict[str, Any] | None:
        """Return a node for the topology API; None if it is unknown."""
        return self.nodes.describe_node(name)

    def _state(self) -> dict[str, float]:
        """Return the controller's own metrics by name."""
        return {
            "leading": float(self._leading),
            "nodes": float(len(self.fleet.nodes)),
            "queue_depth": float(self._queue.depth),
            "gpus_overcommitted": float(self.nodes.overcommitted),
            "slices_queue_depth": float(self._dra.slices.queue.depth),
            "writes_pending": float(self._writer.pending),
            "write_lag_seconds": self._writer.lag,
            "writes_unchanged": float(self._writes.unchanged),
            "writes_failed": float(self._writes.failed),
        }


async def run_controller(settings: ControllerSettings, ready: Callable[[str, str], None]) -> None:
    """Run the controller with its pages until cancelled; `ready` gets the addresses of metrics and topology API."""
    responsive.keep_responsive()
    responsive.make_way()
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
        dashboard = controller.dashboard()
        if watching_page.wanted(settings.dashboard, settings.listen[0]):
            routes += dashboard.routes(loopback=watching_page.on_loopback(settings.listen[0]))
        http = server.HttpServer(routes)
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        stack.callback(dashboard.close)  # before the server waits for requests in progress
        topology = server.HttpServer(
            fleet_pages.topology_routes(lambda: controller.ready, controller.describe, controller.describe_node),
            [server.json_errors],
        )
        await topology.start(*settings.topology_listen, field="--topology-listen")
        stack.push_async_callback(topology.stop)
        ready(http.address, topology.address)
        await controller.election.run(controller.lead)  # which ends only by an uninstall
        await client.delete(resources.LEASES, LEASE, namespace=settings.namespace)
        await withdrawing.wait_until_wanted(client, namespace=settings.namespace)
