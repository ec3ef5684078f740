"""Any sequence of claims, pods and restarts leaves no GPU or MIG instance of a real node with a wrong set of users."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simgpu.catalog import models
from simgpu.controllers.own_node import NodeStores, OwnNode
from simgpu.controllers.own_slices import OwnSlices
from simgpu.controllers.real_node import RealNode
from simgpu.dra import grants, names, node_devices
from simgpu.dra.claims import AllocatedClaim
from simgpu.kube import errors, views
from simgpu.kube.recording import Recorder
from simgpu.kube.store import Store
from simgpu.kube.writer import Writer
from simgpu.machines.saved import Known
from simgpu.node import granting
from simgpu.node.dra_messages import ClaimRef
from simgpu.node.prepared import PreparedClaims
from simgpu.node.preparing import Preparer
from simgpu.topology import allocating, pools
from tests.fixtures.clocks import ManualClock
from tests.fixtures.equipment import IDS, equipment, spec

SPEC = spec(2, allocation=allocating.GpuAllocation("dra", allocating.DraOptions(dynamic_mig=True)))
FIRST, SECOND = names.of_gpus(IDS[:2]).values()
PLACES = node_devices.places(pools.build(SPEC, "node-a"), SPEC)
# What a scheduler could allocate to each claim: nothing that another one has.
CHOICES = {
    "c": [f"{FIRST}-mig-1g18gb-19-0", f"{FIRST}-mig-1g18gb-19-1", f"{FIRST}-mig-2g35gb-14-0"],
    "d": [f"{FIRST}-mig-3g71gb-9-4", f"{FIRST}-mig-1g18gb-19-6"],
    "e": [SECOND, f"{SECOND}-mig-7g141gb-0-0"],
}
PODS = ("p", "q", "r")


class Kubelet:
    """One that allocated nothing but what claims have."""

    def __init__(self, prepared: PreparedClaims) -> None:
        self._prepared = prepared

    @property
    def claims(self) -> Collection[grants.PreparedClaim]:
        return self._prepared.claims.values()

    def offer(self, *_arguments: Any, **_more: Any) -> None:
        pass

    async def held(self, _devices: Collection[str]) -> list[Any]:
        return []

    async def forget(self, claim: grants.PreparedClaim) -> None:
        await self._prepared.remove(claim.uid)


class World:
    """A node, the claims and pods of its cluster, and an agent that may be killed at any time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.allocated: dict[str, str] = {}
        self.pods: dict[str, str] = {}  # the claim of each
        self.answers = True  # the API server

    async def start(self) -> None:
        source = granting.Source(
            self.folder / "gpus", self.folder, granting.Programs(self.folder / "l", self.folder / "t")
        )
        self.prepared = PreparedClaims(self.folder, self.folder / "cdi", source, node="node-a")
        self.preparer = Preparer(self.prepared, self._get, lambda claim: grants.grant(claim, PLACES, pool="node-a"))
        self.stores = NodeStores(Store(), Store(), Store(), Store())
        client: Any = None
        recorder, self.equipment = Recorder(client, component="test"), equipment(self.folder)
        own = OwnNode(
            "node-a", self.stores, Writer(client, manager="test"), recorder, namespace="ns", catalog=models.load(),
            clock=ManualClock(), before=SPEC,
        )  # fmt: skip
        slices = OwnSlices(client, recorder, "node-a")
        self.node = RealNode(
            own, self.equipment, Kubelet(self.prepared), slices,
            working=tuple, known=Known(SPEC), reservations="r", clock=ManualClock(),
        )  # fmt: skip
        own.spec = lambda: SPEC  # type: ignore[method-assign]
        self.prepared.changed = self.node.claims_changed
        await self.prepared.restore()
        self.node.equip(SPEC)
        self.node.following.set()

    async def _get(self, _namespace: str, name: str) -> AllocatedClaim:
        if not self.answers:
            raise errors.ConnectError("no answer")
        if name not in self.allocated:
            raise errors.NotFound(404, "NotFound", name)
        result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-a", "device": self.allocated[name]}
        users = [{"resource": "pods", "name": pod, "uid": pod} for pod, claim in self.pods.items() if claim == name]
        body = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
            "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": users},
        }
        return msgspec.convert(body, AllocatedClaim)

    async def apply(self, kind: str, claim: str, pod: str, number: int) -> None:
        """Do what the cluster or the kubelet would do now; what neither would is left out."""
        ref = ClaimRef("ns", f"uid-{claim}", claim)
        if kind == "allocate" and claim not in self.pods.values():
            self.allocated[claim] = CHOICES[claim][number % len(CHOICES[claim])]
        elif kind == "start" and claim in self.allocated and pod not in self.pods:
            self.pods[pod] = claim
            result = await self.preparer.prepare(ref)
            if not self.answers and f"uid-{claim}" not in self.prepared.claims:
                assert result.error
                del self.pods[pod]
            else:
                assert not result.error
        elif kind == "end":
            self.pods.pop(pod, None)
        elif kind == "unprepare" and claim not in self.pods.values():
            assert not (await self.preparer.unprepare(ref)).error
        elif kind == "outage":
            self.answers = not self.answers
        elif kind == "kill":
            with contextlib.ExitStack() as stack:
                pages = [stack.enter_context(path.open("rb")) for path in (self.folder / "gpus").rglob("page")]
                self.equipment.close()
                await self.start()
                assert all(os.fstat(page.fileno()).st_nlink for page in pages), "who has a page open sees a lost GPU"

    async def check(self) -> None:
        listed = [_pod(name, claim) for name, claim in self.pods.items()]
        self.stores.pods.replace(listed)
        await self.node.reconcile()
        box, claims = self.equipment.box, self.prepared.claims
        wanted: dict[tuple[str, int | None], set[str]] = {}
        for pod, claim in self.pods.items():
            [device] = claims[f"uid-{claim}"].devices
            wanted.setdefault((device.gpu, device.part.number if device.part else None), set()).add(pod)
        found: dict[tuple[str, int | None], set[str]] = {}
        for card in box.cards:
            for user in card.users:
                found.setdefault((card.device.uuid, user.part), set()).add(user.pod.name)
        assert found == wanted
        loaded = {(work.pod.name, work.handles) for work in box.workloads().values() if work.pod}
        handles = {(box.devices[part.device].uuid, part.id): part.handle for part in box.machine.parts}
        for (gpu, number), users in wanted.items():
            card = next(card for card in box.cards if card.device.uuid == gpu)
            on = card.number if number is None else handles[gpu, number]
            assert {(user, (on,)) for user in users} <= loaded
        assert len(loaded) == sum(map(len, wanted.values()))
        parts = {
            (device.gpu, device.part.number) for claim in claims.values() for device in claim.devices if device.part
        }
        assert set(handles) == parts
        kept = {path.name for path in (self.folder / "cdi").glob("*_uid-*.yaml")}
        assert kept == {f"k8s.gpu.nvidia.com-gpu_{uid}.yaml" for uid in claims}


