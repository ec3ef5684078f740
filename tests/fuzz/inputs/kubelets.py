"""What a kubelet and a container runtime send to the agent, and the agent's own files on the node."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from simgpu import errors, vocabulary
from simgpu.controllers.equipping import Equipment
from simgpu.dra import claims, configs, grants, node_devices
from simgpu.kube import client as kube_client
from simgpu.kube import errors as kube_errors
from simgpu.kube import views
from simgpu.kube.resources import Resource
from simgpu.machines import documents, saved
from simgpu.machines.box import Box
from simgpu.machines.users import CpuSource, Plan, PodRef, Range, User
from simgpu.node import (
    cdi,
    dra_messages,
    dra_plugin,
    granting,
    messages,
    nri,
    nri_messages,
    offers,
    owners,
    peers,
    plugins,
    prepared,
    preparing,
    rpc,
    state,
    ttrpc,
)
from simgpu.node.protobuf import Message
from simgpu.topology import allocating, pools, sharing
from simgpu.topology.devices import StaticMetrics
from simgpu.topology.mig_by_hand import HandCard, HandMade
from simgpu.topology.mig_choice import LayoutChoice
from simgpu.topology.mig_layouts import CardLayout
from tests.fixtures import boxes
from tests.fixtures.equipment import CATALOG, IDS, spec
from tests.fuzz.target import Target, awaited, encoded, numbered, scratch, split, text

_MESSAGES: tuple[type[Message], ...] = (
    messages.ListPodResourcesResponse, messages.AllocateRequest, messages.PreferredAllocationRequest,
    messages.RegisterRequest, messages.ListAndWatchResponse, messages.AllocateResponse, dra_messages.ClaimsRequest,
    dra_messages.RegistrationStatus, dra_messages.PrepareResponse, dra_messages.WatchResponse,
    nri_messages.CreateContainerRequest, nri_messages.SynchronizeRequest, ttrpc.TtrpcRequest, ttrpc.TtrpcResponse,
)  # fmt: skip
_SPEC = spec(2, allocation=allocating.GpuAllocation("dra", allocating.DraOptions(dynamic_mig=True)))
_FEW = 8  # claims that are prepared: more of them are like these
_ALLOCATED = Resource("ResourceClaim", "resourceclaims", claims.AllocatedClaim, group="resource.k8s.io")
_FOLDERS = {"state", "cdi", "gpus", "gpus-mig", "plugins", "registry"}  # of the agent
_DEPTH = 2  # of folders below the agent's
_NOW = 1_700_000_000.0  # seconds since 1970
_UID = "11111111-2222-3333-4444-555555555555"


def _message(data: bytes) -> None:
    """A message is decoded, and what was understood of it stays the same when it is sent on; or `ValueError`."""
    number, rest = split(data, len(_MESSAGES))
    kind = _MESSAGES[number]
    try:
        found = kind.decode(rest)
    except ValueError:
        return
    assert kind.decode(found.encode()) == found


def _source() -> granting.Source:
    folder = scratch() / "agent"
    return granting.Source(folder / "gpus", folder / "run", granting.Programs(folder / "lib", folder / "smi"))


@functools.cache
def _plugin() -> plugins.Plugin:
    devices = pools.build(_SPEC, "node-a")
    offered = [
        offers.Offered(device.uuid, place) for device, place in zip(devices, offers.places(devices), strict=True)
    ]
    offer = offers.offer(vocabulary.GPU_RESOURCE, offered, sharing.TimeSlicing())

    async def allocate(_resource: str, ids: object) -> messages.ContainerAllocateResponse:
        return granting.gpus(list(ids), node="node-a", source=_source())  # type: ignore[call-overload]

    return plugins.Plugin(scratch() / "plugins", offer, allocate, silence=60.0)


async def _device_plugin(data: bytes) -> None:
    """A call of the kubelet is answered with devices that there are, or rejected."""
    number, rest = split(data, 2)
    plugin, answer = _plugin(), None
    with contextlib.suppress(ValueError, rpc.RpcError):
        if number:
            asked = messages.AllocateRequest.decode(rest)
            answer = (await plugin._allocate_each(asked)).encode()
        else:
            preferred = messages.PreferredAllocationRequest.decode(rest)
            found = await plugin._preferred(preferred)
            for wanted, given in zip(preferred.containers, found.containers, strict=True):
                assert set(given.ids) <= set(IDS)
                assert len(given.ids) <= max(wanted.size, len(IDS))
            answer = found.encode()
    assert answer is None or isinstance(answer, bytes)


def _claim(uid: str) -> claims.AllocatedClaim:
    name = next(iter(_places()))
    result = views.DeviceAllocation("r", vocabulary.DRA_DRIVER, "node-a", name)
    allocation = views.Allocation(views.DeviceAllocations((result,)))
    return claims.AllocatedClaim(
        metadata=views.ObjectMeta(name="c", namespace="ns", uid=uid),
        status=views.ResourceClaimStatus(allocation=allocation),
    )


@functools.cache
def _places() -> dict[str, node_devices.DevicePlace]:
    return node_devices.places(pools.build(_SPEC, "node-a"), _SPEC)


def _prepared() -> prepared.PreparedClaims:
    folder = scratch() / "agent"
    return prepared.PreparedClaims(folder / "state", folder / "cdi", _source(), node="node-a")


def _dra() -> dra_plugin.DraPlugin:
    async def get(_namespace: str, name: str) -> claims.AllocatedClaim:
        if name != "c":
            raise kube_errors.NotFound(404, "NotFound", "no such claim")
        return _claim(_UID)

    preparer = preparing.Preparer(_prepared(), get, lambda claim: grants.grant(claim, _places(), pool="node-a"))
    at = dra_plugin.sockets(scratch() / "agent" / "plugins", scratch() / "agent" / "registry")
    return dra_plugin.DraPlugin(preparer.prepare, preparer.unprepare, at=at)


async def _dra_call(data: bytes) -> None:
    """Claims are prepared or unprepared, each with an answer of its own, and no file is written elsewhere."""
    number, rest = split(data, 4)
    if number == 3:
        await _allocated(rest)
        return
    plugin = _dra()
    calls: tuple[tuple[type[Message], Callable[..., Awaitable[Message]]], ...] = (
        (dra_messages.ClaimsRequest, plugin._prepare_each), (dra_messages.ClaimsRequest, plugin._unprepare_each),
        (dra_messages.RegistrationStatus, plugin._notified),
    )  # fmt: skip
    kind, answer = calls[number]
    with contextlib.suppress(ValueError, rpc.RpcError):
        (await answer(kind.decode(rest))).encode()
    _check_files()


async def _allocated(data: bytes) -> None:
    """Claims of the API server are prepared, and are so after a restart; or each is refused for itself."""
    try:
        page = kube_client._page(data, _ALLOCATED)
    except kube_errors.KubeError:
        return
    found = {item.metadata.uid: item for item in (page.items or ())[:_FEW]}
    checkpoint = scratch() / "agent" / "state" / vocabulary.CLAIMS_FILE
    checkpoint.unlink(missing_ok=True)
    made = _prepared()

    async def get(_namespace: str, name: str) -> claims.AllocatedClaim:
        return found[name]

    preparer = preparing.Preparer(made, get, lambda claim: grants.grant(claim, _places(), pool="node-a"))
    for uid in found:
        (await preparer.prepare(dra_messages.ClaimRef("ns", uid, uid))).encode()
    again = _prepared()
    await again.restore()
    assert again.claims == made.claims
    _check_files()
    checkpoint.unlink(missing_ok=True)


def _check_files() -> None:
    """All that the agent wrote lies where it belongs, one level deep. It is removed: each input starts with nothing."""
    folder = str(scratch() / "agent")
    found = list(os.walk(folder))
    for at, folders, files in found:
        inside = at.removeprefix(folder).strip("/").split("/")
        if inside == [""]:
            assert {*folders, *files} <= _FOLDERS
        elif inside[0] == "cdi":
            assert all(name.startswith(cdi._PREFIX) for name in (*folders, *files))
        assert len(inside) < _DEPTH or not folders
    for at, _, files in reversed(found):
        for name in files:
            Path(at, name).unlink()
        Path(at).rmdir()


async def _checkpoint(data: bytes) -> None:
    """The agent starts with any checkpoint of claims, and writes no file elsewhere for it."""
    (scratch() / "agent" / "state").mkdir(parents=True, exist_ok=True)
    (scratch() / "agent" / "state" / vocabulary.CLAIMS_FILE).write_bytes(data)
    made = _prepared()
    await made.restore()
    for claim in made.claims.values():
        assert grants.UID.fullmatch(claim.uid)
    grants.instances(made.claims.values())
    grants.by_name(made.claims.values())
    _check_files()


def _kubelet_checkpoint(data: bytes) -> None:
    """The kubelet's own checkpoint has assignments, or none."""
    folder = scratch() / "kubelet"
    folder.mkdir(exist_ok=True)
    (folder / vocabulary.KUBELET_CHECKPOINT).write_bytes(data)
    for held in owners.Owners(pod_resources=folder / "none", plugins=folder)._saved():
        assert all(isinstance(name, str) for name in held.ids)


