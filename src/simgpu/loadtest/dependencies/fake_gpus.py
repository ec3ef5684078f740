"""The dependencies `DRAKWOKDriver` (kwok-dra) and `DRATestDriver`: simulated nodes with GPUs, ready when they are.

Nodes and slices are created concurrently, labelled with the run, and found again by that label: so teardown works
after any failure. Slices are owned by their nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from simgpu import errors as simgpu_errors
from simgpu.catalog import models
from simgpu.kube import errors, parallel, resources
from simgpu.kube.reflector import Reflector
from simgpu.kube.store import Change, Store
from simgpu.kube.views import Node, Object
from simgpu.loadtest import heartbeat, ownership
from simgpu.loadtest.dependencies import kinds, nodes, restarts, slices, stages, visibility
from simgpu.loadtest.dependencies.kwok import DEFAULT_IMAGE, Kwok
from simgpu.loadtest.dependencies.workbench import DependencyError, Workbench
from simgpu.loadtest.scenario import durations, fields, kube_syntax
from simgpu.loadtest.scenario.fields import Problems, Section
from simgpu.loadtest.scenario.model import DependencyCall
from simgpu.topology import inline
from simgpu.vocabulary import (
    ALLOCATION_ANNOTATION,
    DRA,
    DRA_DRIVER,
    GPU_RESOURCE,
    GPUS_ANNOTATION,
    LEASE,
    LOADTEST_DRIVER,
    LOADTEST_EXAMPLE_DRIVER,
    LOADTEST_PREFIX,
    MAX_LOADTEST_GPUS,
    MAX_LOADTEST_NODES,
)

KWOK_DRA, TEST_DRIVER = "DRAKWOKDriver", "DRATestDriver"
ALIASES = {"kwok-dra": KWOK_DRA}
_NODES = fields.count(1, MAX_LOADTEST_NODES)
_GPUS = fields.count(0, MAX_LOADTEST_GPUS)
_VERSION = fields.choice("v1", "v1beta2", "v1beta1")
PARAMETERS: dict[str, dict[str, Callable[[Any], Any]]] = {
    KWOK_DRA: {
        "nodes": _NODES,
        "gpusPerNode": _GPUS,
        "timeout": durations.parse,
        "model": fields.text,
        "allocation": fields.choice("dra", "device-plugin"),
        "apiVersion": _VERSION,
        "extendedResourceName": kube_syntax.extended_resource,
        "kwokImage": fields.text,
    },
    TEST_DRIVER: {
        "WorkerNodeCount": _NODES,
        "nodes": _NODES,
        "gpusPerNode": _GPUS,
        "timeout": durations.parse,
        "apiVersion": _VERSION,
        "ExtendedResourceName": kube_syntax.extended_resource,
        "kwokImage": fields.text,
    },
}


class GpuSettings(msgspec.Struct, frozen=True):
    """What a dependency asks for."""

    driver: str
    device_class: str
    nodes: int
    gpus: int
    seconds: float
    model: str = ""
    dra: bool = True
    version: str = ""
    extended_resource: str = ""
    image: str = DEFAULT_IMAGE
    every_pod: bool = False  # whether pods of the run without GPUs belong on its nodes, too


def settings(call: DependencyCall, variables: Mapping[str, Any], default_nodes: int | None) -> GpuSettings:
    """Read the parameters of a dependency; a missing number of nodes is that of the command line."""
    params = Section(call.params, f"{call.path}.params", Problems(""))
    example = call.method == TEST_DRIVER
    given = variables.get("Nodes")
    fallback = default_nodes or (given if example and isinstance(given, int) and given > 0 else 2)
    count = params.take("nodes", _NODES, fallback)
    driver = LOADTEST_EXAMPLE_DRIVER if example else LOADTEST_DRIVER
    return GpuSettings(
        driver=driver,
        device_class=driver,
        nodes=params.take("WorkerNodeCount", _NODES, count) if example else count,
        gpus=params.take("gpusPerNode", _GPUS, 8),
        seconds=params.take("timeout", durations.parse, 300.0),
        model=params.take("model", fields.text, ""),
        dra=params.take("allocation", fields.text, "dra") == "dra",
        version=params.take("apiVersion", fields.text, ""),
        extended_resource=params.take("extendedResourceName", fields.text, ""),
        image=params.take("kwokImage", fields.text, DEFAULT_IMAGE),
        every_pod=example,
    )


def check_call(
    call: DependencyCall, variables: Mapping[str, Any], problems: Problems, *, catalog: models.Catalog | None = None
) -> None:
    """Report an unknown model, a model without GPUs, and running times of jobs that are none."""
    stages.running_milliseconds(variables, problems)
    wanted = settings(call, variables, None)
    if not wanted.model:
        return
    if not wanted.gpus:
        problems.add(f"{call.path}.params.gpusPerNode", "0: must be at least 1 where params.model is given")
        return
    try:
        inline.parse(_annotation(wanted), catalog or models.load(), field="model")
    except simgpu_errors.InputError as error:
        own = "; --catalog FILE adds models of your own, as it does for the controller"
        problems.add(f"{call.path}.params.model", f"{error.problem}{own}")


def _written(item: Object) -> tuple[int, str]:
    """Return what orders objects by when they were written: resource versions are numbers without leading zeros."""
    return len(item.metadata.resource_version), item.metadata.resource_version


def _annotation(wanted: GpuSettings) -> str:
    return f"{wanted.model}:{wanted.gpus}"


class FakeGpus:
    """Simulated nodes with GPUs for one run."""

    def __init__(self, bench: Workbench, wanted: GpuSettings, *, name: str) -> None:
        self._bench, self._wanted, self._name = bench, wanted, name
        self._kwok = Kwok(bench, image=wanted.image)
        self._version = ""
        self._classes: list[str] = []
        self._nodes = nodes.CreatedNodes()
        self._node = ""  # any of them
        self._last = ""  # the node whose slice was written last
        self._restarts: asyncio.Task[None] | None = None

    # Before anything is created.

    async def check(self) -> list[str]:
        """Return why the cluster cannot have such GPUs."""
        problems = []
        if self._wanted.dra:
            self._version = await self._bench.served.dra_version(self._wanted.version) or ""
            if not self._version:
                asked = f"resource.k8s.io/{self._wanted.version}" if self._wanted.version else "resource.k8s.io"
                problems.append(f"{self._name}: {asked} is not served by this cluster")
        if self._wanted.model and not await self._controller_runs():
            problems.append(
                f"{self._name}: params.model needs a running 'simgpu controller', and no lease {LEASE} is being "
                "renewed; start one, or leave out params.model"
            )
        return problems

    async def _controller_runs(self) -> bool:
        now = datetime.datetime.now(datetime.UTC)
        for lease in await self._bench.client.list(resources.LEASES):
            if (
                lease.metadata.name.startswith(LEASE)
                and lease.spec.holder_identity
                and heartbeat.liveness(lease, now) == heartbeat.Liveness.ALIVE
            ):
                return True
        return False

    # Setting up.

    async def setup(self) -> None:
        """Create KWOK where there is none, the stages, the class, nodes and slices, and wait until all are ready."""
        wanted, bench = self._wanted, self._bench
        deadline = asyncio.get_running_loop().time() + wanted.seconds
        try:
            async with asyncio.timeout_at(deadline):
                await self._kwok.setup(seconds=wanted.seconds)
                await self._create_stages()
                if wanted.dra:
                    await self._create_class()
                await self._create_nodes()
                if wanted.model:
                    await self._wait_for_controller()
                if self._last:
                    await self._wait_for_scheduler(deadline)
        except TimeoutError:
            raise DependencyError(f"{self._name}: not ready in {wanted.seconds:.0f} s (params.timeout)") from None
        self._restarts = asyncio.create_task(restarts.follow(bench, self._node))
        bench.progress.done("nodes", f"{wanted.nodes} with {wanted.gpus} GPUs each are ready")

    @property
    def _publishes(self) -> bool:
        """Whether the slices are ours; those of a model are the controller's."""
        return self._wanted.dra and not self._wanted.model

    async def _create_stages(self) -> None:
        run = self._bench.run
        times = stages.running_milliseconds(self._bench.variables, Problems(""))  # checked before
        prefix = f"{LOADTEST_PREFIX}{run.id}-"
        for stage in stages.of_run(prefix, times, self._bench.namespaces, run.labels):
            try:
                await self._bench.client.create(resources.STAGES, stage)
            except errors.AlreadyExists:
                return  # of another dependency of this run
            except errors.NotFound:
                self._bench.progress.note("KWOK here has no stages of its own: how long jobs run cannot be set")
                return

    async def _create_class(self) -> None:
        wanted = self._wanted
        devices_of = DRA_DRIVER if wanted.model else wanted.driver
        bodies = [slices.device_class(wanted.device_class, devices_of=devices_of)]
        if wanted.extended_resource:
            bodies.append(
                slices.device_class(
                    f"extended.{wanted.device_class}",
                    devices_of=devices_of,
                    extended_resource=wanted.extended_resource,
                )
            )
        resource = kinds.device_classes(self._version)
        for body in bodies:
            self._classes.append(body["metadata"]["name"])
            await ownership.acquire(self._bench.client, resource, body, self._bench.run)

    async def _create_nodes(self) -> None:
        wanted, bench = self._wanted, self._bench
        numbers = await nodes.free_numbers(bench.client)
        own, everything = self._nodes, asyncio.Event()

        def show() -> None:
            bench.progress.update("nodes", f"created {len(own.names)} of {wanted.nodes}, {own.ready} ready")
            if own.ready >= wanted.nodes:
                everything.set()

        def look(change: Change[Node]) -> None:
            if own.look(change):
                show()

        store: Store[Node] = Store()
        store.listen(look)
        reflector = Reflector(bench.client, resources.NODES, store, labels=bench.run.selector)
        watching = asyncio.create_task(reflector.run())

        async def create(_number: int) -> None:
            own.add(await self._create_node(numbers))
            show()

        try:
            await parallel.each(range(wanted.nodes), create)
            await everything.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _create_node(self, numbers: nodes.Numbers) -> str:
        """Create a node with its slices. Return its name."""
        wanted, bench = self._wanted, self._bench
        number, node = await nodes.create(bench.client, numbers, self._node_body)
        name = self._node = node.metadata.name
        if not self._publishes or not wanted.gpus:
            return name
        devices = (
            slices.kwok_devices(wanted.gpus)
            if wanted.driver == LOADTEST_DRIVER
            else slices.example_devices(name, wanted.gpus)
        )
        for body in slices.bodies(
            devices,
            number=number,
            node=name,
            node_uid=node.metadata.uid,
            version=self._version,
            labels=bench.run.labels,
            driver=wanted.driver,
        ):
            await bench.client.create(kinds.slices(self._version), body)
        self._last = name
        return name

    def _node_body(self, name: str) -> dict[str, Any]:
        wanted = self._wanted
        annotations: dict[str, str] = {}
        amounts: dict[str, str] = {}
        if wanted.model:
            annotations = {GPUS_ANNOTATION: _annotation(wanted)}
            if wanted.dra:
                annotations[ALLOCATION_ANNOTATION] = DRA
        elif not wanted.dra:
            amounts = {GPU_RESOURCE: str(wanted.gpus)}
        return nodes.body(name, labels=self._bench.run.labels, annotations=annotations, amounts=amounts)

    async def _wait_for_controller(self) -> None:
        """Wait until the controller has given GPUs to all nodes: slices, or the extended resource."""
        wanted, client, names = self._wanted, self._bench.client, self._nodes.names
        while True:
            if wanted.dra:
                slices_seen = await client.list(kinds.published(self._version), fields=f"spec.driver={DRA_DRIVER}")
                own = [item for item in slices_seen if item.spec.node_name in names]
                equipped = len({item.spec.node_name for item in own})
                newest = max(own, key=_written, default=None)
                last = newest.spec.node_name if newest is not None else ""
            else:
                listed = await client.list(resources.NODES, labels=self._bench.run.selector)
                amounts = [node.status.allocatable.get(GPU_RESOURCE) for node in listed if node.metadata.name in names]
                equipped = amounts.count(str(wanted.gpus))
                last = ""
            self._bench.progress.update("nodes", f"the controller has published GPUs of {equipped} of {wanted.nodes}")
            if equipped >= wanted.nodes:
                self._last = last
                return
            await asyncio.sleep(0.2)

    async def _wait_for_scheduler(self, deadline: float) -> None:
        self._bench.progress.update("nodes", "waiting until the scheduler knows their GPUs")
        left = deadline - asyncio.get_running_loop().time()
        seen = await visibility.seen_by_scheduler(
            self._bench.client,
            namespace=self._bench.namespaces[0],
            node=self._last,
            device_class=self._wanted.device_class,
            version=self._version,
            seconds=max(1.0, left - 1.0),
        )
        if not seen:
            raise DependencyError(f"{self._name}: the scheduler does not see the slice of node {self._last}")

    # Taking down.

    async def teardown(self) -> None:
        """Remove nodes, slices, stages and class."""
        client, run = self._bench.client, self._bench.run
        if self._restarts is not None:
            self._restarts.cancel()
        await client.delete_all(resources.NODES, labels=run.selector)
        if self._publishes and self._version:
            await client.delete_all(kinds.slices(self._version), labels=run.selector)
        with contextlib.suppress(errors.NotFound, errors.MethodNotAllowed):  # stages are not served
            await client.delete_all(resources.STAGES, labels=run.selector)
        while self._classes:
            resource = kinds.device_classes(self._version)
            await ownership.release(client, resource, self._classes[-1], run)
            self._classes.pop()
        await self._kwok.teardown()
