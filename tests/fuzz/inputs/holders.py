"""Who has a GPU: hostile pods with ResourceClaims, and with what a kubelet lists and saves."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import placing
from simgpu.controllers import claimed, own_mig
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.dra import claims, grants, names
from simgpu.kube import client as kube_client
from simgpu.kube import errors as kube_errors
from simgpu.kube import resources, views
from simgpu.kube.resources import Resource
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.users import User
from simgpu.node import messages, owners, rpc
from simgpu.node.prepared import _Document
from simgpu.pods import holding, requests, reserving
from simgpu.topology import mig_files, mig_layouts, pools, sharing
from simgpu.topology.devices import Device
from tests.fixtures import annotated
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import CATALOG, IDS
from tests.fuzz.inputs import kubelets
from tests.fuzz.target import Target, awaited, scratch

_SEPARATOR = b"\0|\0"
_RESERVATIONS = "reservations"  # their namespace
_CLAIMS = Resource("ResourceClaim", "resourceclaims", claims.AllocatedClaim, group="resource.k8s.io")
_FEW = 32  # pods, and claims: more of them are like these
_DEVICES = tuple(names.of_gpus(IDS[:2]).values())
_CARDS = pools.NodeGpus(
    tuple(
        pools.NodeGpu(CATALOG.models["h200"], layout=layout)
        for layout in (mig_layouts.WHOLE, mig_layouts.well_known(CATALOG.models["h200"])["all-3g.71gb"])
    ),
    mig=mig_files.MigSettings("mixed"),
)  # the second one is divided


def _parts(data: bytes, count: int) -> list[bytes]:
    return (data.split(_SEPARATOR, count - 1) + [b""] * count)[:count]


def _listed(data: bytes, resource: Resource[Any]) -> list[Any]:
    """Return the objects of a list that can be read, as clients do."""
    try:
        return list(kube_client._page(data, resource).items or ())[:_FEW]
    except kube_errors.KubeError:
        return []


def _own_node(pods: Iterable[views.Pod]) -> OwnNode:
    stores = NodeStores(Store(), Store(), Store(), Store())
    stores.pods.replace(list(pods))
    events, client = annotated.Events(), None
    return OwnNode(
        "node-a", stores, Writer(client, manager="test"), events,  # type: ignore[arg-type]
        namespace="ns", catalog=CATALOG, clock=ManualClock(),
    )  # fmt: skip


def _check_users(found: dict[str, tuple[User, ...]], pods: Iterable[views.Pod]) -> None:
    """Users are containers of pods that hold GPUs, each once, with a share and memory that a GPU can have."""
    there = {(pod.metadata.uid, name.name) for pod in pods if requests.holds(pod) for name in requests.containers(pod)}
    extended = {pod.metadata.uid for pod in pods if pod.status.extended_resource_claim_status is not None}
    for gpu, users in found.items():
        assert gpu in IDS
        assert len({(user.key, user.part) for user in users}) == len(users)
        for user in users:
            assert user.key in there or user.pod.uid in extended  # a status may name any container
            assert math.isfinite(user.share)
            assert 0 <= user.share <= 1
            assert 0 <= user.memory_mib <= vocabulary.MAX_MEMORY_MIB


# Claims.


@functools.cache
def _cards() -> dict[str, Device]:
    return {device.uuid: device for device in pools.build(kubelets._SPEC, "node-a")}


def _claims(data: bytes) -> None:
    """Claims that overlap have no users at the same time, and what a node prepares can be read from its checkpoint."""
    listed, allocated = _parts(data, 2)
    pods, found = _listed(listed, resources.PODS), _listed(allocated, _CLAIMS)
    known = {(item.metadata.namespace, item.metadata.name): item for item in found}
    _claim_on_fake_node(pods, known)
    prepared = _prepared(found)
    document = _Document(tuple(prepared))
    assert msgspec.json.decode(msgspec.json.encode(document), type=_Document) == document
    memory = {gpu: device.model.memory_mib.usable for gpu, device in _cards().items()}
    node = _own_node(pods)
    users = node.users(kubelets._SPEC, (), memory, reservations=_RESERVATIONS, before={}, claims=prepared)
    _check_users(users, pods)
    by_name = grants.by_name(prepared)
    for held in node.claimed(prepared):
        assert any(held.ids == (device.id,) for claim in by_name.values() for device in claim.devices)


def _claim_on_fake_node(pods: Sequence[views.Pod], known: dict[tuple[str, str], claims.AllocatedClaim]) -> None:
    found = claimed.users_of(
        "node-a", pods, lambda namespace, name: known.get((namespace, name)),
        places=kubelets._places(), devices=_cards(), loads=annotated.reader()[0],
    )  # fmt: skip
    _check_users(found.owners, pods)
    _check_users(found.observers, pods)
    for gpu, parts in found.parts.items():
        slices = [at for part in parts for at in placing.slices_of(part.number)]
        assert len(set(slices)) == len(slices)
        assert all(user.part is not None for user in found.owners[gpu])
    for trouble in found.problems:
        f"{trouble.pod.metadata.name}: {trouble.message}".encode()
    assert found.joined({}).keys() == found.owners.keys() | found.observers.keys()
    found.instances(found.taken)


def _prepared(found: Iterable[claims.AllocatedClaim]) -> list[grants.PreparedClaim]:
    """Return the claims that a node prepares, one after another."""
    prepared: dict[str, grants.PreparedClaim] = {}
    for claim in found:
        if grants.UID.fullmatch(claim.metadata.uid) is None:
            continue  # the agent is asked for no such claim
        try:
            made = grants.grant(claim, kubelets._places(), pool="node-a")
            grants.check_overlaps(made, prepared.values())
        except errors.InputError as error:
            str(error).encode()
        else:
            prepared.setdefault(made.uid, made)
    return list(prepared.values())


# The kubelet.


def _each_once(pods: Iterable[views.Pod]) -> list[views.Pod]:
    """Return pods as a store has them: one of each name, and the API gives each a uid of its own."""
    by_name = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
    return list({pod.metadata.uid: pod for pod in by_name.values()}.values())


@functools.cache
def _instances() -> dict[str, holding.HeldInstance]:
    return own_mig.instances(pools.build(_CARDS, "node-a"), "mixed")


async def _kubelet(data: bytes) -> None:
    """Whatever the kubelet lists and saves, a device has only users that it is listed with, or is lent to."""
    listed, answered, saved = _parts(data, 3)
    pods = _each_once(_listed(listed, resources.PODS))
    (scratch() / vocabulary.KUBELET_CHECKPOINT).write_bytes(saved)
    known = {*IDS[:2], *_instances()}
    reader = owners.Owners(pod_resources=scratch() / "none", plugins=scratch())
    with mock.patch.object(rpc, "call", functools.partial(_answer, answered)):
        held = await reader.look(known)
    assert held is None or all(any(sharing.device(name) in known for name in item.ids) for item in held)
    held = held or []
    for gpu, items in holding.holders(pods, held, replicas=lambda _: 2).items():
        assert len({(item.pod.metadata.uid, item.container) for item in items}) == len(items)
        for item in items:
            assert 0 < item.share <= 1
            assert _is_named(item.pod, item.container, gpu, held)
    by_uid, real = holding.by_kubelet_uid(pods), {pod.metadata.uid for pod in pods}
    for uid, pod in by_uid.items():
        assert uid == pod.metadata.uid or uid not in real
        _check_guests(pods, held, uid)
    memory = dict.fromkeys(IDS[:2], 1000)
    node = _own_node(pods)
    users = node.users(_CARDS, held, memory, reservations=_RESERVATIONS, before={}, instances=_instances())
    assert users.keys() <= memory.keys()
    _check_users(users, pods)
    again = node.users(_CARDS, held, memory, reservations=_RESERVATIONS, before=users, instances=_instances())
    assert {gpu: set(items) for gpu, items in again.items()} == {gpu: set(items) for gpu, items in users.items()}
    for shared in reserving.lent(pods, held, namespace=_RESERVATIONS).values():
        assert all(0 < item.share <= 1 for item in shared.values())


async def _answer(data: bytes, *_call: object, **_more: object) -> messages.ListPodResourcesResponse:
    """Return the answer of a kubelet; one that sends nothing does not answer."""
    try:
        if data:
            return messages.ListPodResourcesResponse.decode(data)
    except ValueError as error:
        raise rpc.RpcError(str(error)) from None
    raise rpc.RpcError("no answer")


def _is_named(pod: views.Pod, container: str, device: str, held: Iterable[holding.Held]) -> bool:
    """Return whether a container is listed with a device: by its pod's uid, or by its names."""
    uid, named = holding.kubelet_uid(pod), (pod.metadata.namespace, pod.metadata.name)
    return any(
        item.container == container
        and (item.uid == uid if item.uid else (item.namespace, item.pod) == named)
        and any(sharing.device(name) == device for name in item.ids)
        for item in held
    )


