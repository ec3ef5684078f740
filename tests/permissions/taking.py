"""Takes permissions away from accounts, and finds out whether that is noticed.

Each case has namespaces, nodes and roles of its own. A case is decided as soon as the API server's log has a request of
its account that was rejected. Where a program asks first what it may do, and does without, it is decided by what is not
done. Agents keep to their nodes and run side by side; of controllers one runs at a time, as in any cluster.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from simgpu import vocabulary
from simgpu.controllers import dra_fleet
from simgpu.dra import classes
from simgpu.dra.versions import ServedApi
from simgpu.kube import resources
from simgpu.kube.client import Client
from tests.fixtures import accounts, audit, pod_groups, served_types, zones
from tests.fixtures.audit import Permission
from tests.fixtures.cluster import Cluster, new_namespace
from tests.fixtures.controller import Fleet, fleet_in
from tests.fixtures.dra import Registry
from tests.fixtures.kubelet import Kubelet
from tests.permissions import acting, roles, serving

AGENTS = 2  # at a time
_LOOK_SECONDS = 0.05
_DEVICE_CLASSES = "resource.k8s.io/deviceclasses"


Split = Callable[[Iterable[roles.Body]], list[frozenset[Permission]]]  # `roles.rules` or `roles.permissions`


class Case(NamedTuple):
    """An account, and the permissions that it does not have; none are missing if that is empty."""

    account: str
    taken: frozenset[Permission] = frozenset()

    def __str__(self) -> str:
        verbs = ", ".join(sorted(item.verb for item in self.taken))
        places = {f"{item.resource}{f' in {item.namespace}' if item.namespace else ''}" for item in self.taken}
        return f"{self.account} without {verbs} of {', '.join(sorted(places))}" if self.taken else self.account


class Outcome(NamedTuple):
    """How a case was noticed, which is empty if it was not, and after how many seconds from its start."""

    case: Case
    noticed: str
    seconds: float

    def __str__(self) -> str:
        nothing = "NOT NOTICED" if self.case.taken else "did everything"
        return f"{self.seconds:6.1f} s  {self.case}: {self.noticed or nothing}"

    @property
    def wrong(self) -> bool:
        """Whether a missing permission was not noticed, or something was wrong though none is missing."""
        return bool(self.noticed) != bool(self.case.taken)


def cases(full: dict[str, list[roles.Body]], split: Split) -> list[Case]:
    """Return a case for each part of each account's roles."""
    return [Case(account, taken) for account, bodies in full.items() for taken in split(bodies)]


class Place(NamedTuple):
    """A fleet of a case, and the namespace of its reservations."""

    fleet: Fleet
    reservations: str


class Taker:
    """Runs cases in a cluster whose API server has a log, with the permissions of accounts by name."""

    def __init__(self, cluster: Cluster, client: Client, full: dict[str, list[roles.Body]]) -> None:
        self._cluster, self._client, self._full = cluster, client, full

    async def take(self, wanted: Sequence[Case], *, report: Callable[[Outcome], None]) -> list[Outcome]:
        """Run cases, and report each when it is decided.

        Agents need DeviceClasses: controllers that lack permissions for these are first, and have none. A cleanup
        removes everything in the cluster: they are last, one by one.
        """
        groups: dict[str, list[Case]] = {"classes": [], accounts.CONTROLLER: [], accounts.AGENT: [], roles.CLEANUP: []}
        for case in wanted:
            groups[_group(case)].append(case)
        found: list[Outcome] = []

        def decided(outcome: Outcome) -> None:
            found.append(outcome)
            report(outcome)

        async with served_types.served(self._client, zones.TYPE, pod_groups.TYPE, acting.RULES_TYPE):
            await self._delete_classes()
            await self._run(groups["classes"], decided)
            await dra_fleet.publish_classes(self._client, ServedApi())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run(groups[accounts.CONTROLLER], decided))
                group.create_task(self._run(groups[accounts.AGENT], decided, at_once=AGENTS))
            await self._cleanups(groups[roles.CLEANUP], decided)
        return found

    async def _delete_classes(self) -> None:
        for name in classes.device_classes(ServedApi()):
            await self._client.delete(resources.DEVICE_CLASSES, name)

    async def _run(self, some: Iterable[Case], decided: Callable[[Outcome], None], *, at_once: int = 1) -> None:
        turns = asyncio.Semaphore(at_once)

        async def one(case: Case) -> None:
            async with turns:
                started = time.monotonic()
                async with self._place() as place, self._account(place, case) as seen:
                    place.fleet.cluster = seen
                    doing = control(place) if case.account == accounts.CONTROLLER else serve(place)
                    noticed = await decide(doing, self._cluster.state_home, place.fleet.namespace, case)
                    decided(Outcome(case, noticed, time.monotonic() - started))

        async with asyncio.TaskGroup() as group:
            for case in some:
                group.create_task(one(case))

    async def _cleanups(self, some: Sequence[Case], decided: Callable[[Outcome], None]) -> None:
        """Run cleanups, those first that are rejected before they remove anything."""
        if not some:
            return
        async with self._place() as place:
            node = await place.fleet.node("a")
            for case in sorted(some, key=_removes):
                started = time.monotonic()
                await acting.leave_behind(place.fleet, node)
                async with self._account(place, case) as seen:
                    doing = clean(place, seen, node)
                    noticed = await decide(doing, self._cluster.state_home, place.fleet.namespace, case)
                decided(Outcome(case, noticed, time.monotonic() - started))

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[Place]:
        """A fleet with namespaces of its own, gone afterwards."""
        client = self._client
        async with (
            new_namespace(client) as namespace,
            new_namespace(client) as reservations,
            fleet_in(self._cluster, client, namespace) as fleet,
        ):
            try:
                yield Place(fleet, reservations)
            finally:
                for item in fleet.controllers:
                    await asyncio.to_thread(item.stop, signal.SIGKILL)

    @contextlib.asynccontextmanager
    async def _account(self, place: Place, case: Case) -> AsyncIterator[Cluster]:
        """The cluster as the account of a case sees it."""
        reduced = roles.without(self._full[case.account], case.taken)
        moved = roles.placed(reduced, places(place.fleet.namespace, place.reservations))
        async with account(place.fleet, moved) as seen:
            yield seen


