"""`simgpu agent`: makes the node that it runs on a GPU node, for the kubelet, for pods and for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.app import watching_page, withdrawing
from simgpu.app.clock import SystemClock
from simgpu.catalog import models
from simgpu.cluster import locks
from simgpu.controllers import publishing
from simgpu.controllers.equipping import Equipment
from simgpu.controllers.knative import RequestRates
from simgpu.controllers.lending import LentGpus
from simgpu.controllers.node_topologies import NodeTopologies
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.controllers.own_slices import OwnSlices
from simgpu.controllers.pod_groups import PodGroups
from simgpu.controllers.profile_maps import ProfileMaps
from simgpu.controllers.real_node import RealNode
from simgpu.identities import identity as identities
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.kube.recording import Recorder
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines import documents, ticking
from simgpu.machines.box import Box
from simgpu.node import cpu, files, granting, nri, runai, zone_view
from simgpu.node.cgroups import ContainerProcesses
from simgpu.node.driver import DriverFolder
from simgpu.node.identifying import PeerIdentifier
from simgpu.node.kernel_log import KernelLog
from simgpu.node.kubelet import KubeletFolders, NodeKubelet
from simgpu.node.pod_processes import PodProcesses
from simgpu.node.state import StateFiles, load_known
from simgpu.page import native, showing
from simgpu.pods import requests
from simgpu.promql import asking
from simgpu.topology import pools
from simgpu.web import health, pages, server
from simgpu.workloads.server import WorkloadServer

_log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 3.0  # for the API server; pods take pages for stale that were not written for ten


class AgentSettings(msgspec.Struct, frozen=True):
    """Settings of `simgpu agent`. Paths are absolute."""

    target: ClientConfig  # the API server
    node: str  # name of the node that the agent runs on
    namespace: str  # of the configuration and the views
    listen: tuple[str, int]  # host and port of metrics and health
    identity: identities.Identity
    catalog: models.Catalog  # GPU models
    state: Path  # folder of files that are mounted into pods, and of the saved state
    kubelet: KubeletFolders  # of its plugins
    cgroups: Path  # the cgroup file system
    reservations: str  # namespace of Run:ai's reservation pods
    runai: Path  # folder of files for Run:ai's container toolkit
    nri: Path  # socket of the container runtime for plugins that adjust containers
    zone_view: Path | None = None  # folder of the pod resources interface with the pool's NUMA zones
    kernel_log: Path | None = None  # file or device that gets the driver's lines about errors
    prometheus: str = vocabulary.DEFAULT_PROMETHEUS  # which knows the requests of inference pods
    allocation: str = vocabulary.EXTENDED  # how pods get GPUs where the topology does not say it
    seed: int = 1  # of the simulation's randomness
    interval: float = 0.5  # seconds between steps
    dashboard: bool | None = None  # whether the live page is served; only on loopback if None
    components: frozenset[str] = frozenset(vocabulary.COMPONENTS) - {vocabulary.DRIVER_PART}  # what the agent brings
    driver: Path = Path(vocabulary.DRIVER_DIR)  # the driver folder, if it brings that


class NodeLinks:
    """What an agent has on its node before it is the only one there: events, the API's DRA, the kubelet's plugins.

    While another agent runs, as during an update, this one stands by: its DRA plugin already prepares claims.
    """

    def __init__(self, settings: AgentSettings, client: Client) -> None:
        self.run_folder = settings.state / "run"
        self.run_folder.mkdir(parents=True, exist_ok=True)
        brought = settings.components
        self.driver = DriverFolder(settings.driver, native.library(), native.tool())
        self.pages = settings.state / "gpus"
        self.programs = granting.install(native.library(), native.tool(), settings.state)
        self.source = granting.Source(self.pages, self.run_folder, self.programs)
        self.recorder = Recorder(client, component=vocabulary.AGENT_MANAGER)
        self.slices = OwnSlices(client, self.recorder, settings.node)
        self.kubelet = NodeKubelet(
            settings.node, self.source, folders=settings.kubelet, state=settings.state, get=self.slices.claim,
            offered=vocabulary.PLUGIN_PART in brought,
        )  # fmt: skip
        self.standing_by = False
        self._settings = settings

    def stand_by(self) -> None:
        """Prepare claims with the GPUs that the agent which still runs has last saved."""
        spec = load_known(self._settings.state / vocabulary.KNOWN_FILE).spec
        self.kubelet.stand_by(spec, pools.build(spec, self._settings.node))
        self.standing_by = True
        _log.info("another agent runs on the node; this one stands by")

    async def run(self) -> None:
        """Write events and serve claims until cancelled."""
        await self.kubelet.restore()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.recorder.run())
            group.create_task(self.kubelet.run_claims())


class Agent:
    """One process for one real node. Without `links` it has its own, and runs them."""

    def __init__(self, settings: AgentSettings, client: Client, links: NodeLinks | None = None) -> None:
        self._settings = settings
        self._client = client
        self._clock = SystemClock()
        self._own_links = links is None
        self._links = links = links or NodeLinks(settings, client)
        self._files = StateFiles(settings.state, links.pages)
        self._brings_driver = vocabulary.DRIVER_PART in settings.components
        if self._brings_driver:
            links.driver.claim()
        self._has_driver = links.driver.is_ours  # or an agent before this one brought it
        self._writer = Writer(client, manager=vocabulary.AGENT_MANAGER, in_flight=2)
        self.stores = NodeStores(Store(), Store(), Store(), Store())
        self._processes = PodProcesses(
            ContainerProcesses(settings.cgroups), lambda ref: self.stores.pods.get(ref.name, namespace=ref.namespace),
            self._clock.steady,
        )  # fmt: skip
        self.equipment = Equipment(
            settings.node, self._files, cpu.Meter(settings.cgroups), pages=links.pages,
            stale=showing.stale_after(settings.interval), control=vocabulary.POD_SOCKET, seed=settings.seed,
            processes=self._processes.of,
        )  # fmt: skip
        self.equipment.copies = self._copies()
        self.slices, self.kubelet = links.slices, links.kubelet
        self.node = OwnNode(
            settings.node, self.stores, self._writer, links.recorder,
            namespace=settings.namespace, catalog=settings.catalog, clock=self._clock, before=self._files.known.spec,
            allocation=settings.allocation, labelled=vocabulary.LABELS_PART in settings.components,
            claimable=vocabulary.DRA_PART in settings.components,
        )  # fmt: skip
        self.profiles = ProfileMaps(client, self.stores.pods, lambda _node: self.controller.wake())
        self.node.loads.find = self.profiles.text
        self.groups = PodGroups(client, lambda _node: self.controller.wake())
        self.node.loads.find_class = self.groups.priority_class
        self.controller = RealNode(
            self.node, self.equipment, self.kubelet, self.slices, working=lambda: self.socket.working,
            known=self._files.known, reservations=settings.reservations, clock=self._clock,
        )  # fmt: skip
        self.topologies = NodeTopologies(
            client,
            self._writer,
            lambda _node: self.controller.wake(),
            namespace=settings.namespace,
            node=settings.node,
        )
        self.controller.topologies = self.topologies
        self.rates = RequestRates(
            lambda query, seconds: asking.instant(settings.prometheus, query, timeout_seconds=seconds),
            self.equipment.box.request_driven, self.equipment.box.engine.set_usage, self._clock,
            lambda problem: self.node.report("PrometheusAway", problem),
        )  # fmt: skip
        self.kubelet.on_allocation = self.controller.expect
        self.kubelet.prepared.changed = self.controller.claims_changed
        box, controller = self.equipment.box, self.controller
        self.lent = LentGpus(
            self.stores.pods, lambda: None if controller.held is None else controller.all_held,
            lambda: {item.uuid: item.model.memory_mib.usable for item in box.devices}, self.node.loads,
            configuration=self.node.configuration, namespace=settings.reservations,
        )  # fmt: skip
        adjust = nri.shared_gpus(self.lent.find, node=settings.node, source=links.source)
        self._nri = nri.NriPlugin(settings.nri, adjust)
        identifier = PeerIdentifier(
            self.stores.pods, lambda: (*controller.all_held, *self.lent.held()),
            lambda: [item.uuid for item in box.devices] + box.part_ids,
        )  # fmt: skip
        names = identities.limit_names(settings.identity)
        self.socket = WorkloadServer(
            box, links.run_folder / vocabulary.SOCKET_NAME, mode=0o666, settings=controller.set,
            read=functools.partial(documents.read, names=names), identify=identifier.identify,
            changed=controller.apply_users,
        )  # fmt: skip
        self._zone_view = zone_view.ZoneView(settings.zone_view, self._zoned) if settings.zone_view else None
        log = settings.kernel_log
        self._kernel_log = KernelLog(log, host=settings.node) if log is not None else None
        self._tree = runai.Tree(settings.runai, runai.programs(links.programs.tool, native.preloader()))
        self._driver_problem, self._awaits_pods = "", False

    @property
    def ready(self) -> bool:
        """Whether the node was reconciled, and its GPUs made a step."""
        return self.controller.ready

    async def run(self, ready: Callable[[], None]) -> None:
        """Watch, reconcile, serve the kubelet and step until cancelled; `ready` is called after the first step."""
        client, stores, name, namespace = self._client, self.stores, self._settings.node, self._settings.namespace
        others, own = f"{vocabulary.VIEW_LABEL}!=true", f"metadata.name={publishing.view_name(name)}"
        reflectors: tuple[Reflector[Any], ...] = (
            Reflector(client, resources.NODES, stores.nodes, fields=f"metadata.name={name}"),
            Reflector(client, resources.PODS, stores.pods, fields=f"spec.nodeName={name}"),
            Reflector(client, resources.CONFIG_MAPS, stores.config_maps, namespace=namespace, labels=others),
            Reflector(client, resources.CONFIG_MAPS, stores.views, namespace=namespace, fields=own),
        )
        controller = self.controller
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
            group.create_task(self._writer.run())
            if self._own_links:
                group.create_task(self._links.run())
            group.create_task(self._await_stores())
            group.create_task(self.slices.run())
            group.create_task(self.profiles.run())
            group.create_task(self.groups.run())
            group.create_task(self.topologies.run())
            group.create_task(self.rates.run())
            await self.kubelet.restore()
            controller.equip(self._files.known.spec)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.equipment.spec == pools.NodeGpus(()) else MAX_WAIT_SECONDS):
                    await controller.following.wait()
            group.create_task(self.kubelet.run())
            await controller.reconcile()  # users before the first step, which covers the time since the last agent
            group.create_task(controller.run())
            group.create_task(controller.collect())
            tick = ticking.tick(
                self.equipment.box, self._settings.interval, self._clock,
                ready=ready, after=self._stepped, since=self._files.age(),
            )  # fmt: skip
            group.create_task(tick)
            group.create_task(self._show_shared())
            if self._zone_view is not None:
                group.create_task(self._zone_view.run())

    async def _show_shared(self) -> None:
        """Show pods the GPUs that they share, until cancelled: only where GPUs are reserved at all."""
        await self.lent.wait_reserved()
        await self._nri.run()

    def _zoned(self) -> zone_view.ZonedNode:
        """Return the node's NUMA zones, and its pods with GPUs."""
        zones = self.controller.zones()
        if zones is None:
            return zone_view.ZonedNode()
        cores = ((zones.cores or 0) + 500) // 1000
        pods = zone_view.zoned(self.controller.owners(), self._requested)
        return zone_view.ZonedNode(zones.numa.zones, cores, zones.resource or vocabulary.GPU_RESOURCE, pods)

    def _requested(self, namespace: str, name: str) -> tuple[int, int]:
        pod = self.stores.pods.get(name, namespace=namespace)
        return requests.reserved(pod) if pod is not None else (0, 0)

    async def _await_stores(self) -> None:
        """Wait until all stores are filled, then reconcile from the cluster instead of the saved state."""
        stores = self.stores
        await asyncio.gather(
            *(store.synced.wait() for store in (stores.nodes, stores.pods, stores.config_maps, stores.views))
        )
        self.controller.follow_cluster()

    def _stepped(self) -> None:
        """Write what depends on the step; shares of GPUs only once they are known."""
        if self.node.withdrawn and self.slices.removed and self.topologies.cleared:
            raise withdrawing.Withdrawn
        now = self._clock.steady()
        self.equipment.stepped(now)
        self._processes.forget_others()
        self.equipment.log_errors(self._kernel_log.write if self._kernel_log is not None else lambda _errors: True)
        self.controller.stepped()
        self._show_driver()
        if self._zone_view is not None:
            self._zone_view.show()
        if self.controller.shares_known and vocabulary.PLUGIN_PART in self._settings.components:
            machine, namespace = self.equipment.box.machine, self._settings.reservations
            self._tree.show(lambda: runai.entries(machine, namespace=namespace), now=now)

    def _copies(self) -> dict[Path, str]:
        """Return the folders of pages besides the one for pods: programs on the node use the socket as it is there."""
        socket = str(self._links.run_folder / vocabulary.SOCKET_NAME)
        return {self._links.driver.pages: socket} if self._has_driver else {}

    def _show_driver(self) -> None:
        """Bring the driver folder in line with the GPUs, or remove it if not wanted; a problem is reported once."""
        problem, driver = "", self._links.driver
        try:
            if self._has_driver:
                driver.show(self.equipment.box.devices)
            if self._has_driver and not self._brings_driver and self.controller.shares_known:
                self._release_driver()
        except errors.InputError as error:
            problem = str(error)
        if problem and problem != self._driver_problem:
            _log.warning("%s", problem)
            self.node.report("DriverFolder", problem)
        self._driver_problem = problem

    def _release_driver(self) -> None:
        """Remove the driver folder, unless pods have GPUs that had them when it was switched off."""
        if self._links.driver.release(self.controller.pods):
            self.equipment.drop_copies()
            self._has_driver = False
            _log.info("%s was removed: this agent brings no driver", self._settings.driver)
        elif not self._awaits_pods:
            _log.info("%s stays until the pods end that have GPUs now", self._settings.driver)
            self._awaits_pods = True

    def remove_files(self) -> None:
        """Remove everything that agents wrote on the node. Folders that are mounted stay, empty."""
        self.kubelet.remove_files()
        self._links.driver.remove()
        files.remove_contents(self._settings.state)
        self._tree.remove()
        if self._zone_view is not None:
            self._zone_view.remove()


