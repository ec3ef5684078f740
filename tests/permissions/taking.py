"""Takes permissions away from accounts, and finds out whether that is noticed.

Each case has namespaces, nodes and roles of its own. A case is decided as soon as the API server's log has a request of
its account that was rejected, which has to be one for what was taken away. Where a program asks first what it may do,
and does without, it is decided by what is not done. A request that was rejected for another reason, something else that
was not done, and a time limit make a case wrong. Agents keep to their nodes and run side by side; of
controllers one runs at a time, as in any cluster, and so does one KWOK.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import enum
import signal
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
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
from tests.fixtures.cluster import Cluster, TooLate, new_namespace
from tests.fixtures.controller import Fleet, fleet_in
from tests.fixtures.dra import Registry
from tests.fixtures.kubelet import Kubelet
from tests.permissions import acting, playing, roles, serving

AGENTS = 2  # at a time
_LOOK_SECONDS = 0.05
_DEVICE_CLASSES = "resource.k8s.io/deviceclasses"
# What programs ask for before they do it: without the permission they are not rejected, and do without.
_ASKED_FIRST = {
    (accounts.CONTROLLER, "patch", _DEVICE_CLASSES),
    (roles.CLEANUP, "list", "resource.k8s.io/resourceslices"),
    (roles.CLEANUP, "list", "topology.node.k8s.io/noderesourcetopologies"),
}


Split = Callable[[Iterable[roles.Body]], list[frozenset[Permission]]]  # `roles.rules` or `roles.permissions`


class Case(NamedTuple):
    """An account, and the permissions that it does not have; none are missing if that is empty."""

    account: str
    taken: frozenset[Permission] = frozenset()

    def __str__(self) -> str:
        verbs = ", ".join(sorted(item.verb for item in self.taken))
        places = {item.place for item in self.taken}
        return f"{self.account} without {verbs} of {', '.join(sorted(places))}" if self.taken else self.account


class How(enum.Enum):
    """How it is noticed that an account lacks permissions."""

    REQUEST = "a rejected request for it"
    CREATION = "a rejected patch of an object that was not there"
    NOT_DONE = "what was not done"


class Decision(NamedTuple):
    """How a case was noticed, None if it was not, with what that was; and what was wrong with the case, if anything."""

    how: How | None = None
    what: str = ""
    mistake: str = ""


class Outcome(NamedTuple):
    """What became of a case, after so many seconds from its start."""

    case: Case
    decision: Decision
    seconds: float

    def __str__(self) -> str:
        how, what, mistake = self.decision
        nothing = "NOT NOTICED" if self.case.taken else "did everything"
        shown = f"WRONG: {mistake}" if mistake else what if how else nothing
        return f"{self.seconds:6.1f} s  {self.case}: {shown}"

    @property
    def wrong(self) -> bool:
        """Whether a missing permission was not noticed by itself, or something was wrong though none is missing."""
        return bool(self.decision.mistake) or (self.decision.how is not None) != bool(self.case.taken)


def cases(full: dict[str, list[roles.Body]], split: Split) -> list[Case]:
    """Return a case for each part of each account's roles."""
    return [Case(account, taken) for account, bodies in full.items() for taken in split(bodies)]


class Place(NamedTuple):
    """A fleet of a case, and the namespace of its reservations."""

    fleet: Fleet
    reservations: str


