"""`simgpu agent`: makes the node that it runs on a GPU node, for the kubelet, for pods and for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simgpu import errors, vocabulary
from simgpu.app import ticking
from simgpu.app.equipping import Equipment
from simgpu.app.guests import Guests
from simgpu.catalog import models
from simgpu.controllers import publishing
from simgpu.controllers.own_node import OwnNode, Stores, Uses
from simgpu.identities import identity as identities
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.kubeconfig import Target
from simgpu.kube.recording import Recorder
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.node import granting, messages, offers, owners, plugins, rpc, runai
from simgpu.page import native
from simgpu.pods.holding import Held
from simgpu.topology import failures, pools, sharing
from simgpu.web import fleet as health
from simgpu.web import pages, server
from simgpu.workloads.server import Server as WorkloadServer

LOOK_SECONDS = 5.0
LEAST_SECONDS = 0.05  # between two looks, however much happens
PATIENCE_SECONDS = 3.0  # with an API server that does not answer; after ten, pods would see their GPUs as lost

_log = logging.getLogger(__name__)


class AgentSettings(msgspec.Struct, frozen=True):
    """What an agent is started with."""

    target: Target
    node: str
    namespace: str
    listen: tuple[str, int]
    identity: identities.Identity
    state: Path
    plugins: Path
    pod_resources: Path
    cgroups: Path
    reservations: str
    runai: Path
    seed: int = 1
    interval: float = 0.5


class Agent:
    """One process for one real node."""

    def __init__(self, settings: AgentSettings, client: Client) -> None:
        self._settings = settings
        self._client = client
        self._wake = asyncio.Event()
        self._informed = asyncio.Event()
        self._held: list[Held] | None = None
        self._uses: Mapping[str, Uses] = {}
        self._problem = ""
        self._failures = failures.NONE
        self._failing_since = time.monotonic()
        self._owners = owners.Owners(pod_resources=settings.pod_resources, plugins=settings.plugins)
        self.looked = False
        self.equipment = Equipment(
            settings.node, settings.identity, settings.state, seed=settings.seed, interval=settings.interval,
            cgroups=settings.cgroups,
        )  # fmt: skip
        programs = granting.install(native.library(), native.tool(), settings.state)
        self._tree = runai.Tree(settings.runai, runai.programs(programs.tool, native.preloader()))
        self._source = granting.Source(self.equipment.pages, self.equipment.run, programs)
        self.plugins = plugins.Plugins(self._allocate, folder=settings.plugins)
        stores = Stores(Store(), Store(), Store(), Store())
        self._recorder = Recorder(client, component=vocabulary.AGENT_MANAGER)
        self._writer = Writer(client, manager=vocabulary.AGENT_MANAGER, in_flight=2)
        self.node = OwnNode(
            settings.node, stores, self._writer, self._recorder, self._wake.set,
            namespace=settings.namespace, catalog=models.load(), before=self.equipment.known.spec,
        )  # fmt: skip
        self._stores = stores
        box = self.equipment.box
        guests = Guests(stores.pods, lambda: self._held or (), lambda: [device.uuid for device in box.devices])
        self.socket = WorkloadServer(
            box, self.equipment.run / vocabulary.SOCKET_NAME, mode=0o666, settings=self.equipment.set,
            names={family.name: (family.value, family.scale) for family in settings.identity.families},
            identify=guests.identify, changed=self._work_changed,
        )  # fmt: skip

    @property
    def ready(self) -> bool:
        """Whether everything was looked at and brought to what it should be once."""
        return self.looked and self.equipment.box.steps > 0

    def problems(self) -> Iterator[str]:
        """What users should know."""
        yield from self.node.configuration.problems

    async def run(self, ready: Callable[[], None]) -> None:
        """Work until cancelled."""
        client, stores, name, namespace = self._client, self._stores, self._settings.node, self._settings.namespace
        others, own = f"{vocabulary.VIEW_LABEL}!=true", f"metadata.name={publishing.view_name(name)}"
        reflectors: tuple[Reflector[Any], ...] = (
            Reflector(client, resources.NODES, stores.nodes, fields=f"metadata.name={name}"),
            Reflector(client, resources.PODS, stores.pods, fields=f"spec.nodeName={name}"),
            Reflector(client, resources.CONFIG_MAPS, stores.config_maps, namespace=namespace, labels=others),
            Reflector(client, resources.CONFIG_MAPS, stores.views, namespace=namespace, fields=own),
        )
        async with asyncio.TaskGroup() as group:
            for reflector in reflectors:
                group.create_task(reflector.run())
            group.create_task(self._writer.run())
            group.create_task(self._recorder.run())
            group.create_task(self._inform())
            self._equip(self.equipment.known.spec)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self.equipment.spec == pools.NodeGpus(()) else PATIENCE_SECONDS):
                    await self._informed.wait()
            group.create_task(self.plugins.run())
            await self._reconcile()  # the time since the last step of the agent before this one is the pods' too
            group.create_task(self._keep())
            equipment = self.equipment
            tick = ticking.tick(equipment.box, self._settings.interval, ready, self._stepped, since=equipment.saved.age)
            group.create_task(tick)

    async def _inform(self) -> None:
        """Wait for the cluster: from then on it says what the node has and who uses it, and no more what is known."""
        stores = self._stores
        await asyncio.gather(
            *(store.synced.wait() for store in (stores.nodes, stores.pods, stores.config_maps, stores.views))
        )
        self.node.watch()
        self.node.configure()
        self._informed.set()
        self._wake.set()

    def _stepped(self) -> None:
        """Show where everything stands; who shares a GPU once the kubelet has said who holds it."""
        self.equipment.stepped()
        if self.looked and (self._held is not None or not self.equipment.spec.gpus):
            machine, namespace = self.equipment.box.machine, self._settings.reservations
            self._tree.show(lambda: runai.entries(machine, namespace=namespace), now=time.monotonic())

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            pause = await self._reconcile()
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _reconcile(self) -> float:
        """Make everything as it should be; seconds until it should be looked at again."""
        informed, equipment = self._informed.is_set(), self.equipment
        if informed:
            self._equip(self.node.spec())
        spec = equipment.spec
        change = self._offer(spec)
        memory = {device.uuid: device.model.memory_mib.usable for device in equipment.box.devices}
        if memory and (held := await self._owners.look(memory)) is not None:
            self._held = held
        if informed and (self._held is not None or not memory):
            uses = self.node.uses(
                spec, self._held or (), memory, reservations=self._settings.reservations,
                before=self._uses if self.looked else equipment.known.uses,
            )  # fmt: skip
            equipment.remember(uses)
        else:
            uses = self._known_uses()
        self._uses = uses
        self._work_changed()
        ids = [device.uuid for device in equipment.box.devices]
        counters = equipment.box.counters()
        again = self.node.publish(spec, ids, uses, {name: counters[name] for name in ids})
        self.looked = True
        return min(again, LOOK_SECONDS, *([change] if change is not None else []))

    def _work_changed(self) -> None:
        """Let containers do what they should, those with workloads of their own nothing else."""
        working = {(guest.pod.uid, guest.pod.container) for guest in self.socket.working if guest.pod is not None}
        self.equipment.use(self._uses, working)

    def _known_uses(self) -> dict[str, Uses]:
        """Who used the GPUs, less those that the kubelet has given to nobody any more."""
        uses = self.equipment.known.uses
        if self._held is None:
            return uses
        given = {sharing.device(name) for held in self._held for name in held.ids}
        return {gpu: items for gpu, items in uses.items() if gpu in given}

    def _equip(self, spec: pools.NodeGpus) -> None:
        """Give the node these GPUs; those that it has stay where that cannot be done."""
        problem = ""
        try:
            self.equipment.equip(spec)
        except errors.InputError as error:
            problem = f"the GPUs stay as they were: {error}"
            self.node.complain("UnusableGpus", problem)
        if problem and problem != self._problem:
            _log.warning("%s", problem)
        self._problem = problem

    # The kubelet.

    def _offer(self, spec: pools.NodeGpus) -> float | None:
        """Offer what there is, as well as it is; seconds until that changes by itself."""
        wanted = self.node.failures(spec)
        if wanted != self._failures:
            _log.info("failures are now: %s", wanted)
            self._failures, self._failing_since = wanted, time.monotonic()
        elapsed = time.monotonic() - self._failing_since
        found = {item.resource: item for item in _offers(spec, self.equipment, wanted, elapsed)}
        self.plugins.offer(found, present=wanted.present(elapsed))
        return wanted.next_change(elapsed)

    async def _allocate(self, resource: str, ids: Sequence[str]) -> messages.ContainerAllocateResponse:
        if self._failures.delay:
            await asyncio.sleep(self._failures.delay)
        if self._failures.refuse:
            raise rpc.Refused(f"{resource}: refused, as the node's failures say")
        self._wake.set()
        node = self._settings.node
        if resource != self.equipment.spec.slicing.name(vocabulary.GPU_RESOURCE):
            return granting.others(node=node)
        return granting.gpus(ids, node=node, source=self._source)


def _offers(
    spec: pools.NodeGpus, equipment: Equipment, failing: failures.Failures, elapsed: float
) -> Iterator[offers.Offer]:
    """GPUs, and each of the other devices. The kubelet is told of NUMA nodes where the topology speaks of them."""
    unhealthy = failing.unhealthy_at(elapsed)
    gpus = [
        offers.Offered(device.uuid, place, device.index not in unhealthy, tell=spec.numa is not None)
        for device, place in zip(equipment.box.devices, offers.places(equipment.box.devices), strict=True)
    ]
    if gpus:
        yield offers.offer(vocabulary.GPU_RESOURCE, gpus, spec.slicing)
    for resource, count in spec.other.items():
        named = [offers.Offered(f"{resource.replace('/', '-')}-{number}") for number in range(count)]
        yield offers.offer(resource, named, spec.slicing)


async def run_agent(settings: AgentSettings, ready: Callable[[str], None]) -> None:
    """The agent with its pages, until it is cancelled."""
    async with Client(settings.target) as client, contextlib.AsyncExitStack() as stack:
        agent = Agent(settings, client)
        stack.callback(agent.equipment.close)
        await agent.socket.start()
        stack.push_async_callback(agent.socket.stop)
        box = agent.equipment.box
        routes = [
            server.get("/metrics", pages.current(lambda: agent.equipment.page)),
            server.get("/healthz", health.health(agent.problems)),
            server.get("/readyz", server.health(lambda: None if agent.ready else "not started")),
            server.get("/api/v1/devices", server.view(box.describe_devices)),
            server.get("/api/v1/workloads", server.view(box.describe_workloads)),
        ]
        http = server.Server(routes)
        await http.start(*settings.listen, field="--listen")
        stack.push_async_callback(http.stop)
        await agent.run(lambda: ready(http.address))