async def run_agent(settings: AgentSettings, ready: Callable[[str], None]) -> None:
    """Run the agent until cancelled, as soon as no other one runs; `ready` gets the address after the first step.

    It ends by itself only after an uninstall that was called off.
    """
    async with Client(settings.target) as client, contextlib.AsyncExitStack() as stack:
        links = NodeLinks(settings, client)
        role = _Role(settings, links)
        http = role.http()
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        stack.callback(role.dashboard.close)  # before the server waits for requests in progress
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(links.run())
                await _run_alone(role, client, links, lambda: ready(http.address))
        except* withdrawing.Withdrawn:
            role.remove_files()
        unmark = publishing.label_patch({}, [vocabulary.MANAGED_LABEL])
        await client.merge_patch(resources.NODES, settings.node, unmark)
        await withdrawing.wait_until_wanted(client, namespace=settings.namespace)


async def _run_alone(role: _Role, client: Client, links: NodeLinks, ready: Callable[[], None]) -> None:
    """Run the agent once no other one runs on the node."""
    settings = role.settings
    async with contextlib.AsyncExitStack() as stack:
        lock = settings.state / vocabulary.AGENT_LOCK
        await stack.enter_async_context(locks.exclusive(lock, waiting=links.stand_by))
        agent = role.agent = Agent(settings, client, links)
        stack.callback(agent.equipment.close)
        await agent.socket.start()
        stack.push_async_callback(agent.socket.stop)
        await agent.run(ready)