def _check_guests(pods: Sequence[views.Pod], held: Sequence[holding.Held], uid: str) -> None:
    """A process in a container of a pod may act on devices that this container is listed with."""
    pod = holding.by_kubelet_uid(pods)[uid]
    devices = [*IDS[:2], *_instances()]
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    for identity in {"unknown", *(item.container_id.rpartition("/")[2] for item in statuses)}:
        guest = holding.guest(pods, held, devices, uid=uid, container=identity)
        if guest is None:
            continue
        assert guest.pod is not None
        assert guest.pod.uid == pod.metadata.uid
        assert guest.devices
        assert all(_is_named(pod, guest.pod.container, name, held) for name in guest.devices)
        assert guest.choose([]) == guest.devices
        with contextlib.suppress(errors.InputError):
            guest.choose(["1", uid])


def _list(*items: dict[str, Any]) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode()


def _pod(uid: str, **meta: Any) -> dict[str, Any]:
    def container(name: str) -> dict[str, Any]:
        return {"name": name, "resources": {"claims": [{"name": "mine", "request": ""}, {"name": "own"}]}}

    return {
        "metadata": {"name": uid, "namespace": "ns", "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z", **meta},
        "spec": {
            "nodeName": "node-a", "containers": [container("main"), container("side")],
            "initContainers": [{**container("init"), "restartPolicy": "Always"}],
            "resourceClaims": [
                {"name": "mine", "resourceClaimName": "c"}, {"name": "own", "resourceClaimTemplateName": "t"},
            ],
        },
        "status": {
            "phase": "Running", "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "d"}],
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{uid}-main"}],
            "initContainerStatuses": [{"name": "init", "containerID": "x://i", "state": {"running": {}}}],
        },
    }  # fmt: skip


