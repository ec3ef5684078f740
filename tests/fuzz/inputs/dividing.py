"""MIG by hand on a real node: what pods send to the agent's socket, with pods that have GPUs in between."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from simgpu import errors, vocabulary
from simgpu.catalog import placing
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.controllers.own_slices import OwnSlices
from simgpu.controllers.real_node import RealNode
from simgpu.dra.grants import GrantedDevice, PreparedClaim
from simgpu.dra.node_devices import MigPart
from simgpu.kube import views
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines import documents
from simgpu.machines.saved import Known
from simgpu.node import state
from simgpu.page import showing, writer
from simgpu.pods.holding import Held
from simgpu.topology import mig_by_hand
from simgpu.topology.devices import Device, part_id
from simgpu.workloads import receiving
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import CATALOG, IDS, equipment
from tests.fuzz.target import Target, awaited, scratch

_TOPOLOGY = "nodePools: {x: {gpus: [{type: h200, count: 2}], settable: true, mig: {strategy: mixed}}}"
_SETTINGS = sorted(mig_by_hand.SETTINGS)
_MAX_STEPS = 16
_STEP = 3  # bytes
_DOCUMENT = 0xFF  # first byte of an input that is a document of a pod, not steps


class _Kubelet:
    """Takes what it is offered; pods have what an input gives them."""

    def __init__(self) -> None:
        self.listed: list[Held] = []
        self.claims: list[PreparedClaim] = []

    def offer(self, *_arguments: Any, **_more: Any) -> None:
        pass

    async def held(self, _devices: Collection[str]) -> list[Held]:
        return self.listed

    async def forget(self, claim: PreparedClaim) -> None:
        self.claims.remove(claim)


class _Layout(NamedTuple):
    """How a GPU is divided."""

    enabled: bool
    instances: frozenset[tuple[str, int]]
    bare: frozenset[int]
    compute: frozenset[tuple[int, ...]]


def _layout(device: Device) -> _Layout:
    pairs = zip(device.instances, device.placements(), strict=True)
    return _Layout(
        device.mig_mode, frozenset((profile.name, place.start) for profile, place in pairs), frozenset(device.bare),
        frozenset(msgspec.structs.astuple(item) for item in device.compute),
    )  # fmt: skip


class _Agent:
    """A real node whose GPUs pods may divide."""

    def __init__(self) -> None:
        folder = scratch() / "dividing"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        client: Any = None
        self.kubelet, self.stores = _Kubelet(), NodeStores(Store(), Store(), Store(), Store())
        self.equipment = equipment(folder)
        recorder = Recorder(client, component="test")
        own = OwnNode(
            "node-a", self.stores, Writer(client, manager="test"), recorder,
            namespace="ns", catalog=CATALOG, clock=ManualClock(),
        )  # fmt: skip
        self.node = RealNode(
            own, self.equipment, self.kubelet, OwnSlices(client, recorder, "node-a"),
            working=tuple, known=Known(), reservations="r", clock=ManualClock(),
        )  # fmt: skip
        meta = views.ObjectMeta(name="node-a", uid="n", labels={vocabulary.POOL_LABEL: "x"})
        self.stores.nodes.put(views.Node(metadata=meta))
        named = views.ObjectMeta(name=vocabulary.TOPOLOGY, namespace="ns")
        self.stores.config_maps.put(views.ConfigMap(metadata=named, data={vocabulary.TOPOLOGY_KEY: _TOPOLOGY}))
        self.node.follow_cluster()

    @property
    def devices(self) -> Sequence[Device]:
        return self.equipment.box.devices

    @property
    def layouts(self) -> list[_Layout]:
        return [_layout(device) for device in self.devices]

    def give(self, number: int) -> None:
        """Let a pod have one of the devices that no claim has, or none."""
        claimed = {name for claim in self.kubelet.claims for item in claim.devices for name in (item.id, item.gpu)}
        names = [name for device in self.devices for name in self._names(device) if name not in claimed]
        self.kubelet.listed = [Held("main", (names[number],), namespace="ns", pod="p")] if number < len(names) else []
        spec = views.PodSpec(node_name="node-a", containers=(views.Container("main"),))
        meta = views.ObjectMeta(name="p", namespace="ns", uid="p")
        self.stores.pods.put(views.Pod(metadata=meta, spec=spec, status=views.PodStatus(phase="Running")))

    def _names(self, device: Device) -> list[str]:
        if not device.mig_mode:
            return [device.uuid]
        return [part_id(device.uuid, place.number) for place, _ in device.mig_devices()]

    def claim(self, index: int, number: int) -> None:
        """Prepare a claim of an instance that a GPU has room for, or unprepare all."""
        device, self.kubelet.claims = self.devices[index], []
        possible = [(profile, start) for profile in device.model.mig for start in placing.starts(profile, device.model)]
        taken = {at for place in device.placements() for at in place.slices}
        if not self.kubelet.listed and number < len(possible):
            profile, start = possible[number]
            place = placing.placed(profile, device.model, start)
            if taken.isdisjoint(place.slices):
                part = MigPart(profile.name, start, place.number, placing.memory_mib(profile, device.model))
                granted = GrantedDevice("r", "node-a", "d", device.uuid, part=part)
                self.kubelet.claims = [PreparedClaim("u", "ns", "c", (granted,))]
        self.node.claims_changed()

    def set(self, device: str, setting: str, values: Sequence[int]) -> None:
        """Change a setting, and check that the node's GPUs are as the driver's rules have it."""
        box, before = self.equipment.box, self.layouts
        wanted, index = None, box.find(device)
        if setting in mig_by_hand.SETTINGS and index is not None:
            with contextlib.suppress(mig_by_hand.MigRefused):
                wanted = _layout(showing.divided(box, index, setting, values))
        code = self.node.set(device, setting, values)
        assert code != mig_by_hand.UNKNOWN
        if code == 0 and wanted is not None and index is not None:
            before[index] = wanted
        assert self.layouts == before, (setting, values, code)


async def _divide(data: bytes) -> None:
    """Whatever pods set, GPUs are divided as drivers do it, pods and claims keep theirs, and it is remembered."""
    with _without_pages() if len(data) % 16 else contextlib.nullcontext():
        agent = _Agent()
        try:
            await _follow(agent, data)
        finally:
            agent.equipment.close()


@contextlib.contextmanager
def _without_pages() -> Iterator[None]:
    """Leave out the state pages, which take most of the time."""
    with mock.patch.object(writer, "Pages", _NoPages), mock.patch.object(showing.BoxPages, "write", _nothing):
        yield


def _nothing(*_arguments: Any, **_more: Any) -> None:
    pass


class _NoPages:
    """Pages that are not written. Mocks would be a class each, of which memory fills."""

    def __init__(self, *_arguments: Any, **_more: Any) -> None:
        pass

    def __getattr__(self, _name: str) -> Any:
        return _nothing


async def _follow(agent: _Agent, data: bytes) -> None:
    await agent.node.reconcile()
    if data[:1] == bytes([_DOCUMENT]):
        _document(agent, data[1:])
    else:
        for at in range(0, min(len(data), _STEP * _MAX_STEPS) - _STEP + 1, _STEP):
            await _step(agent, *data[at : at + _STEP])
            _check(agent)
    before = agent.layouts
    await agent.node.reconcile()
    assert agent.layouts == before
    _check_remembered(agent)


def _document(agent: _Agent, data: bytes) -> None:
    for part in data.split(b"\0|\0")[:_MAX_STEPS]:
        with contextlib.suppress(errors.InputError, receiving.Incomplete):
            document = receiving.decode(part)
            if documents.is_setting(document):
                wanted = documents.setting(document)
                agent.set(wanted.device, wanted.setting, wanted.values)
                _check(agent)


async def _step(agent: _Agent, kind: int, first: int, second: int) -> None:
    index, what = kind & 1, (kind >> 1) % (len(_SETTINGS) + 4)
    if what < len(_SETTINGS):
        wanted = second & 15 | (second >> 4) << 8 if _SETTINGS[what] == "create_compute_instance" else second
        agent.set(IDS[index], _SETTINGS[what], [first, wanted])
    elif what == len(_SETTINGS):
        agent.give(first)
        await agent.node.reconcile()
    elif what == len(_SETTINGS) + 1:
        agent.claim(index, first)
    elif what == len(_SETTINGS) + 2:
        await agent.node.reconcile()
    else:
        agent.equipment.box.step(agent.equipment.box.engine.now + 1.0, clock=1.0)
        agent.node.stepped()


def _check(agent: _Agent) -> None:
    """No instances overlap, and what pods and claims have is there."""
    there = set()
    for device in agent.devices:
        places = device.placements()
        slices = [at for place in places for at in place.slices]
        assert len(set(slices)) == len(slices)
        assert {item.within for item in device.compute} <= set(device.bare) <= {place.number for place in places}
        there |= {device.uuid, *(part_id(device.uuid, place.number) for place, _ in device.mig_devices())}
    assert {name for held in agent.kubelet.listed for name in held.ids} <= there
    assert {item.id for claim in agent.kubelet.claims for item in claim.devices} <= there


def _check_remembered(agent: _Agent) -> None:
    """The next agent has the same GPUs."""
    known = agent.equipment.state
    assert isinstance(known, state.StateFiles)
    found = state.load_known(known._known._path)
    claimed = {item.gpu: (item.part,) for claim in agent.kubelet.claims for item in claim.devices if item.part}
    agent.equipment.close()
    following = equipment(scratch() / "dividing")
    try:
        following.equip(found.spec, claimed, hand=found.hand)
        assert [_layout(device) for device in following.box.devices] == agent.layouts
    finally:
        following.close()


def _steps(*steps: tuple[str, int, int]) -> bytes:
    """Return steps on the first GPU."""
    return b"".join(bytes([_SETTINGS.index(name) * 2, first, second]) for name, first, second in steps)


def _set(name: str, *values: int) -> bytes:
    return json.dumps({"Set": {"Device": IDS[0], "Setting": name, "Values": values}}).encode()


_GIVE, _CLAIM, _LOOK, _TIME = (bytes([(len(_SETTINGS) + at) * 2, 0, 0]) for at in range(4))
_ON = _steps(("mig_mode", 1, 0))
_CREATE = _steps(("create_gpu_instance", 19, 255), ("create_gpu_instance", 9, 4))
_COMPUTE = _steps(("create_compute_instance", 7, 0), ("create_compute_instance", 2, 1))
_DESTROY = _steps(("destroy_compute_instance", 7, 0), ("destroy_gpu_instance", 7, 0))
_DOCUMENTS = [_set("mig_mode", 1, 0), _set("create_gpu_instance", 19, 255), _set("power_limit", 300_000, 0)]

TARGETS = (
    Target(
        "mig-by-hand", awaited(_divide),
        (
            _ON + _CREATE + _COMPUTE + _GIVE + _TIME + _DESTROY + _LOOK, _ON + _CLAIM + _CREATE + _COMPUTE + _LOOK,
            bytes([_DOCUMENT]) + b"\0|\0".join(_DOCUMENTS),
        ),
    ),
)  # fmt: skip
