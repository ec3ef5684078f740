"""`up`, `down` and `status` of a local cluster.

All three look at what is there and go on from that, so each can be repeated, and each can follow one that
was killed. Whoever changes a cluster holds its lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from simgpu import errors, units, vocabulary
from simgpu.cluster import (
    binaries,
    build,
    components,
    control_plane,
    durations,
    fleet,
    locate,
    locks,
    paths,
    pki,
    processes,
    record,
    releases,
)
from simgpu.kube import client as kube_client
from simgpu.kube import errors as kube_errors
from simgpu.kube import kubeconfig, resources, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from simgpu.cluster.components import Component, Role
    from simgpu.cluster.progress import Progress
    from simgpu.cluster.record import Folder, Record
    from simgpu.kube.client import Client
    from simgpu.kube.views import Node

DEFAULT_GPUS = fleet.Gpus(vocabulary.DEFAULT_MODEL, vocabulary.DEFAULT_COUNT)

_PORT_ATTEMPTS = 3
_DISK_GIB = 0.5
_ROLE_GRACE_SECONDS = 10.0
_MANY_NODES = 500  # so many keep the API server from its own start, and others do not wait for it long
_NODES_READY_SECONDS = 300.0
_GPUS_SEEN_SECONDS = 30.0
_STALLED_SECONDS = 10.0
_CLUSTER = "cluster"
_POOL_LABELS = f"{vocabulary.POOL_LABEL}={vocabulary.DEFAULT_POOL}"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` was asked for; None leaves an existing cluster as it is and means the default for a new one."""

    name: str = record.DEFAULT_NAME
    nodes: int | None = None
    gpus: fleet.Gpus | None = None
    port: int | None = None
    address: str = "127.0.0.1"
    bin_dir: Path | None = None
    source: releases.Source | None = None  # of release files; as the environment says if None
    wait: bool = True
    sample: bool = False


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A cluster as it is now."""

    name: str
    ready: bool
    nodes: int
    nodes_ready: int
    gpus: int
    gpus_wanted: str  # on each node, as MODEL:COUNT
    pods: int
    kubeconfig: str
    endpoints: dict[str, str]
    components: dict[str, str]


class Outcome(msgspec.Struct, frozen=True):
    """What `up` did."""

    status: Status
    changes: list[str]
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Launch:
    """What all steps of `up` share."""

    wish: Wish
    folder: Folder
    found: dict[str, locate.Found]
    progress: Progress
    roles: Sequence[Role]


def check(wish: Wish) -> None:
    """Refuse what can never work, before anything is touched."""
    folder = record.Folder(wish.name)
    if wish.nodes is not None and not 1 <= wish.nodes <= vocabulary.MAX_NODES:
        raise errors.InputError("--nodes", f"{wish.nodes}: must be from 1 to {vocabulary.MAX_NODES}")
    if wish.port is None:
        return
    known = folder.load()
    if known is None:
        record.check_port(wish.address, wish.port)
    elif wish.port != known.ports.get("apiserver"):
        now = known.ports.get("apiserver")
        raise errors.InputError("--port", f"cluster {wish.name} is on port {now}; 'simgpu down' it first to move it")


async def up(wish: Wish, progress: Progress, roles: Sequence[Role] = ()) -> Outcome:
    """Bring the cluster to what was wished for: from nothing, from half, or from all of it."""
    check(wish)
    folder = record.Folder(wish.name)
    known = folder.load()
    found = await locate.ensure(binaries.LOCAL_CLUSTER, progress, _bin_dir(wish, known), wish.source)
    started = time.monotonic()
    build.check_disk(paths.clusters(), _DISK_GIB, "a cluster")
    if known is None:
        _announce(wish, progress)
    async with _locked(folder, progress):
        changes = await _bring_up(_Launch(wish, folder, found, progress, roles))
        status = await _status(folder, roles)
    spent = time.monotonic() - started
    if known is None:
        durations.remember(_kind(wish), spent)
        progress.done(_CLUSTER, f"{wish.name} is up")
    return Outcome(status, changes, spent)


def _announce(wish: Wish, progress: Progress) -> None:
    before = durations.recall(_kind(wish))
    expected = f"took {units.format_seconds(before)} last time" if before else "takes seconds, and more with many nodes"
    progress.update(_CLUSTER, f"starting {wish.name} with {wish.nodes or vocabulary.DEFAULT_NODES} nodes: {expected}")


def _kind(wish: Wish) -> str:
    return f"up {wish.nodes or vocabulary.DEFAULT_NODES}"


def _bin_dir(wish: Wish, known: Record | None) -> Path | None:
    """The folder given now, or with an earlier `up` if it is still there."""
    if wish.bin_dir is not None:
        return wish.bin_dir.absolute()
    before = Path(known.bin_dir) if known is not None and known.bin_dir is not None else None
    return before if before is not None and before.is_dir() else None


@contextlib.asynccontextmanager
async def _locked(folder: Folder, progress: Progress) -> AsyncIterator[None]:
    async with locks.exclusive(folder.lock, waiting=lambda: progress.update(folder.name, "waiting for another simgpu")):
        yield


async def _bring_up(launch: _Launch) -> list[str]:
    known = launch.folder.load()
    try:
        return await _bring_up_somewhere(launch, known)
    except BaseException:
        if known is None or not known.complete:  # a cluster that never was: leave nothing of it
            await _uninterrupted(_end(launch.folder))
        raise


async def _uninterrupted(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work, however often we are told to stop meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


async def _bring_up_somewhere(launch: _Launch, known: Record | None) -> list[str]:
    """A port that was free can be taken a moment later: then try others."""
    wanted = _wanted(launch.wish, known)
    for attempt in range(_PORT_ATTEMPTS):
        wanted = _prepare(launch, wanted)
        try:
            return await _run(launch, wanted, known)
        except control_plane.ComponentError as error:
            if not error.port_taken or attempt + 1 == _PORT_ATTEMPTS:
                raise
            wanted = control_plane.without_ports(wanted, launch.folder)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _wanted(wish: Wish, known: Record | None) -> Record:
    bin_dir = _bin_dir(wish, known)
    if known is None:
        known = record.Record(
            name=wish.name, address=wish.address, port=wish.port, nodes=vocabulary.DEFAULT_NODES, gpus=str(DEFAULT_GPUS)
        )
    return msgspec.structs.replace(
        known,
        nodes=wish.nodes or known.nodes,
        gpus=str(wish.gpus or known.gpus),
        published="" if wish.gpus is not None else known.published,
        bin_dir=str(bin_dir) if bin_dir is not None else None,
    )


def _prepare(launch: _Launch, wanted: Record) -> Record:
    """Everything on disk that the processes read."""
    folder = launch.folder
    placed = control_plane.with_ports(wanted, folder, launch.roles, random.SystemRandom())
    addresses = ("127.0.0.1", placed.address, components.SERVICE_ADDRESS)
    pki.create(folder.pki, addresses=sorted(set(addresses)), now=datetime.datetime.now(datetime.UTC))
    control_plane.write_kubeconfig(folder, placed)
    record.write_private(folder.path / "kwok.yaml", fleet.manifest_text("kwok.yaml"))
    folder.save(placed)
    return placed


async def _run(launch: _Launch, wanted: Record, known: Record | None) -> list[str]:
    """Start what does not run, make what is not there. What had to be done."""
    folder = launch.folder
    plane = control_plane.ControlPlane(folder, _parts(launch, wanted), launch.progress)
    await _start_server(plane, wanted)
    async with plane.blamed(), client_of(folder) as client:
        async with _first_failure(), asyncio.TaskGroup() as group:
            # An administrator is served before the API server calls itself ready, and so are the others.
            group.create_task(plane.ready("kube-apiserver"))
            group.create_task(plane.start_ready("kube-controller-manager"))
            group.create_task(plane.start_ready("kube-scheduler"))
            group.create_task(_start_kwok(client, plane))
            filling = group.create_task(_fill(client, plane, wanted, launch))
        if launch.wish.wait:
            await _wait_for_nodes(client, plane, wanted.nodes, launch.progress)
        await _wait_for_default_account(client, plane)
        for role in launch.roles:
            await plane.start_ready(role.name)
        if launch.roles and launch.wish.wait:
            await _wait_for_gpus(client, launch.progress)
        sampled = launch.wish.sample and await _make_sample(client, plane, launch)
    folder.save(msgspec.structs.replace(wanted, complete=True, published=wanted.gpus))
    if known is None:
        return [f"created cluster {wanted.name}"]
    changes = [f"started {name}" for name in plane.started] + _fleet_changes(known, wanted, *filling.result())
    return [*changes, "made the sample workload"] if sampled else changes


def _parts(launch: _Launch, wanted: Record) -> dict[str, Component]:
    programs = {name: place.path for name, place in launch.found.items()}
    version = launch.found["kube-apiserver"].version
    parts = components.control_plane(wanted, launch.folder, programs, version)
    return parts | {role.name: role.component(wanted, launch.folder) for role in launch.roles}


async def _start_server(plane: control_plane.ControlPlane, wanted: Record) -> None:
    await plane.start("etcd")
    # An API server that lost its database takes long to believe in a new one, so it is started afresh too.
    await plane.listening("etcd", "127.0.0.1", wanted.ports["etcd"])
    await plane.ready("etcd")
    await plane.start("kube-apiserver", afresh="etcd" in plane.started)
    await plane.listening("kube-apiserver", wanted.address, wanted.ports["apiserver"])


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
    await fleet.apply_manifest(client, fleet.manifest("stage-crd.yaml"))
    await plane.until("kube-apiserver", lambda: fleet.stages_served(client), seconds=control_plane.READY_SECONDS)
    await fleet.apply_manifest(client, fleet.manifest("stages.yaml"))
    await plane.start_ready("kwok")  # it ends if the type is not there when it starts


async def _fill(client: Client, plane: control_plane.ControlPlane, wanted: Record, launch: _Launch) -> tuple[int, int]:
    def made(finished: int, total: int) -> None:
        launch.progress.update("nodes", f"created {finished} of {total}")

    gpus = fleet.parse_gpus(wanted.gpus)
    # Also where an `up --gpus` was killed before it came to this.
    await fleet.publish_topology(client, gpus, overwrite=wanted.gpus != wanted.published)
    if wanted.nodes > _MANY_NODES:
        await plane.ready("kube-apiserver")
    return await fleet.scale_nodes(client, wanted.nodes, made=made)


async def _wait_for_nodes(client: Client, plane: control_plane.ControlPlane, count: int, progress: Progress) -> None:
    ready = 0

    async def all_ready() -> bool:
        nonlocal ready
        nodes = await client.list(resources.NODES, labels=_POOL_LABELS)
        ready = sum(node.ready and fleet.schedulable(node) for node in nodes)
        progress.update("nodes", f"{ready} of {count} ready")
        return ready >= count

    await plane.until("kwok", all_ready, seconds=_NODES_READY_SECONDS, reached=lambda: ready)
    progress.done("nodes", f"{count} ready")


async def _wait_for_default_account(client: Client, plane: control_plane.ControlPlane) -> None:
    """Pods cannot be created before the controller manager has made this account."""

    async def there() -> bool:
        return await client.find(resources.SERVICE_ACCOUNTS, "default", namespace="default") is not None

    await plane.until("kube-controller-manager", there, seconds=control_plane.READY_SECONDS)


async def _wait_for_gpus(client: Client, progress: Progress) -> None:
    """Wait for all nodes' GPUs; a topology of the user's may give some of them none."""

    async def look() -> tuple[int, int, str]:
        nodes = await client.list(resources.NODES, labels=_POOL_LABELS)
        equipped = sum(fleet.gpu_count([node]) > 0 for node in nodes)
        return equipped, len(nodes), f"{fleet.gpu_count(nodes)} on {equipped} of {len(nodes)} nodes"

    await _wait_while_more_come(
        look, "GPUs", "the topology gives the others none, or see 'simgpu logs controller'", progress
    )


async def _wait_for_sample(client: Client, progress: Progress) -> None:
    """Wait for the sample's pods; a small fleet may not have room for all."""

    async def look() -> tuple[int, int, str]:
        pods = await client.list(resources.PODS, namespace=vocabulary.SAMPLE_NAMESPACE)
        started = sum(pod.status.phase in {"Running", "Succeeded"} for pod in pods)
        return started, max(len(pods), 1), f"{started} of {len(pods)} pods run"

    await _wait_while_more_come(look, "sample", "the others wait for room", progress)


