"""The DRA plugin over real sockets: registration, prepared claims and their CDI files, health, and updates."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from simgpu.dra import grants
from simgpu.dra.claims import AllocatedClaim
from simgpu.dra.node_devices import DevicePlace, MigPart
from simgpu.kube import errors
from simgpu.node import dra_messages, dra_plugin, granting
from simgpu.node.dra_messages import ClaimRef
from simgpu.node.dra_plugin import DeviceHealths, DraPlugin
from simgpu.node.prepared import PreparedClaims
from simgpu.node.preparing import Preparer
from simgpu.topology import failures
from tests.fixtures.dra import Registry

ONE, TWO = "1a0e8400-e29b-41d4-a716-446655440001", "2b0e8400-e29b-41d4-a716-446655440002"
GPU = "GPU-0a0e8400-e29b-41d4-a716-44665544000a"
DEVICE, OTHER = GPU.lower(), "gpu-other"
PART = f"{DEVICE}-mig-1g18gb-19-0"
PLACES = {
    DEVICE: DevicePlace(GPU), OTHER: DevicePlace("GPU-other"), PART: DevicePlace(GPU, MigPart("1g.18gb", 0, 7, 16384)),
}  # fmt: skip
RESULT = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-a", "device": DEVICE}


class Agent:
    """A plugin with its prepared claims, and what the API server has for it."""

    def __init__(self, registry: Registry, *, pod: str = "") -> None:
        self.root = registry.plugins.parent
        self.cdi = self.root / "cdi"
        self.claims: dict[str, AllocatedClaim] = {}
        self.reads = 0
        programs = granting.Programs(self.root / "lib", self.root / "smi")
        source = granting.Source(self.root / "gpus", self.root / "run", programs)
        self.prepared = PreparedClaims(self.root / "state", self.cdi, source, node="node-a")
        self.preparer = Preparer(self.prepared, self._get, self._grant)
        at = dra_plugin.sockets(registry.plugins, registry.registry, pod=pod)
        self.plugin = DraPlugin(self.preparer.prepare, self.preparer.unprepare, at=at)
        self.offer()

    def offer(self, *, problem: str = "", present: bool = True) -> None:
        self.plugin.offer(DeviceHealths("node-a", {DEVICE: problem}), present=present)

    async def _get(self, namespace: str, name: str) -> AllocatedClaim:
        self.reads += 1
        if name not in self.claims:
            raise errors.NotFound(404, "NotFound", name)
        assert namespace == "team"
        return self.claims[name]

    @staticmethod
    def _grant(claim: AllocatedClaim) -> grants.PreparedClaim:
        return grants.grant(claim, PLACES, pool="node-a")

    def files(self) -> list[str]:
        return sorted(path.name for path in self.cdi.iterdir())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.prepared.restore()
        task = asyncio.create_task(self.plugin.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


def claim(name: str, uid: str = ONE, *, results: list[dict[str, Any]] | None = None, **status: Any) -> AllocatedClaim:
    """A claim of one GPU, reserved for a pod."""
    found = {
        "allocation": {"devices": {"results": [RESULT] if results is None else results}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}],
        **status,
    }
    body = {"metadata": {"name": name, "namespace": "team", "uid": uid}, "status": found}
    return msgspec.convert(body, AllocatedClaim)


def ref(name: str = "one", uid: str = ONE) -> ClaimRef:
    return ClaimRef("team", uid, name)


@pytest.fixture
async def agent(registry: Registry) -> AsyncIterator[Agent]:
    made = Agent(registry)
    made.claims["one"] = claim("one")
    async with made.running():
        yield made


@pytest.mark.usefixtures("agent")
async def test_the_kubelet_finds_the_plugin_in_its_registry(registry: Registry) -> None:
    info = await registry.register()
    assert (info.type, info.name) == ("DRAPlugin", "gpu.nvidia.com")
    assert info.endpoint == str(registry.plugins / "gpu.nvidia.com" / "dra.sock")
    assert info.supported_versions == (
        "v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth",
    )  # fmt: skip


@pytest.mark.parametrize("version", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
async def test_a_claim_is_prepared_and_unprepared(registry: Registry, agent: Agent, version: str) -> None:
    info = await registry.register()
    result = (await registry.prepare(info, [ref()], version=version))[ONE]
    names = ("k8s.gpu.nvidia.com/gpu=common", f"k8s.gpu.nvidia.com/gpu={ONE}-{DEVICE}")
    assert result == dra_messages.PrepareResult((dra_messages.PreparedDevice(("gpu",), "node-a", DEVICE, names),))
    assert agent.files() == [f"k8s.gpu.nvidia.com-gpu_{ONE}.yaml", "k8s.gpu.nvidia.com-gpu_common.yaml"]
    document = json.loads((agent.cdi / agent.files()[0]).read_text())
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "k8s.gpu.nvidia.com/gpu")
    [device] = document["devices"]
    name = f"GPU_DEVICE_{DEVICE.replace('-', '_')}"
    assert device["containerEdits"]["env"] == [
        f"{name}={DEVICE}", f"{name}_SHARING_STRATEGY=TimeSlicing", f"{name}_TIMESLICE_INTERVAL=Default",
    ]  # fmt: skip
    [mount] = device["containerEdits"]["mounts"]
    assert mount["containerPath"] == f"/var/lib/simgpu/gpus/{GPU}"
    assert "ro" in mount["options"]
    assert await registry.unprepare(info, [ref()], version=version) == {ONE: ""}
    assert agent.files() == ["k8s.gpu.nvidia.com-gpu_common.yaml"]
    assert json.loads((agent.root / "state" / "claims.json").read_text()) == {"claims": [], "version": 1}


async def test_the_common_file_has_library_tool_and_socket(registry: Registry, agent: Agent) -> None:
    await registry.prepare(await registry.register(), [ref()])
    document = json.loads((agent.cdi / "k8s.gpu.nvidia.com-gpu_common.yaml").read_text())
    assert document["cdiVersion"] == "0.3.0"
    [device] = document["devices"]
    assert {"NODE_NAME=node-a", "NVIDIA_VISIBLE_DEVICES=void"} <= set(device["containerEdits"]["env"])
    inside = {mount["containerPath"] for mount in device["containerEdits"]["mounts"]}
    assert {"/bin/nvidia-smi", "/usr/lib64/libnvidia-ml.so.1", "/run/simgpu"} <= inside


async def test_repeated_calls_change_nothing(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    first = await registry.prepare(info, [ref()])
    agent.claims.clear()  # what a kubelet prepares again need not be there any more
    (agent.cdi / f"k8s.gpu.nvidia.com-gpu_{ONE}.yaml").unlink()
    assert await registry.prepare(info, [ref()]) == first
    assert len(agent.files()) == 2
    for _ in range(2):
        assert await registry.unprepare(info, [ref(), ref("unknown", TWO)]) == {ONE: "", TWO: ""}


async def test_a_claim_that_was_allocated_anew_after_a_lost_call_gets_its_new_device(
    registry: Registry, agent: Agent
) -> None:
    info = await registry.register()
    await registry.prepare(info, [ref()])
    agent.claims["one"] = claim("one", results=[RESULT | {"device": OTHER}])
    in_the_way = agent.root / "state" / ".claims.json.unfinished"
    in_the_way.mkdir()
    assert "Is a directory" in (await registry.prepare(info, [ref()]))[ONE].error
    assert GPU in (agent.cdi / f"k8s.gpu.nvidia.com-gpu_{ONE}.yaml").read_text()
    in_the_way.rmdir()
    for _ in range(2):
        [device] = (await registry.prepare(info, [ref()]))[ONE].devices
        assert device.device_name == OTHER  # also when the call is repeated
        assert [item.gpu for item in agent.prepared.claims[ONE].devices] == ["GPU-other"]
        assert GPU not in (agent.cdi / f"k8s.gpu.nvidia.com-gpu_{ONE}.yaml").read_text()
    agent.claims["one"] = claim("one", results=[RESULT | {"device": "gpu-elsewhere"}])
    assert "has no device" in (await registry.prepare(info, [ref()]))[ONE].error
    agent.claims["one"] = claim("one", allocation=None)
    assert [item.device_name for item in (await registry.prepare(info, [ref()]))[ONE].devices] == [OTHER]


async def test_what_is_wrong_with_one_claim_does_not_affect_another(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    agent.claims["other"] = claim("other", uid="3c0e8400-e29b-41d4-a716-446655440003")
    strange = {"device": "gpu-elsewhere"}, {"pool": "node-b"}, {"shareID": "../x"}
    for number, change in enumerate(strange):
        agent.claims[f"strange-{number}"] = claim("s", f"strange-{number}", results=[RESULT | change])
    agent.claims["free"] = claim("free", "free", allocation=None)
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "Magic"}}
    config = {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    wrong = {"devices": {"results": [RESULT], "config": [config]}}
    agent.claims["wrong"] = claim("wrong", "wrong", allocation=wrong)
    asked = [
        ref("missing", TWO), ref("other", "another"), ref("odd", "../../etc/passwd"),
        *(ref(f"strange-{number}", f"strange-{number}") for number in range(3)), ref("free", "free"),
        ref("wrong", "wrong"), ref(),
    ]  # fmt: skip
    results = await registry.prepare(info, asked)
    where = "status.allocation.devices.results[0]"
    assert [results[item.uid].error for item in asked] == [
        "there is no such claim",
        "metadata.uid: the claim of this name is another one, 3c0e8400-e29b-41d4-a716-446655440003",
        "uid: '../../etc/passwd' is no uid",
        f"{where}: the node has no device 'gpu-elsewhere' in pool node-a",
        f"{where}: the node has no device '{DEVICE}' in pool node-b",
        f"{where}.shareID: '../x' is no uid",
        "status.allocation: the claim is not allocated",
        "config[0].opaque.parameters.sharing.strategy: Invalid enum value 'Magic'",
        "",
    ]
    assert list(agent.prepared.claims) == [ONE]
    assert await registry.unprepare(info, [ref("odd", "../state/claims")]) == {"../state/claims": ""}
    assert (agent.root / "state" / "claims.json").exists()


async def test_a_device_that_overlaps_with_one_of_another_claim_is_the_error_of_its_claim_until_that_is_unprepared(
    registry: Registry, agent: Agent
) -> None:
    info = await registry.register()
    agent.claims["part"] = claim("part", TWO, results=[RESULT | {"device": PART}])
    agent.claims["watching"] = claim("watching", "watching", results=[RESULT | {"device": PART, "adminAccess": True}])
    asked = [ref(), ref("part", TWO), ref("watching", "watching")]
    results = await registry.prepare(info, asked)
    assert results[TWO].error == (
        f"status.allocation.devices.results[0]: device {PART} overlaps with device {DEVICE} of claim team/one"
    )
    assert [results[uid].error for uid in (ONE, "watching")] == ["", ""]
    assert sorted(agent.prepared.claims) == [ONE, "watching"]
    assert not any(TWO in name for name in agent.files())
    await registry.unprepare(info, [ref()])
    assert (await registry.prepare(info, [ref("part", TWO)]))[TWO].error == ""
    assert "overlaps with" in (await registry.prepare(info, [ref()]))[ONE].error


async def test_of_a_claim_with_devices_of_several_drivers_ours_are_prepared(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    foreign = {"request": "nic", "driver": "nic.example.com", "pool": "node-a", "device": "nic-0"}
    shared = [RESULT | {"request": "gpu/small", "shareID": share} for share in ("share-a", "share-b")]
    agent.claims["mixed"] = claim("mixed", TWO, results=[foreign, *shared])
    devices = (await registry.prepare(info, [ref("mixed", TWO)]))[TWO].devices
    assert [(item.request_names, item.device_name, item.share_id) for item in devices] == [
        (("gpu",), DEVICE, "share-a"), (("gpu",), DEVICE, "share-b"),
    ]  # fmt: skip
    document = json.loads((agent.cdi / f"k8s.gpu.nvidia.com-gpu_{TWO}.yaml").read_text())
    assert [item["name"] for item in document["devices"]] == [
        f"{TWO}-{DEVICE}-{share}" for share in ("share-a", "share-b")
    ]
    agent.claims["others"] = claim("others", "others", results=[foreign])
    assert (await registry.prepare(info, [ref("others", "others")]))["others"] == dra_messages.PrepareResult()
    assert list(agent.prepared.claims) == [TWO]


async def test_a_claim_that_cannot_be_saved_leaves_nothing(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    in_the_way = agent.root / "state" / "claims.json"
    in_the_way.mkdir()
    assert "Is a directory" in (await registry.prepare(info, [ref()]))[ONE].error
    in_the_way.rmdir()
    in_the_way = agent.root / "state" / ".claims.json.unfinished"
    in_the_way.mkdir()
    assert "Is a directory" in (await registry.prepare(info, [ref()]))[ONE].error
    assert agent.files() == ["k8s.gpu.nvidia.com-gpu_common.yaml"]
    in_the_way.rmdir()
    assert (await registry.prepare(info, [ref()]))[ONE].error == ""


async def test_a_refusal_is_the_error_of_each_claim(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    agent.preparer.failures = failures.Failures(refuse=True)
    assert (await registry.prepare(info, [ref()]))[ONE].error == "rejected by the node's failures (refuse)"
    assert not agent.prepared.claims


async def test_more_claims_than_a_pod_can_have_are_rejected(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    with pytest.raises(grpc.aio.AioRpcError, match="at most 256"):
        await registry.prepare(info, [ref(uid=f"uid-{number}") for number in range(257)])
    assert not agent.reads


async def test_prepared_claims_outlive_the_agent(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    first = await registry.prepare(info, [ref()])
    for path in agent.cdi.iterdir():  # as after a reboot
        path.unlink()
    (agent.cdi / f"k8s.gpu.nvidia.com-gpu_{TWO}.yaml").write_text("{}")  # of an agent that was killed meanwhile
    (agent.cdi / "other.yaml").write_text("{}")
    next_one = Agent(registry, pod="next")
    await next_one.prepared.restore()
    assert next_one.files() == [
        f"k8s.gpu.nvidia.com-gpu_{ONE}.yaml", "k8s.gpu.nvidia.com-gpu_common.yaml", "other.yaml",
    ]  # fmt: skip
    assert (await next_one.preparer.prepare(ref())) == first[ONE]
    assert next_one.prepared.claims[ONE].pods == ("uid-p",)


OUTSIDE = (
    '{"uid": "u", "namespace": "n", "name": "c", '
    '"devices": [{"request": "r", "pool": "p", "name": "g", "gpu": "../x"}]}'
)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"claims": [], "version": 2}',
        '{"claims": [{"uid": "../x"}]}',
        "\udcff",
        '{"claims":' * 5000,
        '{"claims": [], "later": ' + "[" * 5000,
        f'{{"claims": [{OUTSIDE}]}}',
    ],
)
async def test_an_invalid_checkpoint_is_kept_aside_and_removes_no_files(
    registry: Registry, agent: Agent, content: str
) -> None:
    info = await registry.register()
    await registry.prepare(info, [ref()])
    checkpoint = agent.root / "state" / "claims.json"
    checkpoint.write_text(content, errors="surrogateescape")
    next_one = Agent(registry, pod="next")
    await next_one.prepared.restore()
    assert not next_one.prepared.claims
    assert len(next_one.files()) == 2
    assert (agent.root / "state" / "claims.invalid").read_text(errors="surrogateescape") == content
    await next_one.preparer.unprepare(ref())
    assert next_one.files() == ["k8s.gpu.nvidia.com-gpu_common.yaml"]


async def test_health_is_reported_when_it_changes(registry: Registry, agent: Agent) -> None:
    info = await registry.register()
    async with registry.watch(info) as reports, registry.watch(info, version="v1.DRAResourceHealth") as newer:
        assert await anext(reports) == await anext(newer) == {DEVICE: dra_messages.HEALTHY}
        agent.offer(problem="XID 79")
        assert await anext(reports) == await anext(newer) == {DEVICE: dra_messages.UNHEALTHY}
        agent.offer()
        assert await anext(reports) == {DEVICE: dra_messages.HEALTHY}


async def test_a_plugin_that_vanishes_is_gone_until_it_returns(registry: Registry, agent: Agent) -> None:
    await registry.register()
    agent.offer(present=False)
    await registry.until()
    agent.offer()
    await registry.register()


@pytest.mark.usefixtures("agent")
async def test_sockets_that_were_removed_come_back(registry: Registry) -> None:
    await registry.register()
    (registry.registry / "gpu.nvidia.com-reg.sock").unlink()
    await registry.register()


async def test_two_agents_of_an_update_serve_side_by_side(registry: Registry) -> None:
    old, new = Agent(registry, pod="uid-old"), Agent(registry, pod="uid-new")
    for made in (old, new):
        made.claims |= {"one": claim("one"), "two": claim("two", TWO)}
    async with old.running():
        info = await registry.register("gpu.nvidia.com-uid-old-reg.sock")
        assert info.endpoint.endswith("dra-uid-old.sock")
        await registry.prepare(info, [ref()])
        async with new.running():
            await registry.until("gpu.nvidia.com-uid-old-reg.sock", "gpu.nvidia.com-uid-new-reg.sock")
            newer = msgspec.structs.replace(info, endpoint=info.endpoint.replace("old", "new"))
            both = await asyncio.gather(
                registry.prepare(info, [ref("two", TWO)]), registry.prepare(newer, [ref("two", TWO)])
            )
            assert both[0] == both[1]
            assert await registry.unprepare(newer, [ref()]) == {ONE: ""}
            await registry.unprepare(info, [ref()])
            saved = json.loads((old.root / "state" / "claims.json").read_text())["claims"]
            assert [item["uid"] for item in saved] == [TWO]
        await registry.until("gpu.nvidia.com-uid-old-reg.sock")


async def test_sockets_of_agents_that_were_killed_are_removed(registry: Registry) -> None:
    left = registry.registry / "gpu.nvidia.com-uid-old-reg.sock"
    foreign = registry.registry / "dra.example.com-reg.sock"
    for path in (left, foreign):
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    async with Agent(registry, pod="uid-new").running():
        await registry.until("gpu.nvidia.com-uid-new-reg.sock", "dra.example.com-reg.sock")


def test_socket_paths_that_are_too_long_are_shortened(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 40)
    pod = "9a0e8400-e29b-41d4-a716-446655440009"
    made = dra_plugin.sockets(deep, deep, pod=pod)
    assert all(len(str(path)) <= 107 for path in made.all()) or len(str(deep)) > 60
    assert made.registration.name.endswith("-reg.sock")
    assert made != dra_plugin.sockets(deep, deep, pod=pod[::-1])
