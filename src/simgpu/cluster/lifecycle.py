"""`up`, `down` and `status` of a local cluster.

All three start from the observed state, so each is idempotent and can follow one that was killed. A cluster is changed
only while its lock is held.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import math
import random
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from simgpu import errors, units, vocabulary
from simgpu.cluster import (
    binaries,
    build,
    components,
    control_plane,
    durations,
    locate,
    locks,
    paths,
    pki,
    populate,
    processes,
    record,
    releases,
    waiting,
)
from simgpu.cluster.components import Component, Role
from simgpu.cluster.progress import Progress
from simgpu.cluster.record import Folder, Record
from simgpu.kube import errors as kube_errors
from simgpu.kube import kubeconfig, nudging, parallel, resources, wire
from simgpu.kube.client import Client
from simgpu.kube.views import Node

_DEFAULT_GPUS = f"{vocabulary.DEFAULT_MODEL}:{vocabulary.DEFAULT_COUNT}"

_PORT_ATTEMPTS = 3
_DISK_GIB = 0.5
_ROLE_GRACE_SECONDS = 10.0
_GPUS_SEEN_SECONDS = 30.0
_TAKE_OVER_SECONDS = 60.0  # of nodes, by a KWOK that was restarted
_CLUSTER = "cluster"
_AT_ONCE = wire.Retries(attempts=1)


class UpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `up`; None keeps the value of an existing cluster and is the default for a new one."""

    name: str = record.DEFAULT_NAME
    nodes: int | None = None  # simulated nodes
    gpus: str | None = None  # of each node, as MODEL:COUNT
    port: int | None = None  # of the API server; a free one if None
    address: str = "127.0.0.1"  # that the API server and KWOK listen on
    bin_dir: Path | None = None  # folder to take programs from first
    source: releases.ReleaseSource | None = None  # of release files; from the environment if None
    wait: bool = True  # until nodes are Ready and have GPUs
    sample: bool = False  # create the sample workload
    flags: dict[str, tuple[str, ...]] = {}  # further ones of components by name; the last of a flag counts


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The observed state of a cluster."""

    name: str
    ready: bool  # all components run and all simulated nodes are Ready
    nodes: int
    nodes_ready: int
    gpus: int  # total capacity
    gpus_wanted: str  # on each node, as MODEL:COUNT
    pods: int
    kubeconfig: str  # path
    endpoints: dict[str, str]  # URLs by name
    components: dict[str, str]  # running or stopped, by name


class UpResult(msgspec.Struct, frozen=True):
    """What `up` changed, and the seconds that it took."""

    status: ClusterStatus
    changes: list[str]
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Launch:
    """What all steps of `up` share."""

    settings: UpSettings
    folder: Folder
    known: Record | None  # None for a new cluster
    bin_dir: Path | None
    found: dict[str, locate.Found]
    progress: Progress
    roles: Sequence[Role]

    def command(self, rest: str) -> str:
        """Return a `simgpu` command for this cluster."""
        verb, _, arguments = rest.partition(" ")
        which = "" if self.folder.name == record.DEFAULT_NAME else f" --name {self.folder.name}"
        return f"simgpu {verb}{which} {arguments}"


def _check(settings: UpSettings, known: Record | None) -> None:
    """Raise InputError for invalid options, before anything is changed."""
    if settings.nodes is not None and not 1 <= settings.nodes <= vocabulary.MAX_NODES:
        raise errors.InputError("--nodes", f"{settings.nodes}: must be from 1 to {vocabulary.MAX_NODES}")
    if settings.port is None:
        return
    if known is None:
        record.check_port(settings.address, settings.port)
    elif settings.port != known.ports.get("apiserver"):
        now = known.ports.get("apiserver")
        raise errors.InputError(
            "--port", f"cluster {settings.name} is on port {now}; 'simgpu down' it first to move it"
        )


async def up(settings: UpSettings, progress: Progress, roles: Sequence[Role] = ()) -> UpResult:
    """Create the cluster, or repair and change an existing one."""
    folder = record.Folder(settings.name)
    known = folder.load()
    _check(settings, known)
    bin_dir = _bin_dir(settings, known)
    found = await locate.ensure(binaries.LOCAL_CLUSTER, progress, bin_dir, settings.source)
    started = time.monotonic()
    build.check_disk(paths.clusters(), _DISK_GIB, "a cluster")
    if known is None:
        _announce(settings, progress)
    async with _locked(folder, progress):
        present = folder.load()  # another `up` may have held the lock
        changes = await _bring_up(_Launch(settings, folder, present, bin_dir, found, progress, roles))
        state = await status(settings.name, roles, retries=wire.Retries())
    spent = time.monotonic() - started
    if known is None:
        durations.remember(_kind(settings), spent)
        progress.done(_CLUSTER, f"{settings.name} is up")
    return UpResult(state, changes, spent)


def _announce(settings: UpSettings, progress: Progress) -> None:
    before = durations.recall(_kind(settings))
    expected = f"took {units.format_seconds(before)} last time" if before else "takes seconds, and more with many nodes"
    progress.update(
        _CLUSTER, f"starting {settings.name} with {settings.nodes or vocabulary.DEFAULT_NODES} nodes: {expected}"
    )


def _kind(settings: UpSettings) -> str:
    return f"up {settings.nodes or vocabulary.DEFAULT_NODES}"


def _bin_dir(settings: UpSettings, known: Record | None) -> Path | None:
    """Return the folder of the options, or of an earlier `up` if it still exists."""
    if settings.bin_dir is not None:
        return settings.bin_dir.absolute()
    return known.existing_bin_dir() if known is not None else None


def _locked(folder: Folder, progress: Progress) -> contextlib.AbstractAsyncContextManager[None]:
    return locks.exclusive(folder.lock, waiting=lambda: progress.update(folder.name, "waiting for another simgpu"))


async def _bring_up(launch: _Launch) -> list[str]:
    try:
        return await _bring_up_on_free_ports(launch)
    except BaseException:
        if launch.known is None or not launch.known.complete:  # never completed: remove all of it
            await _uninterrupted(_end(launch.folder))
        raise


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work, ignoring cancellation meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


async def _bring_up_on_free_ports(launch: _Launch) -> list[str]:
    """Bring the cluster up; if a port was taken after it was chosen, retry with other ports."""
    wanted = _wanted(launch)
    for attempt in range(_PORT_ATTEMPTS):
        wanted = _prepare(launch, wanted)
        try:
            return await _run(launch, wanted)
        except control_plane.ComponentError as error:
            if not error.port_taken or attempt + 1 == _PORT_ATTEMPTS:
                raise
            wanted = control_plane.without_ports(wanted, launch.folder)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _wanted(launch: _Launch) -> Record:
    settings = launch.settings
    known = launch.known or record.Record(
        name=settings.name,
        address=settings.address,
        port=settings.port,
        nodes=vocabulary.DEFAULT_NODES,
        gpus=_DEFAULT_GPUS,
    )
    return msgspec.structs.replace(
        known,
        nodes=settings.nodes or known.nodes,
        gpus=settings.gpus or known.gpus,
        published="" if settings.gpus is not None else known.published,
        bin_dir=str(launch.bin_dir) if launch.bin_dir is not None else None,
    )


def _prepare(launch: _Launch, wanted: Record) -> Record:
    """Choose ports and write all files that the processes read. Return the record with the ports."""
    folder = launch.folder
    placed = control_plane.with_ports(wanted, folder, launch.roles, random.SystemRandom())
    addresses = ("127.0.0.1", placed.address, components.SERVICE_ADDRESS)
    pki.create(folder.pki, addresses=sorted(set(addresses)), now=datetime.datetime.now(datetime.UTC))
    control_plane.write_kubeconfig(folder, placed)
    record.write_private(folder.path / "kwok.yaml", (populate.MANIFESTS / "kwok.yaml").read_bytes())
    folder.save(placed)
    return placed


async def _run(launch: _Launch, wanted: Record) -> list[str]:
    """Start stopped processes and create missing objects. Return the changes."""
    folder, known = launch.folder, launch.known
    plane = control_plane.ControlPlane(folder, _parts(launch, wanted), launch.progress)
    # Clients of a server that is not ready end after a while, and take CPU time from it until then.
    await plane.start_ready("etcd")
    # An API server takes long to reconnect to a new etcd, so it is restarted with it.
    await plane.start("kube-apiserver", restart="etcd" in plane.started)
    await plane.ready("kube-apiserver")
    # What fails for a moment is repeated by the plane, which looks at the processes in between.
    direct = Client(kubeconfig.load(folder.kubeconfig), retries=_AT_ONCE)
    async with plane.explaining_failures(), direct as client:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(plane.start_ready("kube-controller-manager"))
                group.create_task(plane.start_ready("kube-scheduler"))
                group.create_task(_start_kwok(client, plane))
                populated = group.create_task(_populate(client, plane, wanted, launch))
        except BaseExceptionGroup as failures:
            raise parallel.first(failures) from None
        if launch.settings.wait:
            await waiting.nodes_ready(client, plane, wanted.nodes, launch.progress)
        await waiting.default_account(client, plane)
        for role in launch.roles:
            await plane.start_ready(role.name)
        if launch.roles and launch.settings.wait:
            await waiting.gpus(client, plane, launch.progress, hint=launch.command(f"logs {launch.roles[0].name}"))
        sampled = launch.settings.sample and await _make_sample(client, plane, launch)
        plane.check()
    folder.save(msgspec.structs.replace(wanted, complete=True, published=wanted.gpus))
    if known is None:
        return [f"created cluster {wanted.name}"]
    changes = [f"started {name}" for name in plane.started] + _fleet_changes(known, wanted, *populated.result())
    return [*changes, "created the sample workload"] if sampled else changes


def _parts(launch: _Launch, wanted: Record) -> dict[str, Component]:
    programs = {name: place.path for name, place in launch.found.items()}
    version = launch.found["kube-apiserver"].version
    parts = components.control_plane(wanted, launch.folder, programs, version)
    for name, more in launch.settings.flags.items():
        parts[name] = msgspec.structs.replace(parts[name], command=[*parts[name].command, *more])
    return parts | {role.name: role.component(wanted, launch.folder) for role in launch.roles}


def _fleet_changes(known: Record, wanted: Record, created: int, deleted: int) -> list[str]:
    changes = []
    if created:
        changes.append(f"created {created} nodes")
    if deleted:
        changes.append(f"deleted {deleted} nodes")
    if known.gpus != wanted.gpus:
        changes.append(f"GPUs per node: {known.gpus} -> {wanted.gpus}")
    return changes


async def _start_kwok(client: Client, plane: control_plane.ControlPlane) -> None:
    await plane.requests.until_served(lambda: populate.apply_manifest(client, "stage-crd.yaml"))
    await plane.until("kube-apiserver", lambda: populate.stages_served(client), seconds=control_plane.READY_SECONDS)
    await plane.requests.until_served(lambda: populate.apply_manifest(client, "stages.yaml"))
    released: list[str] = []

    async def release() -> None:
        """Delete the leases of the KWOK before, so that the next one simulates nodes and pods at once."""
        orphans = await plane.requests.until_served(lambda: populate.orphaned_leases(client))
        if orphans.alone and orphans.nodes:
            await plane.requests.until_served(lambda: populate.delete_all_leases(client))
        else:
            await plane.requests.each_served(orphans.nodes, functools.partial(populate.delete_lease, client))
        released.extend(orphans.nodes)

    # KWOK exits if Stage is not served when it starts, and waits for the leases of the KWOK before it to expire.
    await plane.start("kwok", stopped=release)
    await plane.ready("kwok")
    if released:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TAKE_OVER_SECONDS):
                await plane.until("kwok", lambda: populate.taken_over(client, released), seconds=math.inf)
        pods = await plane.requests.until_served(lambda: nudging.unfinished_pods(client))
        await plane.requests.each_served(pods, functools.partial(nudging.nudge, client), in_flight=nudging.IN_FLIGHT)


async def _populate(
    client: Client,
    plane: control_plane.ControlPlane,
    wanted: Record,
    launch: _Launch,
) -> tuple[int, int]:
    """Publish the GPUs, create and delete nodes. Return how many were created and deleted."""
    finished = 0

    async def create(number: int) -> None:
        nonlocal finished
        await populate.create_node(client, number)
        finished += 1
        launch.progress.update("nodes", f"created {finished} of {len(missing)}")

    # The GPUs were not published if an earlier `up --gpus` was killed.
    changed = wanted.gpus != wanted.published
    await plane.requests.until_served(lambda: populate.publish_topology(client, wanted.gpus, overwrite=changed))
    missing, surplus = await plane.requests.until_served(lambda: populate.node_changes(client, wanted.nodes))
    await plane.requests.each_served(missing, create)
    await plane.requests.each_served(surplus, functools.partial(populate.delete_node, client))
    return len(missing), len(surplus)


async def _make_sample(client: Client, plane: control_plane.ControlPlane, launch: _Launch) -> bool:
    """Create the sample workload, after the nodes have GPUs if a role provides them. Return whether it is new."""

    async def gpus_seen() -> bool:
        nodes = await client.list(resources.NODES, labels=populate.POOL_SELECTOR)
        return populate.gpu_count(nodes, divided=False) > 0

    if launch.roles:
        await plane.until(launch.roles[0].name, gpus_seen, seconds=_GPUS_SEEN_SECONDS)
    gpus = await plane.requests.until_served(gpus_seen)
    objects = populate.sample(gpus=gpus)
    created = [await plane.requests.until_served(functools.partial(populate.create, client, body)) for body in objects]
    if launch.settings.wait:
        hint = launch.command(f"kubectl get pods -n {vocabulary.SAMPLE_NAMESPACE}")
        await waiting.sample(client, plane, launch.progress, hint=hint)
    return any(created)


async def down(name: str, progress: Progress) -> bool:
    """Stop the cluster and delete all of it. False if it did not exist."""
    folder = record.Folder(name)
    if not folder.path.exists() and not processes.running(folder.path):
        return False
    async with _locked(folder, progress):
        progress.update(name, "stopping")
        await _uninterrupted(_end(folder))
    progress.done(name, "gone")
    return True


async def _end(folder: Folder) -> None:
    ours = control_plane.alive(folder) - set(binaries.CONTROL_PLANE)
    if ours:
        await processes.stop(folder.path, only=frozenset(ours), grace_seconds=_ROLE_GRACE_SECONDS)
    await processes.stop(folder.path)  # no grace period: its data is deleted too
    folder.remove()


async def status(name: str, roles: Sequence[Role] = (), *, retries: wire.Retries = _AT_ONCE) -> ClusterStatus:
    """Return the observed state of a cluster, by default of one look, to be quick."""
    folder = record.Folder(name)
    known = folder.load()
    if known is None:
        raise record.no_such_cluster(name)
    alive = control_plane.alive(folder)
    expected = [*binaries.CONTROL_PLANE, *(role.name for role in roles)]
    seen = await _look(folder, retries) if "kube-apiserver" in alive else None
    nodes, pods = seen or ([], 0)
    ours = [node for node in nodes if node.metadata.labels.get(vocabulary.POOL_LABEL) == vocabulary.DEFAULT_POOL]
    return ClusterStatus(
        name=known.name,
        ready=alive.issuperset(expected) and bool(ours) and all(node.ready for node in ours),
        nodes=len(nodes),
        nodes_ready=sum(node.ready for node in nodes),
        gpus=populate.gpu_count(nodes),
        gpus_wanted=known.gpus,
        pods=pods,
        kubeconfig=str(folder.kubeconfig),
        endpoints=endpoints(name, roles),
        components={name: "running" if name in alive else "stopped" for name in expected},
    )


def endpoints(name: str, roles: Sequence[Role] = ()) -> dict[str, str]:
    """Return the URLs of a cluster by name, whether or not it runs."""
    folder = record.Folder(name)
    known = folder.load()
    if known is None:
        raise record.no_such_cluster(name)
    found = {"apiserver": known.server}
    if "scheduler" in known.ports:
        found["scheduler"] = f"https://127.0.0.1:{known.ports['scheduler']}/metrics"
    for role in roles:
        found |= {name: components.fill(url, known, folder) for name, url in role.endpoints.items()}
    return found


async def _look(folder: Folder, retries: wire.Retries) -> tuple[list[Node], int] | None:
    """Return the nodes and the number of pods; None if the API server is not ready."""
    target = kubeconfig.load(folder.kubeconfig)
    try:
        async with Client(target, retries=retries, timeout_seconds=10.0) as client:
            await client.raw("/readyz")
            return await client.list(resources.NODES), len(await client.list(resources.PODS))
    except kube_errors.KubeError:
        return None
