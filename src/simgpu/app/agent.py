"""`simgpu agent`: makes the node that it runs on a GPU node, for the kubelet, for pods and for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simgpu import vocabulary
from simgpu.app import withdrawing
from simgpu.app.clock import SystemClock
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.controllers.equipping import Equipment
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.controllers.real_node import RealNode
from simgpu.identities import identity as identities
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import ClientConfig
from simgpu.kube.recording import Recorder
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines import ticking
from simgpu.node import cpu, files, granting, runai
from simgpu.node.identifying import PeerIdentifier
from simgpu.node.kubelet import NodeKubelet
from simgpu.node.state import StateFiles
from simgpu.page import native, showing
from simgpu.topology import pools
from simgpu.web import health, pages, server
from simgpu.workloads import documents
from simgpu.workloads.server import WorkloadServer

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
    plugins: Path  # folder of the kubelet's device plugin sockets
    pod_resources: Path  # the kubelet's pod resources socket
    cgroups: Path  # the cgroup file system
    reservations: str  # namespace of Run:ai's reservation pods
    runai: Path  # folder of files for Run:ai's container toolkit
    seed: int = 1  # of the simulation's randomness
    interval: float = 0.5  # seconds between steps


class Agent:
    """One process for one real node."""

    def __init__(self, settings: AgentSettings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._clock = SystemClock()
        self._files = StateFiles(settings.state)
        self._recorder = Recorder(client, component=vocabulary.AGENT_MANAGER)
        self._writer = Writer(client, manager=vocabulary.AGENT_MANAGER, in_flight=2)
        run = settings.state / "run"
        run.mkdir(parents=True, exist_ok=True)
        self.equipment = Equipment(
            settings.node, self._files, cpu.Meter(settings.cgroups), pages=settings.state / "gpus",
            stale=showing.stale_after(settings.interval), control=vocabulary.POD_SOCKET, seed=settings.seed,
        )  # fmt: skip
        programs = granting.install(native.library(), native.tool(), settings.state)
        self.kubelet = NodeKubelet(
            settings.node, granting.Source(self.equipment.pages, run, programs), self._expect,
            folder=settings.plugins, pod_resources=settings.pod_resources,
        )  # fmt: skip
        self.stores = NodeStores(Store(), Store(), Store(), Store())
        self.node = OwnNode(
            settings.node, self.stores, self._writer, self._recorder,
            namespace=settings.namespace, catalog=settings.catalog, clock=self._clock, before=self._files.known.spec,
        )  # fmt: skip
        self.controller = RealNode(
            self.node, self.equipment, self.kubelet, working=lambda: self.socket.working,
            known=self._files.known, reservations=settings.reservations, clock=self._clock,
        )  # fmt: skip
        box, controller = self.equipment.box, self.controller
        identifier = PeerIdentifier(
            self.stores.pods, lambda: controller.held or (), lambda: [item.uuid for item in box.devices]
        )
        names = {family.name: (family.value, family.scale) for family in settings.identity.families}
        self.socket = WorkloadServer(
            box, run / vocabulary.SOCKET_NAME, mode=0o666, settings=self.equipment.set,
            read=functools.partial(documents.read, names=names), identify=identifier.identify,
            changed=controller.apply_users,
        )  # fmt: skip
        self._tree = runai.Tree(settings.runai, runai.programs(programs.tool, native.preloader()))

    def _expect(self, ids: Sequence[str]) -> None:
        self.controller.expect(ids)  # which is built after the kubelet

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
            group.create_task(self._recorder.run())
            group.create_task(self._await_stores())
            controller.equip(self._files.known.spec)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.equipment.spec == pools.NodeGpus(()) else MAX_WAIT_SECONDS):
                    await controller.following.wait()
            group.create_task(self.kubelet.plugins.run())
            await controller.reconcile()  # users before the first step, which covers the time since the last agent
            group.create_task(controller.run())
            tick = ticking.tick(
                self.equipment.box, self._settings.interval, self._clock,
                ready=ready, after=self._stepped, since=self._files.age(),
            )  # fmt: skip
            group.create_task(tick)

    async def _await_stores(self) -> None:
        """Wait until all stores are filled, then reconcile from the cluster instead of the saved state."""
        stores = self.stores
        await asyncio.gather(
            *(store.synced.wait() for store in (stores.nodes, stores.pods, stores.config_maps, stores.views))
        )
        self.controller.follow_cluster()

    def _stepped(self) -> None:
        """Write what depends on the step; shares of GPUs only once they are known."""
        if self.node.withdrawn:
            raise withdrawing.Withdrawn
        now = self._clock.steady()
        self.equipment.stepped(now)
        if self.controller.shares_known:
            machine, namespace = self.equipment.box.machine, self._settings.reservations
            self._tree.show(lambda: runai.entries(machine, namespace=namespace), now=now)

    def remove_files(self) -> None:
        """Remove everything that agents wrote on the node. Folders that are mounted stay, empty."""
        files.remove_contents(self._settings.state)
        self._tree.remove()


async def run_agent(settings: AgentSettings, ready: Callable[[str], None]) -> None:
    """Run the agent with its pages until cancelled; `ready` gets the address after the first step."""
    async with Client(settings.target) as client, contextlib.AsyncExitStack() as stack:
        agent = Agent(settings, client)
        box = agent.equipment.box
        routes = [
            server.get("/metrics", pages.Following(lambda: box.machine, settings.identity)),
            server.get("/healthz", health.liveness(lambda: agent.node.configuration.problems)),
            server.get("/readyz", health.readiness(lambda: None if agent.ready else "not started")),
            server.get("/api/v1/devices", server.view(box.describe_devices)),
            server.get("/api/v1/workloads", server.view(box.describe_workloads)),
        ]
        http = server.HttpServer(routes)
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        if await _run_until_withdrawn(agent, lambda: ready(http.address)):
            agent.remove_files()
            unmark = publishing.label_patch({}, [vocabulary.MANAGED_LABEL])
            await client.merge_patch(resources.NODES, settings.node, unmark)
            await withdrawing.wait_until_wanted(client, namespace=settings.namespace)


async def _run_until_withdrawn(agent: Agent, ready: Callable[[], None]) -> bool:
    """Run the agent until cancelled; True if it ended because everything was removed for an uninstall."""
    withdrawn = False
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(agent.equipment.close)
        await agent.socket.start()
        stack.push_async_callback(agent.socket.stop)
        try:
            await agent.run(ready)
        except* withdrawing.Withdrawn:
            withdrawn = True
    return withdrawn