def _state(data: bytes) -> None:
    """The agent goes on with any saved state of devices, and with any GPUs and users: all of it is finite."""
    number, rest = split(data, 2)
    name = (vocabulary.STATE_FILE, vocabulary.KNOWN_FILE)[number]
    folder = scratch() / "saved"
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(rest)
    files = state.StateFiles(folder, folder / "gpus")
    (folder / name).unlink()
    known = files.known if number else _KNOWN
    made = Equipment("node-a", files, _Meter(), pages=folder / "gpus", stale=10.0, control="", seed=1)
    with contextlib.suppress(errors.InputError):
        made.equip(known.spec if known.hand is None else known.hand.over(known.spec), hand=known.hand)
    made.use(known.users)
    for user, workload in made.box.request_driven():
        made.box.engine.set_usage(workload, min(1.0, 1.0 / user.full_load))
    made.box.step(files.saved.now + 1.0, clock=files.saved.clock + 1.0)
    made.follow_processors(1.0)
    boxes.check_finite(made.box)
    msgspec.json.encode(saved.snapshot(made.box, state.now()))
    made.remember(known.users)
    made.close()
    shutil.rmtree(folder / "gpus", ignore_errors=True)


class _Meter:
    """Each container uses a core."""

    def cores(self, _pod: str, _container: str, _now: float) -> float:
        return 1.0

    def keep(self, containers: set[str]) -> None:
        assert all(isinstance(name, str) for name in containers)