def _claim(name: str, *devices: str, **more: Any) -> dict[str, Any]:
    result = {"driver": vocabulary.DRA_DRIVER, "pool": "node-a", **more}
    return {
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "p"}]
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [{**result, "request": f"r{at}", "device": item} for at, item in enumerate(devices)],
                    "config": [{"source": "FromClass", **kubelets._OPAQUE[0]}],
                }
            },
            "reservedFor": [{"resource": "pods", "name": uid, "uid": uid} for uid in "pq"],
        },
    }  # fmt: skip


_EXTENDED = {
    "extendedResourceClaimStatus": {
        "resourceClaimName": "e",
        "requestMappings": [{"containerName": "main", "resourceName": vocabulary.GPU_RESOURCE, "requestName": "r0"}],
    }
}
_SHARE = {"shareID": "s-1", "consumedCapacity": {"memory": "10Gi"}}
_FIRST, _SECOND = _DEVICES
_CLAIMED = (
    (_list(_pod("p"), _pod("q")), _list(_claim("c", _FIRST, **_SHARE), _claim("d", _SECOND, adminAccess=True))),
    (
        _list(_pod("p"), {**_pod("q"), "status": {"phase": "Pending", **_EXTENDED}}),
        _list(
            _claim("c", f"{_FIRST}-mig-1g18gb-19-0", f"{_FIRST}-mig-3g71gb-9-4"),
            _claim("d", f"{_FIRST}-mig-7g141gb-0-0"), _claim("e", _SECOND),
        ),
    ),
)  # fmt: skip

_MIRROR = {vocabulary.MIRROR_ANNOTATION: "0123456789abcdef0123456789abcdef"}
_GROUP = {vocabulary.RUNAI_GROUP: "g"}
_PODS = _list(
    _pod("p"), _pod("q", annotations=_MIRROR), _pod("s", labels=_GROUP),
    _pod("r", namespace=_RESERVATIONS, labels=_GROUP), _pod("f", annotations={vocabulary.MIRROR_ANNOTATION: "p"}),
)  # fmt: skip


def _given(uid: str, container: str, *ids: str) -> dict[str, Any]:
    return {"PodUID": uid, "ContainerName": container, "DeviceIDs": {"-1": ids}}


def _resources(name: str, *ids: str, namespace: str = "ns") -> messages.PodResources:
    given = messages.ContainerDevices(vocabulary.GPU_RESOURCE, ids)
    return messages.PodResources(name, namespace, (messages.ContainerResources("main", (given,)),))


def _examples() -> tuple[bytes, ...]:
    part = next(iter(_instances()))
    answer = messages.ListPodResourcesResponse(
        (
            _resources("p", IDS[0], f"{IDS[0]}::1"),
            _resources("q", part),
            _resources("r", IDS[1], namespace=_RESERVATIONS),
        )
    ).encode()
    entries = [
        _given("p", "main", IDS[0]),
        _given("p", "init", IDS[1]),
        _given(_MIRROR[vocabulary.MIRROR_ANNOTATION], "side", part),
    ]
    saved = json.dumps({"Data": {"PodDeviceEntries": entries}}).encode()
    return tuple(_SEPARATOR.join(parts) for parts in ((_PODS, answer, saved), (_PODS, answer), (_PODS, b"", saved)))


_WORDS = (
    "\0|\0", *IDS[:2], *_DEVICES, "adminAccess", "shareID", "consumedCapacity", "reservedFor", "initContainers",
    vocabulary.MIRROR_ANNOTATION, vocabulary.RUNAI_INDEX, vocabulary.RUNAI_RESERVED, vocabulary.FRACTION_ANNOTATION,
)  # fmt: skip

TARGETS = (
    Target(
        "resource-claims", _claims, tuple(_SEPARATOR.join(parts) for parts in _CLAIMED), _WORDS, max_length=1 << 15
    ),
    Target("kubelet-assignments", awaited(_kubelet), _examples(), _WORDS, max_length=1 << 15),
)  # fmt: skip