def _pod(name: str, claim: str) -> views.Pod:
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"},
        "spec": {
            "nodeName": "node-a", "resourceClaims": [{"name": "mine", "resourceClaimName": claim}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "mine"}]}}],
        },
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "x://1"}]},
    }  # fmt: skip
    return msgspec.convert(body, views.Pod)


EVENTS = st.tuples(
    st.sampled_from(["allocate", "allocate", "start", "start", "start", "end", "unprepare", "outage", "kill"]),
    st.sampled_from(sorted(CHOICES)),
    st.sampled_from(PODS),
    st.integers(0, 2),
)


@settings(max_examples=15, deadline=None)
@example([("allocate", "c", "p", 0), ("start", "c", "p", 0), ("kill", "c", "p", 0)])
@given(st.lists(EVENTS, max_size=20))
def test_any_sequence_leaves_the_right_users_instances_and_files(events: list[tuple[str, str, str, int]]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder))
            await world.start()
            for event in events:
                await world.apply(*event)
                await world.check()
            world.equipment.close()

    asyncio.run(play())


async def test_a_claim_that_is_unprepared_while_it_is_prepared_again_stays_unprepared(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.apply("allocate", "d", "p", 0)
    ref, asked, answered = ClaimRef("ns", "uid-d", "d"), asyncio.Event(), asyncio.Event()
    assert not (await world.preparer.prepare(ref)).error

    async def slow(namespace: str, name: str) -> AllocatedClaim:
        asked.set()
        await answered.wait()
        return await world._get(namespace, name)

    world.preparer._get = slow
    again = asyncio.create_task(world.preparer.prepare(ref))
    await asked.wait()
    ending = asyncio.create_task(world.preparer.unprepare(ref))
    await asyncio.sleep(0)  # it comes now, and is done unless it waits
    answered.set()
    assert not (await again).error
    assert not (await ending).error
    assert world.prepared.claims == {}
    await world.check()
    world.equipment.close()