class _Sent:
    """A writer that keeps nothing."""

    def write(self, data: bytes) -> None:
        assert data

    async def drain(self) -> None:
        await asyncio.sleep(0)


async def _runtime(data: bytes) -> None:
    """Frames of the container runtime are answered, or end the connection with an error that is logged."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    trunk = ttrpc.TtrpcTrunk(reader, _Sent(), connections=nri._CONNECTIONS)  # type: ignore[arg-type]

    async def find(_uid: str, _container: str) -> dict[str, int]:
        return {IDS[0]: 1000}

    plugin = nri.NriPlugin(scratch() / "nri", nri.shared_gpus(find, node="node-a", source=_source()))
    with contextlib.suppress(EOFError, ValueError):
        while True:
            await plugin._answer(trunk, await trunk.receive())


def _peer(data: bytes) -> None:
    """The control groups of a process name a container, or none."""
    found = peers.container(text(data))
    assert found is None or (found.pod and found.container)


def _opaque(data: bytes) -> None:
    """Opaque configuration of a claim is a way of sharing, or is refused with the field."""
    try:
        entries = msgspec.json.decode(data)
    except kube_errors.DECODING:
        return
    found = configs.ClaimConfigs(entries if isinstance(entries, list) else [entries])
    for request in ("r", "r/first", ""):
        try:
            found.of_request(request, where="claim.")
        except errors.InputError as error:
            assert error.field.startswith("claim.config[")
            str(error).encode()


def _frames(*calls: tuple[str, Message]) -> bytes:
    found = b""
    for stream, (method, payload) in enumerate(calls):
        body = ttrpc.TtrpcRequest(nri_messages.PLUGIN, method, payload.encode()).encode()
        whole = ttrpc._HEADER.pack(len(body), stream * 2 + 1, ttrpc.REQUEST, 0) + body
        found += ttrpc._FRAME.pack(nri_messages.PLUGIN_CONNECTION, len(whole)) + whole
    return found


_CONTAINER = nri_messages.CreateContainerRequest(
    nri_messages.PodSandbox("p", "u", "ns", {vocabulary.RUNAI_GROUP: "g"}, {"a": "b"}),
    nri_messages.NriContainer("main", (nri_messages.NriMount("/x", "bind", "/y", ("ro",)),)),
)
_PODS = messages.ListPodResourcesResponse(
    (
        messages.PodResources(
            "p", "ns", (messages.ContainerResources("main", (messages.ContainerDevices("r", (IDS[0],)),)),)
        ),
    )
)
_ALLOCATE = messages.AllocateRequest((messages.ContainerAllocateRequest((IDS[0],)),))
_PREFER = messages.PreferredAllocationRequest((messages.ContainerPreferredAllocationRequest(tuple(IDS[:2]), (), 1),))
_CLAIMS = dra_messages.ClaimsRequest((dra_messages.ClaimRef("ns", _UID, "c"),))
_STATUS = dra_messages.RegistrationStatus(plugin_registered=True)
_SAMPLES: tuple[Message, ...] = (
    _PODS, _ALLOCATE, _PREFER, messages.RegisterRequest("v1beta1", "e", "r"), messages.ListAndWatchResponse(),
    granting.others(node="n"), _CLAIMS, _STATUS, dra_messages.PrepareResponse(), dra_messages.WatchResponse(),
    _CONTAINER, nri_messages.SynchronizeRequest(more=True),
    ttrpc.TtrpcRequest("s", "m", b"p", 1), ttrpc.TtrpcResponse(ttrpc.TtrpcStatus(1, "m"), b"p"),
)  # fmt: skip
_PART = {"profile": "1g.18gb", "start": 0, "number": 1, "memory_mib": 16384}
_PREPARED = {
    "version": 1, "claims": [{
        "uid": _UID, "namespace": "ns", "name": "c", "pods": ["u"], "devices": [
            {"request": "r", "pool": "node-a", "name": "gpu-0", "gpu": IDS[0], "environment": {"A": "b"}},
            {"request": "r", "pool": "node-a", "name": "mig", "gpu": IDS[0], "part": _PART},
        ],
    }],
}  # fmt: skip
_ENTRIES = {"Data": {"PodDeviceEntries": [{"PodUID": "u", "ContainerName": "c", "DeviceIDs": {"-1": [IDS[0]]}}]}}
_USERS = (
    User(PodRef("p", "ns", "c", "u"), Range(10, 90), 1000, 0.5),
    User(PodRef("q", "ns", "c", "v"), cpu=CpuSource("v", "container", 2.0)),
    User(PodRef("r", "ns", "c", "w"), full_load=100.0, part=1),
    User(PodRef("s", "ns", "c", "x"), plan=Plan(documents.read({"Name": "x", "Profile": [{"Load": 80}]}).profile, 5.0)),
)
_KNOWN = saved.Known(spec=_SPEC, users={IDS[0]: _USERS})
_GPU = pools.NodeGpu(CATALOG.models["h200"], metrics=StaticMetrics(50.0, 1000.0))
_DIVIDED = pools.NodeGpus((_GPU,), numa=pools.Numa(2))
_BY_HAND = HandMade(LayoutChoice(), {0: HandCard(CardLayout(enabled=True), (("1g.18gb", 0), ("3g.71gb", 4)))})


@functools.cache
def _saved() -> tuple[bytes, ...]:
    """What an agent saved of two GPUs in use, and of one that is divided by hand."""
    made = Box(pools.build(_SPEC, "node-a"), seed=1, hostname="n", now=0.0, epoch=_NOW)
    made.use(_KNOWN.users)
    made.step(60.0, clock=_NOW + 60.0)
    known = (_KNOWN, saved.Known(_DIVIDED, {IDS[0]: _USERS}, hand=_BY_HAND))
    files = (saved.snapshot(made, state.now()), *known)
    return tuple(bytes([at > 0]) + msgspec.json.encode(file) for at, file in enumerate(files))


_SHARING = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "1Gi"},
}
_OPAQUE = [
    {
        "source": "FromClaim", "requests": ["r"], "opaque": {
            "driver": vocabulary.DRA_DRIVER,
            "parameters": {"apiVersion": vocabulary.CONFIG_API, "kind": "GpuConfig", "sharing": _SHARING},
        },
    }
]  # fmt: skip
_CGROUP = (
    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice/"
)

_RESULT = {"request": "r", "driver": vocabulary.DRA_DRIVER, "pool": "node-a", "device": next(iter(_places()))}
_LISTED = {
    "metadata": {}, "items": [{
        "metadata": {"name": "c", "namespace": "ns", "uid": _UID},
        "status": {
            "allocation": {
                "devices": {
                    "results": [{**_RESULT, "shareID": "s-1", "consumedCapacity": {"memory": "10Gi"}}],
                    "config": _OPAQUE,
                }
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        },
    }],
}  # fmt: skip
_LISTS = [json.dumps(_LISTED).replace('"r"', f'"{request}"') for request in ("r", "r" * 1000)]

_FRAMES = _frames(("Configure", messages.Empty()), ("CreateContainer", _CONTAINER))

TARGETS = (
    Target("kubelet-messages", _message, numbered([found.encode()] for found in _SAMPLES)),
    Target("device-plugin-calls", awaited(_device_plugin), numbered([[_PREFER.encode()], [_ALLOCATE.encode()]])),
    Target(
        "dra-plugin-calls", awaited(_dra_call),
        numbered([[_CLAIMS.encode()], [_CLAIMS.encode()], [_STATUS.encode()], _LISTS]),
        (*_places(), "results", "reservedFor", "consumedCapacity"),
    ),
    Target("claim-checkpoints", awaited(_checkpoint), encoded([json.dumps(_PREPARED)])),
    Target("kubelet-checkpoints", _kubelet_checkpoint, encoded([json.dumps(_ENTRIES)])),
    Target("saved-states", _state, _saved(), max_length=1 << 15),
    Target("nri-frames", awaited(_runtime), (_FRAMES,)),
    Target("control-groups", _peer, encoded([f"{_CGROUP}cri-containerd-{'a' * 64}.scope"])),
    Target("opaque-configs", _opaque, encoded([json.dumps(_OPAQUE)])),
)  # fmt: skip
