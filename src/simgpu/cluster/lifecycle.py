"""`up`, `down` and `status` of a local cluster.

All three look at what is there and go on from that, so each can be repeated, and each can follow one that
was killed. Whoever changes a cluster holds its lock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from simgpu import errors, units
from simgpu.cluster import (
    binaries,
    build,
    components,
    control_plane,
    fleet,
    locate,
    locks,
    paths,
    pki,
    processes,
    record,
)
from simgpu.kube import client as kube_client
from simgpu.kube import errors as kube_errors
from simgpu.kube import kubeconfig, resources

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simgpu.cluster.components import Role
    from simgpu.cluster.progress import Progress
    from simgpu.cluster.record import Folder, Record
    from simgpu.kube.client import Client

DEFAULT_NAME = "simgpu"
DEFAULT_NODES = 3
DEFAULT_GPUS = fleet.Gpus("h200", 8)

_PORT_ATTEMPTS = 3
_DISK_GIB = 0.5
_ROLE_GRACE_SECONDS = 10.0
_NODES_READY_SECONDS = 300.0


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What `up` was asked for; None leaves an existing cluster as it is and means the default for a new one."""

    name: str = DEFAULT_NAME
    nodes: int | None = None
    gpus: fleet.Gpus | None = None
    port: int | None = None
    address: str = "127.0.0.1"
    bin_dir: Path | None = None
    wait: bool = True
    sample: bool = False


class Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A cluster as it is now."""

    name: str
    ready: bool
    nodes: int
    nodes_ready: int
    gpus: int
    pods: int
    kubeconfig: str
    endpoints: dict[str, str]
    components: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Launch:
    """What all steps of `up` share."""

    wish: Wish
    folder: Folder
    found: dict[str, locate.Found]
    progress: Progress
    roles: Sequence[Role]


class Outcome(msgspec.Struct, frozen=True):
    """What `up` did."""

    status: Status
    changes: list[str]
    seconds: float


def check(wish: Wish) -> None:
    """Refuse what can never work, before anything is touched."""
    record.check_name(wish.name)
    if wish.nodes is not None and not 1 <= wish.nodes <= fleet.MOST_NODES:
        raise errors.InputError("--nodes", f"{wish.nodes}: must be from 1 to {fleet.MOST_NODES}")
    if wish.port is not None and not 1 <= wish.port <= 65535:
        raise errors.InputError("--port", f"{wish.port}: must be from 1 to 65535")


async def up(wish: Wish, progress: Progress, roles: Sequence[Role] = ()) -> Outcome:
    """Bring the cluster to what was wished for: from nothing, from half, or from all of it."""
    check(wish)
    found = await locate.ensure(binaries.LOCAL_CLUSTER, progress, wish.bin_dir)
    started = time.monotonic()
    folder = record.Folder(wish.name)
    try:
        build.check_disk(paths.clusters(), _DISK_GIB, "a cluster")
        async with locks.exclusive(
            folder.lock, waiting=lambda: progress.update(wish.name, "waiting for another simgpu")
        ):
            changes = await _bring_up(_Launch(wish, folder, found, progress, roles))
            status = await _status(folder, roles)
    except OSError as error:
        raise build.disk_error(error, paths.clusters()) from error
    return Outcome(status, changes, time.monotonic() - started)


async def _bring_up(launch: _Launch) -> list[str]:
    known = launch.folder.load()
    try:
        return await _bring_up_somewhere(launch, known)
    except BaseException:
        if known is None:  # a cluster that never was: leave nothing of it
            await _end(launch.folder)
        raise


async def _bring_up_somewhere(launch: _Launch, known: Record | None) -> list[str]:
    """A port that was free can be taken a moment later: then try others."""
    for attempt in range(_PORT_ATTEMPTS):
        wanted = await _prepare(launch.wish, known, launch.folder)
        try:
            return await _run(launch, wanted, known)
        except control_plane.ComponentError as error:
            if not error.port_taken or attempt + 1 == _PORT_ATTEMPTS:
                raise
            await processes.stop(launch.folder.path)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _prepare(wish: Wish, known: Record | None, folder: Folder) -> Record:
    """Everything on disk that the processes read."""
    wanted = _wanted(wish, known)
    placed = control_plane.with_ports(wanted, folder, random.SystemRandom())
    if known is not None and placed.ports != known.ports:
        await processes.stop(folder.path)
    addresses = ("127.0.0.1", placed.address, components.SERVICE_ADDRESS)
    pki.create(folder.pki, addresses=sorted(set(addresses)), now=datetime.datetime.now(datetime.UTC))
    control_plane.write_kubeconfig(folder, placed)
    record.write_private(folder.path / "kwok.yaml", fleet.manifest_text("kwok.yaml"))
    folder.save(placed)
    return placed


def _wanted(wish: Wish, known: Record | None) -> Record:
    if known is None:
        return record.Record(
            name=wish.name,
            address=wish.address,
            port=wish.port,
            nodes=wish.nodes or DEFAULT_NODES,
            gpus=str(wish.gpus or DEFAULT_GPUS),
        )
    if wish.port is not None and wish.port != known.ports.get("apiserver"):
        raise errors.InputError(
            "--port",
            f"cluster {wish.name} is on port {known.ports.get('apiserver')}; 'simgpu down' it first to move it",
        )
    return msgspec.structs.replace(known, nodes=wish.nodes or known.nodes, gpus=str(wish.gpus or known.gpus))


async def _run(launch: _Launch, wanted: Record, known: Record | None) -> list[str]:
    """Start what does not run, make what is not there. What had to be done."""
    folder = launch.folder
    alive = control_plane.alive(folder)
    programs = {name: place.path for name, place in launch.found.items()}
    parts = components.control_plane(wanted, folder, programs, launch.found["kube-apiserver"].version)
    plane = control_plane.ControlPlane(folder, parts, launch.progress)
    if "etcd" not in alive:  # an API server that lost its database takes long to believe in a new one
        await processes.stop(folder.path, only=frozenset({"kube-apiserver"}))
        alive.discard("kube-apiserver")
    await plane.start_listening("etcd", "127.0.0.1", wanted.ports["etcd"])
    await plane.start_listening("kube-apiserver", wanted.address, wanted.ports["apiserver"])
    async with client_of(folder) as client:
        async with _first_failure(), asyncio.TaskGroup() as group:
            # An administrator is served before the API server calls itself ready, and so are the others.
            group.create_task(plane.ready("kube-apiserver"))
            group.create_task(plane.start_ready("kube-controller-manager"))
            group.create_task(plane.start_ready("kube-scheduler"))
            group.create_task(_start_kwok(client, plane))
            filling = group.create_task(_fill(client, wanted, launch.progress))
        if launch.wish.wait:
            await _wait_for_nodes(client, wanted.nodes, launch.progress)
        await _wait_for_default_account(client)
        for role in launch.roles:
            control_plane.start_role(folder, role)
        if launch.wish.sample:
            gpus = fleet.gpu_count(await client.list(resources.NODES))
            await fleet.apply_sample(client, gpus=gpus > 0)
    if known is None:
        return [f"created cluster {wanted.name}"]
    expected = [*parts, *(role.name for role in launch.roles)]
    started = [f"started {name}" for name in expected if name not in alive]
    return started + _fleet_changes(known, wanted, *filling.result())


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
    await fleet.apply_stages(client)  # KWOK ends if the type is not there when it starts
    await plane.start_ready("kwok")


async def _fill(client: Client, wanted: Record, progress: Progress) -> tuple[int, int]:
    def made(finished: int, total: int) -> None:
        progress.update("nodes", f"created {finished} of {total}")

    await fleet.publish_topology(client, fleet.parse_gpus(wanted.gpus))
    return await fleet.scale_nodes(client, wanted.nodes, made=made)


async def _wait_for_nodes(client: Client, count: int, progress: Progress) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _NODES_READY_SECONDS
    while True:
        asked = loop.time()
        nodes = await client.list(resources.NODES, labels=f"{fleet.POOL_LABEL}={fleet.POOL}")
        ready = sum(node.ready and fleet.schedulable(node) for node in nodes)
        if ready >= count:
            progress.done("nodes", f"{ready} ready")
            return
        progress.update("nodes", f"{ready} of {count} ready")
        if loop.time() > deadline:
            raise errors.SimgpuError(
                f"{ready} of {count} nodes were ready after {units.format_seconds(_NODES_READY_SECONDS)}; "
                "'simgpu logs kwok' may say why"
            )
        await asyncio.sleep(max(0.1, loop.time() - asked))


async def _wait_for_default_account(client: Client) -> None:
    """Pods cannot be created before the controller manager has made this account."""
    while await client.find(resources.SERVICE_ACCOUNTS, "default", namespace="default") is None:
        await asyncio.sleep(0.05)


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
        kubeconfig.load(folder.kubeconfig), retries=kube_client.Retries(attempts=1), timeout_seconds=10.0
    )


async def down(name: str, progress: Progress) -> bool:
    """End the cluster and remove every trace of it. False if there was none."""
    folder = record.Folder(name)
    if not folder.exists() and not processes.running(folder.path):
        return False
    async with locks.exclusive(folder.lock, waiting=lambda: progress.update(name, "waiting for another simgpu")):
        progress.update(name, "stopping")
        await _end(folder)
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
        others = ", ".join(record.known_names())
        hint = f"; there is: {others}" if others else ""
        raise errors.SimgpuError(f"no cluster named {name}{hint}; 'simgpu up --name {name}' makes one")
    return await _status(folder, roles)


async def _status(folder: Folder, roles: Sequence[Role]) -> Status:
    known = folder.load()
    if known is None:
        raise errors.SimgpuError(f"cluster {folder.name} went away")
    alive = control_plane.alive(folder)
    expected = [*binaries.CONTROL_PLANE, *(role.name for role in roles)]
    parts = {name: "running" if name in alive else "stopped" for name in expected}
    endpoints = {"apiserver": f"https://{known.address}:{known.ports['apiserver']}"}
    for role in roles:
        endpoints |= role.endpoints
    nodes, ready, gpus, pods, answers = 0, 0, 0, 0, False
    try:
        async with _impatient_client_of(folder) as client:
            if "kube-apiserver" in alive:
                await client.raw("/readyz")
                seen = await client.list(resources.NODES)
                nodes, ready, gpus = len(seen), sum(node.ready for node in seen), fleet.gpu_count(seen)
                pods = len(await client.list(resources.PODS))
                answers = True
    except kube_errors.KubeError:
        pass
    return Status(
        name=known.name,
        ready=answers and alive.issuperset(expected) and nodes > 0 and ready == nodes,
        nodes=nodes,
        nodes_ready=ready,
        gpus=gpus,
        pods=pods,
        kubeconfig=str(folder.kubeconfig),
        endpoints=endpoints,
        components=parts,
    )