class _Role:
    """What the agent's port answers: while it stands by, that it is ready, and nothing else."""

    def __init__(self, settings: AgentSettings, links: NodeLinks) -> None:
        self.agent: Agent | None = None
        self.settings = settings
        self._links = links
        self._idle = Box((), seed=settings.seed, hostname=settings.node)
        self.dashboard = watching_page.of_agent(
            lambda: self._box, lambda: None if self.agent is None else self.agent.stores.pods, links.recorder,
            node=settings.node, pool=lambda: "" if self.agent is None else self.agent.node.pool,
        )  # fmt: skip

    def http(self) -> server.HttpServer:
        """Return the server of the port."""
        routes = [
            server.get("/healthz", health.liveness(self._problems)),
            server.get("/readyz", health.readiness(self._unready)),
            server.get("/api/v1/devices", server.view(self._devices)),
            server.get("/api/v1/workloads", server.view(self._workloads)),
        ]
        if vocabulary.EXPORTER_PART in self.settings.components:
            routes.append(server.get("/metrics", pages.Following(lambda: self._box.machine, self.settings.identity)))
        if watching_page.wanted(self.settings.dashboard, self.settings.listen[0]):
            routes += self.dashboard.routes(loopback=watching_page.on_loopback(self.settings.listen[0]))
        return server.HttpServer(routes)

    def remove_files(self) -> None:
        """Remove what the agent wrote on the node."""
        if self.agent is not None:
            self.agent.remove_files()

    @property
    def _box(self) -> Box:
        return self._idle if self.agent is None else self.agent.equipment.box

    def _devices(self) -> list[dict[str, Any]]:
        return self._box.describe_devices()

    def _workloads(self) -> list[dict[str, Any]]:
        return self._box.describe_workloads()

    def _problems(self) -> Iterable[str]:
        return () if self.agent is None else self.agent.node.configuration.problems

    def _unready(self) -> str | None:
        ready = self._links.standing_by if self.agent is None else self.agent.ready
        return None if ready else "not started"