class Taker:
    """Runs cases in a cluster whose API server has a log, with roles of accounts by name, and a program of KWOK."""

    def __init__(self, cluster: Cluster, client: Client, full: dict[str, list[roles.Body]], kwok: Path) -> None:
        self._cluster, self._client, self._full, self._kwok = cluster, client, full, kwok

    async def take(self, wanted: Sequence[Case], *, report: Callable[[Outcome], None]) -> list[Outcome]:
        """Run cases, and report each when it is decided.

        Agents need DeviceClasses: controllers that lack permissions for these are first, and have none. A cleanup
        removes everything in the cluster: they are last, one by one.
        """
        groups: dict[str, list[Case]] = {name: [] for name in ("classes", *self._full)}
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
                group.create_task(self._run(groups[roles.KWOK], decided))
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
                    decided(Outcome(case, await self._decide(place, case), time.monotonic() - started))

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
                    decision = await self._decide(place, case, doing=clean(place, seen, node))
                decided(Outcome(case, decision, time.monotonic() - started))

    async def _decide(self, place: Place, case: Case, doing: Coroutine[Any, Any, None] | None = None) -> Decision:
        """Let an account do everything, and decide its case."""
        if doing is None:
            starts = {accounts.CONTROLLER: control, accounts.AGENT: serve}
            doing = starts[case.account](place) if case.account in starts else play(place, self._kwok)
        moved = places(place.fleet.namespace, place.reservations)
        return await decide(doing, self._cluster.state_home, place.fleet.namespace, case, moved)

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
    """Return namespaces of a fleet by the usual ones; those of Run:ai and KWOK are the fleet's, too."""
    return {
        vocabulary.DEFAULT_NAMESPACE: namespace,
        vocabulary.KWOK_NAMESPACE: namespace,
        vocabulary.NODE_LEASES_NAMESPACE: vocabulary.NODE_LEASES_NAMESPACE,
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


async def play(place: Place, program: Path) -> None:
    """Let KWOK do everything."""
    with tempfile.TemporaryDirectory() as folder:
        await playing.play(place.fleet, program, Path(folder))


async def clean(place: Place, seen: Cluster, node: str) -> None:
    """Run a cleanup after a controller that was killed."""
    await acting.clean(place.fleet, seen, wait=0.1)
    left = await acting.left(place.fleet, node)
    assert left == [], f"left behind: {', '.join(left)}"


async def decide(
    doing: Coroutine[Any, Any, None], folder: Path, namespace: str, case: Case, moved: Mapping[str, str]
) -> Decision:
    """Return how it is noticed that a case's account lacks permissions, in namespaces given by the usual ones."""
    log, rejected = audit.Tail(folder), list[audit.Act]()

    def look() -> bool:
        done = audit.acts(log.read(), namespace=namespace)
        rejected.extend(act for act in done if act.account == case.account and act.code == 403)
        return bool(rejected)

    task = asyncio.create_task(doing)
    try:
        while not look() and not task.done():
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return _judge(rejected, roles.moved(case.taken, moved)) if look() else _not_done(task, case)


def _judge(rejected: Sequence[audit.Act], taken: AbstractSet[Permission]) -> Decision:
    """Decide by requests that were rejected: each has to be one for what was taken away."""
    ways = [_way(act, taken) for act in rejected]
    shown = [f"{act.permission.verb} {act.permission.resource}" for act in rejected]
    others = {what for what, how in zip(shown, ways, strict=True) if how is None}
    if others:
        return Decision(mistake=f"403 for what was not taken away: {', '.join(sorted(others))}")
    return Decision(ways[0], f"403: {shown[0]}")


def _way(act: audit.Act, taken: AbstractSet[Permission]) -> How | None:
    """Return how a rejected request shows that permissions were taken away; None if it does not."""
    wish = act.permission
    if act.permitted and wish.verb != "patch":
        return None
    lacking = wish._replace(verb="create") if act.permitted else wish
    if not any(item.covers(lacking) for item in taken):
        return None
    return How.CREATION if act.permitted else How.REQUEST


def _not_done(task: asyncio.Task[None], case: Case) -> Decision:
    """Decide by what was not done, and where. Whatever else was raised is a mistake of the tests, and raised again."""
    error = task.exception()
    while isinstance(error, ExceptionGroup) and error.split(AssertionError)[1] is None:
        error = error.exceptions[0]
    if error is None:
        return Decision()
    if not isinstance(error, AssertionError):
        raise error
    frames = traceback.extract_tb(error.__traceback__)
    where = [frame.name for frame in frames if Path(frame.filename).parent == Path(__file__).parent]
    what = ": ".join(("not done", *where[-1:], str(error).partition("\n")[0]))
    asked = any((case.account, item.verb, item.resource) in _ASKED_FIRST for item in case.taken)
    return Decision(How.NOT_DONE, what) if asked and not isinstance(error, TooLate) else Decision(mistake=what)
