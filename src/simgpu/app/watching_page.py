"""The live page of each role: where its data comes from, and whether it is served."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from simgpu.dashboard import reading
from simgpu.dashboard.answers import RecordedEvent
from simgpu.dashboard.serving import Dashboard
from simgpu.dashboard.sources import BoxSource, ClusterFacts, FleetSource
from simgpu.kube import resources
from simgpu.kube.client import Client
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.views import Pod
from simgpu.machines.box import Box
from simgpu.machines.fleet import Fleet
from simgpu.machines.health import DeviceFaults
from simgpu.machines.users import PodRef
from simgpu.vocabulary import MAX_PENDING_PODS, MAX_PENDING_REQUESTS

_UNPLACED = "spec.nodeName=,status.phase=Pending"


class KnownNodes(Protocol):
    """What the page reads of the controller of fake nodes."""

    def pool_of(self, name: str) -> str:
        """Return the pool of a node; empty if it has none."""

    def faults(self) -> Mapping[str, DeviceFaults]:
        """Return what is wrong with GPUs, by id."""

    def renamed_resources(self) -> Collection[str]:
        """Return the names that time-slicing gives to resources of GPUs."""


def wanted(asked: bool | None, host: str) -> bool:  # noqa: FBT001 - as the option has it
    """Return whether the page is served: as asked, or else only on loopback."""
    return on_loopback(host) if asked is None else asked


def on_loopback(host: str) -> bool:
    """Return whether an address to listen on is only reached from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def of_box(box: Callable[[], Box]) -> Dashboard:
    """Return the page of an exporter."""
    return Dashboard(BoxSource(box, role="exporter"))


def of_agent(
    box: Callable[[], Box],
    pods: Callable[[], Store[Pod] | None],
    recorder: Recorder,
    *,
    node: str,
    pool: Callable[[], str],
) -> Dashboard:
    """Return the page of the agent of a node, which is in a pool."""
    facts = ClusterFacts(
        pool_of=lambda _node: pool(), pod=lambda pod: _find(pods(), pod), events=lambda: _events(recorder)
    )
    return Dashboard(BoxSource(box, role="agent", node=node, facts=facts))


def of_fleet(
    fleet: Callable[[], Fleet | None],
    pods: Callable[[], Store[Pod]],
    recorder: Callable[[], Recorder],
    client: Client,
    *,
    nodes: Callable[[], KnownNodes],
) -> Dashboard:
    """Return the page of a controller, whose parts are others in each term as leader."""

    facts = ClusterFacts(
        pool_of=lambda node: nodes().pool_of(node), faults=lambda: nodes().faults(),
        pod=lambda pod: _find(pods(), pod), pending=lambda: _pending(client, nodes().renamed_resources()),
        events=lambda: _events(recorder()), renamed_resources=lambda: nodes().renamed_resources(),
    )  # fmt: skip
    return Dashboard(FleetSource(fleet, facts))


async def _pending(client: Client, renamed: Collection[str] = ()) -> Sequence[Pod]:
    """Return pending pods that request GPUs: behind many others they are found as far as the limit of requests goes."""
    found: list[Pod] = []
    after = ""
    for _ in range(MAX_PENDING_REQUESTS):
        some, after = await client.some(resources.PODS, fields=_UNPLACED, limit=MAX_PENDING_PODS, after=after)
        found += (pod for pod in some if reading.waits_for_gpus(pod, renamed))
        if not after or len(found) >= MAX_PENDING_PODS:
            break
    return found[:MAX_PENDING_PODS]


def _find(pods: Store[Pod] | None, pod: PodRef) -> Pod | None:
    return None if pods is None else pods.get(pod.name, namespace=pod.namespace)


def _events(recorder: Recorder) -> Iterable[RecordedEvent]:
    for item in tuple(recorder.recent):
        about = item.subject
        yield RecordedEvent(item.time, item.type, item.reason, item.message, about.kind, about.name, about.namespace)