def places(namespace: str, reservations: str) -> dict[str, str]:
    """Return namespaces of a fleet by the usual ones; that of Run:ai is the fleet's."""
    return {
        vocabulary.DEFAULT_NAMESPACE: namespace,
        vocabulary.DEFAULT_RESERVATION_NAMESPACE: reservations,
        roles.RUNAI: namespace,
    }


@contextlib.asynccontextmanager
async def account(fleet: Fleet, bodies: Sequence[roles.Body]) -> AsyncIterator[Cluster]:
    """The cluster as an account sees it, which is removed afterwards."""
    token = await accounts.create(fleet.client, bodies)
    [entry] = yaml.safe_load(fleet.cluster.kubeconfig.read_text())["clusters"]
    authority = base64.b64decode(entry["cluster"]["certificate-authority-data"])
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kubeconfig.yaml"
            accounts.write_kubeconfig(path, server=entry["cluster"]["server"], authority=authority, token=token)
            yield msgspec.structs.replace(fleet.cluster, kubeconfig=path)
    finally:
        await accounts.delete(fleet.client, bodies)


def _group(case: Case) -> str:
    makes = case.account == accounts.CONTROLLER and any(item.resource == _DEVICE_CLASSES for item in case.taken)
    return "classes" if makes else case.account


def _removes(case: Case) -> bool:
    """Return whether a cleanup removes something before it lacks a permission."""
    early = {("list", "nodes"), ("list", "configmaps"), ("list", "coordination.k8s.io/leases"), ("patch", "configmaps")}
    return not any(item[:2] in early for item in case.taken)


async def control(place: Place) -> None:
    """Let a controller do everything."""
    await acting.control(place.fleet, reservations=place.reservations)


async def serve(place: Place) -> None:
    """Let an agent do everything, beside a kubelet of its own."""
    with tempfile.TemporaryDirectory() as folder:  # with a short name: paths of sockets have at most 107 bytes
        sockets = Path(folder, "kubelet")
        sockets.mkdir()
        kubelet = Kubelet(sockets)
        await kubelet.start()
        try:
            registry = Registry(Path(folder))
            await serving.serve(place.fleet, reservations=place.reservations, kubelet=kubelet, registry=registry)
        finally:
            await kubelet.stop()


async def clean(place: Place, seen: Cluster, node: str) -> None:
    """Run a cleanup after a controller that was killed."""
    await acting.clean(place.fleet, seen, wait=0.1)
    left = await acting.left(place.fleet, node)
    assert left == [], f"left behind: {', '.join(left)}"


async def decide(doing: Coroutine[Any, Any, None], folder: Path, namespace: str, case: Case) -> str:
    """Return how it is noticed that a case's account lacks permissions; empty if everything was done."""
    log = audit.Tail(folder)

    def rejected() -> str:
        done = audit.acts(log.read(), namespace=namespace)
        return next((_rejection(act) for act in done if act.account == case.account and act.code == 403), "")

    task = asyncio.create_task(doing)
    try:
        while not task.done():
            if found := rejected():
                return found
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
        return rejected() or _failure(task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _rejection(act: audit.Act) -> str:
    return f"403: {act.permission.verb} {act.permission.resource}"


def _failure(task: asyncio.Task[None]) -> str:
    """Return what was not done, and where. Whatever else was raised is a mistake of the tests, and raised again."""
    error = task.exception()
    while isinstance(error, ExceptionGroup) and error.split(AssertionError)[1] is None:
        error = error.exceptions[0]
    if error is None:
        return ""
    if not isinstance(error, AssertionError):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    where = [frame.name for frame in frames if Path(frame.filename).parent == Path(__file__).parent]
    return ": ".join(("not done", *where[-1:], str(error).partition("\n")[0]))