async def _wait_while_more_come(
    look: Callable[[], Awaitable[tuple[int, int, str]]], item: str, otherwise: str, progress: Progress
) -> None:
    """Wait until as many are there as should be, or until no more have come for a while."""
    clock = asyncio.get_running_loop().time
    most, deadline = 0, clock() + _STALLED_SECONDS
    while True:
        asked = clock()
        count, total, text = await look()
        if count >= total:
            progress.done(item, text)
            return
        if count > most:
            most, deadline = count, clock() + _STALLED_SECONDS
        elif clock() > deadline:
            progress.done(item, f"{text}; {otherwise}")
            return
        progress.update(item, text)
        # To look at thousands of objects takes time that others need.
        await asyncio.sleep(max(0.1, 4 * (clock() - asked)))


async def _make_sample(client: Client, plane: control_plane.ControlPlane, launch: _Launch) -> bool:
    """Where a role gives the nodes their GPUs, wait for those: the sample is to use them. Whether it was not there."""

    async def gpus_seen() -> bool:
        return fleet.gpu_count(await client.list(resources.NODES, labels=_POOL_LABELS)) > 0

    if launch.roles:
        await plane.until(launch.roles[0].name, gpus_seen, seconds=_GPUS_SEEN_SECONDS)
    made = await fleet.create_sample(client, gpus=await gpus_seen())
    if launch.wish.wait:
        await _wait_for_sample(client, launch.progress)
    return made


class _first_failure:  # noqa: N801 - reads as a statement
    """Raises the first error of a task group as itself: the user wants the cause, not the group."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
            if not isinstance(error, BaseExceptionGroup):
                raise error from None


def client_of(folder: Folder) -> Client:
    """A patient client for a cluster of ours."""
    return kube_client.Client(kubeconfig.load(folder.kubeconfig))


def _impatient_client_of(folder: Folder) -> Client:
    """A client that rather says that nobody answers."""
    return kube_client.Client(
        kubeconfig.load(folder.kubeconfig), retries=wire.Retries(attempts=1), timeout_seconds=10.0
    )


async def down(name: str, progress: Progress) -> bool:
    """End the cluster and remove every trace of it. False if there was none."""
    folder = record.Folder(name)
    if not folder.exists() and not processes.running(folder.path):
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
    await processes.stop(folder.path)  # its data goes with it: no need to ask politely
    folder.remove()


async def status(name: str, roles: Sequence[Role] = ()) -> Status:
    """The cluster as it is now."""
    folder = record.Folder(name)
    if folder.load() is None:
        raise record.absent(name)
    return await _status(folder, roles)


class _Seen(msgspec.Struct):
    """What the API shows."""

    answers: bool = False
    nodes: list[Node] = []
    pods: int = 0


async def _status(folder: Folder, roles: Sequence[Role]) -> Status:
    known = folder.load()
    if known is None:
        raise errors.SimgpuError(f"cluster {folder.name} went away")
    alive = control_plane.alive(folder)
    expected = [*binaries.CONTROL_PLANE, *(role.name for role in roles)]
    seen = await _look(folder) if "kube-apiserver" in alive else _Seen()
    ours = [node for node in seen.nodes if node.metadata.labels.get(vocabulary.POOL_LABEL) == vocabulary.DEFAULT_POOL]
    endpoints = {"apiserver": f"https://{known.address}:{known.ports['apiserver']}"}
    for role in roles:
        endpoints |= {name: components.fill(url, known, folder) for name, url in role.endpoints.items()}
    return Status(
        name=known.name,
        ready=seen.answers and alive.issuperset(expected) and bool(ours) and all(node.ready for node in ours),
        nodes=len(seen.nodes),
        nodes_ready=sum(node.ready for node in seen.nodes),
        gpus=fleet.gpu_count(seen.nodes),
        gpus_wanted=known.gpus,
        pods=seen.pods,
        kubeconfig=str(folder.kubeconfig),
        endpoints=endpoints,
        components={name: "running" if name in alive else "stopped" for name in expected},
    )


async def _look(folder: Folder) -> _Seen:
    try:
        async with _impatient_client_of(folder) as client:
            await client.raw("/readyz")
            nodes = await client.list(resources.NODES)
            return _Seen(answers=True, nodes=nodes, pods=len(await client.list(resources.PODS)))
    except kube_errors.KubeError:
        return _Seen()
